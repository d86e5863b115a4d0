"""What `run.json` tells of a run to its training and its evaluation."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from shardline.config.resolved import as_type
from shardline.config.settings.run import RunSettings


class RunSpec(Struct, frozen=True, kw_only=True):
    """A resolved run.

    Attributes:
        run: its id.
        name: its names, which its job passes, since `run.json` holds none.
        identity: digest of the training's identity document.
        dataset: id of its dataset.
        model: as the run table names it.
        model_class: import path of the model, or the script.
        environment: what is to be installed: `python`, and `requirements` of the lock.
    """

    run: str
    name: str = ""
    identity: str = ""
    dataset: str = ""
    model: str = ""
    model_class: str
    settings: RunSettings
    environment: dict[str, Any] = {}

    @classmethod
    def of(cls, document: Mapping[str, Any], *, name: str = "", model_class: str = "") -> "RunSpec":
        """Return what a `run.json` holds, which an earlier version may have written.

        Args:
            model_class: where the model lies now, if it has moved since.
        """
        return cls(
            run=document["run"],
            name=name,
            identity=document["identity"],
            dataset=document["dataset"]["id"],
            model=document.get("model", ""),
            model_class=model_class or document["model_class"],
            settings=as_type(document["settings"], RunSettings),
            environment=document.get("environment", {}),
        )

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name or self.run
