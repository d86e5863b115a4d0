"""What ranks are given of a run, and where its datasets are."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardline.config.resolved import as_type
from shardline.config.settings.run_settings import RunSettings
from shardline.records.runs import ResolvedRun


class DatasetPlace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a sealed dataset is that a run reads, alone or in a mix.

    Attributes:
        manifest: the sealed manifest.
        shards: folder of its shards in the store.
        weight: its share of the samples, as a fraction such as `7/10`; those of a mix sum to 1.
        tokenizer: the file that made its tokens, where one did.
    """

    manifest: Path
    shards: Path
    weight: str = "1"
    tokenizer: Path | None = None

    @property
    def share(self) -> Fraction:
        """The weight, exactly."""
        return Fraction(self.weight)


class RunSpec(Struct, frozen=True, kw_only=True):
    """A resolved run.

    Attributes:
        run: its id.
        name: its names, which its job passes, since `run.json` holds none.
        identity: digest of the training's identity document.
        datasets: by id of its datasets, the weight of each as in `DatasetPlace`.
        model: as the run table names it.
        model_class: import path of the model, or the script.
        environment: what is to be installed: `python`, and `requirements` of the lock.
    """

    run: str
    name: str = ""
    identity: str = ""
    datasets: dict[str, str] = {}
    model: str = ""
    model_class: str
    settings: RunSettings
    environment: dict[str, Any] = {}

    @classmethod
    def of(cls, recorded: ResolvedRun, *, name: str = "") -> "RunSpec":
        """Return the run of a `run.json`, which an earlier version may have written."""
        return cls(
            run=recorded.run,
            name=name,
            identity=recorded.identity,
            datasets=recorded.mix,
            model=recorded.model,
            model_class=recorded.model_class,
            settings=as_type(recorded.settings, RunSettings),
            environment=recorded.environment,
        )

    @property
    def id(self) -> str:
        """Its id, as of a run of the config."""
        return self.run

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name or self.run
