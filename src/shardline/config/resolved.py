"""Resolved settings as types and as plain tables, the run that ranks receive, and the ranks that it runs on."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs, to_builtins

from shardline.config.settings import ANYTHING, KeySchema, Settings, keys_of, schema_of
from shardline.config.settings.config import DatasetSettings, ReportSettings
from shardline.config.settings.run_settings import Evaluation, RunSettings
from shardline.config.validate import coerce
from shardline.core.canonical import canonical_json
from shardline.core.errors import LaunchError
from shardline.records.runs import ResolvedRun

KEYWORD = "legacy_value"


def settings_of(stage: str) -> type[Settings]:
    """Return the table of the settings in a stage's identity document; without keys where there is none."""
    known: dict[str, type[Settings]] = {
        "dataset": DatasetSettings,
        "train": RunSettings,
        "evaluate": Evaluation,
        "report": ReportSettings,
    }
    return known.get(stage, Settings)


def without_legacy_values(settings: Mapping[str, Any], table: type[Settings]) -> dict[str, Any]:
    """Return settings without those that have the value of their `legacy_value`.

    A table of settings that is empty then goes as well; an entry that a user named does not.

    Args:
        settings: resolved settings.
        table: what describes them.
    """
    return dict(_without(settings, schema_of(table)))


def _without(value: Any, schema: KeySchema) -> Any:
    if isinstance(value, list):
        return [_without(item, schema.item or ANYTHING) for item in value]
    if not isinstance(value, Mapping):
        return value
    table, free = schema.table_of(value), schema.value or ANYTHING
    known = keys_of(table) if table else {}
    kept: dict[str, object] = {}
    for key, item in value.items():
        below = known[key].schema if key in known else free
        if KEYWORD in below.limits and _is_legacy_value(item, below):
            continue
        if isinstance(item, dict | list):  # most are not, and 10,000 runs have 500,000
            left = _without(item, below)
            if left == {} and item != {} and key in known:
                continue
            item = left
        kept[key] = item
    return kept


def with_legacy_values(settings: Mapping[str, Any], table: type[Settings]) -> dict[str, Any]:
    """Return settings that an earlier version resolved, with the newer ones at their `legacy_value`."""
    return _with(settings, schema_of(table))


def _with(settings: Mapping[str, Any], schema: KeySchema) -> dict[str, Any]:
    filled = dict(settings)
    table = schema.table_of(settings)
    for key, known in (keys_of(table) if table else {}).items():
        if key not in filled and KEYWORD in known.schema.limits:
            filled[key] = coerce(known.schema.limits[KEYWORD], known.schema)
        elif known.schema.tables and isinstance(filled.get(key, {}), Mapping):
            below = _with(filled.get(key, {}), known.schema)
            if below or key in filled:
                filled[key] = below
    return filled


def _is_legacy_value(value: Any, schema: KeySchema) -> bool:
    """Return whether a value is the `legacy_value`, both in the one form that the type asks for."""
    # as text, since 1 == True
    return canonical_json(coerce(value, schema)) == canonical_json(
        coerce(schema.limits[KEYWORD], schema)
    )


_Table = TypeVar("_Table", bound=Settings)


def as_type(settings: Mapping[str, Any], table: type[_Table]) -> _Table:
    """Return resolved settings as their type.

    Args:
        settings: valid ones. An earlier version may have written them, so that newer keys are at
            their `legacy_value`, or a later one, whose further keys are passed over.
    """
    values = {}
    for key, known in keys_of(table).items():
        if key in settings:
            item = settings[key]
            # most are neither, and 10,000 runs have 500,000
            values[known.field] = (
                _value(item, known.schema) if isinstance(item, dict | list) else item
            )
        elif KEYWORD in known.schema.limits:
            values[known.field] = coerce(known.schema.limits[KEYWORD], known.schema)
        elif known.below:
            values[known.field] = as_type({}, known.schema.tables[0])
    return table(**values)


def _value(value: Any, schema: KeySchema) -> Any:
    if isinstance(value, list):
        return [_value(item, schema.item or ANYTHING) for item in value]
    if not isinstance(value, dict):
        return value
    if table := schema.table_of(value):
        return as_type(value, table)
    return {key: _value(item, schema.value or ANYTHING) for key, item in value.items()}


def as_plain(settings: Settings) -> dict[str, Any]:
    """Return settings as nested tables, of their own for each call."""
    plain: dict[str, Any] = to_builtins(settings)
    return plain


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


REMEDY = "or set elastic: true to train with the same global batch on fewer ranks"


@dataclass(frozen=True, kw_only=True)
class PlannedGeometry:
    """The ranks that a run's settings ask for, which are part of its identity.

    Attributes:
        nodes: machines.
        devices: ranks on each.
        accumulate: micro-batches of each rank in a global batch.
        elastic: whether fewer ranks may do the same work.
    """

    nodes: int
    devices: int
    accumulate: int
    elastic: bool

    @classmethod
    def of(cls, settings: RunSettings) -> "PlannedGeometry":
        """Return the geometry that a run's resolved settings ask for."""
        return cls(
            nodes=settings.nodes,
            devices=settings.devices,
            accumulate=settings.trainer.accumulate,
            elastic=settings.elastic,
        )

    @property
    def parts(self) -> int:
        """Micro-batches in a global batch, over all ranks."""
        return self.nodes * self.devices * self.accumulate

    def fits(self, actual: "ActualGeometry") -> bool:
        """Whether the ranks that are there are those that were planned."""
        return (self.nodes, self.devices) == (actual.nodes, actual.devices)

    def __str__(self) -> str:
        return f"nodes={self.nodes} x devices={self.devices}"


@dataclass(frozen=True, kw_only=True)
class ActualGeometry:
    """The ranks that a job has for a run.

    Attributes:
        nodes: machines.
        devices: ranks on each.
    """

    nodes: int
    devices: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices

    def __str__(self) -> str:
        return f"nodes={self.nodes} x devices={self.devices}"


def fit_geometry(
    planned: PlannedGeometry, *, run: str, nodes: int, devices: int, uses_all: bool = False
) -> ActualGeometry:
    """Return the largest geometry for an elastic run, at most the planned one.

    The planned micro-batches of a global batch have to be shared evenly. One rank
    can always take all of them.

    Args:
        run: named in the error.
        nodes: machines that are there.
        devices: ranks that each of them can hold.
        uses_all: whether no machine that is there may be left out.

    Raises:
        LaunchError: the micro-batches cannot be shared evenly by all machines.
    """
    most = min(planned.nodes, nodes)
    choices = product(
        range(most if uses_all else 1, most + 1), range(1, min(planned.devices, devices) + 1)
    )
    even = [ActualGeometry(nodes=n, devices=d) for n, d in choices if planned.parts % (n * d) == 0]
    if not even:
        accumulate_on(planned, ActualGeometry(nodes=nodes, devices=1), run=run)
    # of two with as many ranks, the one that crosses fewer machines
    return max(even, key=lambda found: (found.ranks, -found.nodes))


def accumulate_on(planned: PlannedGeometry, actual: ActualGeometry, *, run: str) -> int:
    """Return how many micro-batches of a global batch each rank computes.

    Args:
        run: named in the error.

    Raises:
        LaunchError: the run is planned for other ranks and is not elastic, or its
            micro-batches cannot be shared evenly.
    """
    if planned.fits(actual):
        return planned.accumulate
    problem = f'run "{run}" is planned for {planned}, but its ranks are on {actual.nodes} x {actual.devices}'
    if not planned.elastic:
        raise LaunchError(f"{problem}; start as many as planned, {REMEDY}")
    if planned.parts % actual.ranks:
        raise LaunchError(
            f"{problem}, which cannot share the {planned.parts} parts of a global batch evenly; start a "
            f"number of ranks that divides {planned.parts}"
        )
    return planned.parts // actual.ranks


def settings_on(settings: RunSettings, actual: ActualGeometry, *, run: str) -> RunSettings:
    """Return a run's settings with the geometry that is there; see `accumulate_on`."""
    accumulate = accumulate_on(PlannedGeometry.of(settings), actual, run=run)
    trainer = structs.replace(settings.trainer, accumulate=accumulate)
    return structs.replace(settings, nodes=actual.nodes, devices=actual.devices, trainer=trainer)
