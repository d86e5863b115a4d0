"""Resolved settings as types and as plain tables, the run that ranks receive, and the ranks that it runs on."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct, structs, to_builtins

from shardline.config.settings import ANYTHING, KeySchema, Plain, Settings, keys_of, schema_of
from shardline.config.settings.config import DatasetSettings, ReportSettings
from shardline.config.settings.run_settings import Evaluation, RunSettings
from shardline.config.validate import coerce
from shardline.core.canonical import canonical_json
from shardline.core.errors import LaunchError
from shardline.records.origins import BaseRef
from shardline.records.runs import ResolvedRun

KEYWORD = "legacy_value"


def settings_of(stage: str) -> type[Settings]:
    """Return the class of the settings in the identity document of a stage."""
    known: dict[str, type[Settings]] = {
        "dataset": DatasetSettings,
        "train": RunSettings,
        "evaluate": Evaluation,
        "report": ReportSettings,
    }
    return known.get(stage, Settings)


def without_legacy_values(settings: Plain, table: type[Settings]) -> dict[str, Any]:
    """Return settings without those that are equal to their `legacy_value`.

    Tables of settings that become empty are dropped too, but no entries that a user named.

    Args:
        settings: Resolved settings.
        table: Class of the settings.
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


def with_legacy_values(settings: Plain, table: type[Settings]) -> dict[str, Any]:
    """Return settings of an earlier version, with newer settings at their `legacy_value`."""
    return _with(settings, schema_of(table))


def _with(settings: Plain, schema: KeySchema) -> dict[str, Any]:
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
    """Return whether a value, converted to its type, is the `legacy_value`."""
    known = schema.limits[KEYWORD]
    is_plain = not value or not isinstance(value, dict | list)
    if is_plain and type(value) is type(known) and value == known:
        return True  # as most are, of 10,000 runs
    # as text, since 1 == True
    return canonical_json(coerce(value, schema)) == canonical_json(coerce(known, schema))


_Table = TypeVar("_Table", bound=Settings)


def as_type(settings: Plain, table: type[_Table]) -> _Table:
    """Return resolved settings as an instance of their class.

    Args:
        settings: Valid settings. In settings of an earlier version, newer keys get their
            `legacy_value`; further keys of a later version are ignored.
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
    if schema.value is None and (table := schema.table_of(value)):
        return as_type(value, table)
    return {key: _value(item, schema.value or ANYTHING) for key, item in value.items()}


def as_plain(settings: Settings) -> dict[str, Any]:
    """Return settings as nested dictionaries, new in each call."""
    plain: dict[str, Any] = to_builtins(settings)
    return plain


Mode = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of a study.

    Attributes:
        nodes: Number of machines.
        devices: Ranks per machine.
        run: Id of the run that trains at this size.
    """

    nodes: int
    devices: int
    run: str

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.devices

    @property
    def label(self) -> str:
        """Nodes x devices, such as `2x4`."""
        return f"{self.nodes}x{self.devices}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A scaling study.

    Attributes:
        name: Key in the config.
        run: Name of the run that the study varies.
        mode: `strong` keeps the global batch, `weak` the batch of each rank.
        sizes: Sizes in the order of the config.
    """

    name: str
    run: str
    mode: Mode
    sizes: tuple[Size, ...]

    @property
    def runs(self) -> frozenset[str]:
        """The ids of the runs of all sizes."""
        return frozenset(size.run for size in self.sizes)


class PythonObject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A torch dataset, a function that returns one, or a LightningDataModule, as a config names it.

    Attributes:
        path: Import path.
        options: Keyword arguments.
        files: Files of the source, absolute.
    """

    path: str
    options: dict[str, Any] = {}
    files: list[str] = []


class DatasetPlace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paths of a sealed dataset, and its weight in a run.

    Attributes:
        manifest: Sealed manifest.
        shards: Folder of the shards in the store.
        weight: Share of the samples of the run, as a fraction such as `7/10`. The weights of a mix sum to 1.
        tokenizer: File of the tokenizer, if one made the tokens.
        fold: Fold that the run tests on, if the dataset has folds.
        python: Object that the rows come from, if it may have transforms to apply when rows are read.
    """

    manifest: Path
    shards: Path
    weight: str = "1"
    tokenizer: Path | None = None
    fold: int | None = None
    python: PythonObject | None = None

    @property
    def share(self) -> Fraction:
        """The exact weight."""
        return Fraction(self.weight)


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sealed run whose weights or outputs another run averages.

    Attributes:
        run: Id of the run.
        file: Its sealed weights.
        title: The name of the run in messages.
    """

    run: str
    file: Path
    title: str


class InitWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights that a fresh training begins from.

    Attributes:
        source: `run`, `file` or `hf`, a folder of transformers.
        name: The base for messages.
        state: Which weights of a run, see `bases.Base`.
        file: Sealed weights, the folder of a training checkpoint for the state `last`, or the file or
            folder of the user; absolute, or relative to the folder of the project.
        sha256: Digest of the file, of the manifest of a training checkpoint, or of the content of a folder, see
            `bases.content_of`; empty while the base is not sealed.
        rename: New beginnings of names by old ones.
        ignore: Patterns of names of the model that keep their initial values.
        strict: Whether other names or shapes are an error.
        part: Key of the weights in a file that has several sets; empty if it has one.
    """

    source: Literal["run", "file", "hf"]
    name: str = ""
    state: str = "best"
    file: Path
    sha256: str = ""
    rename: dict[str, str] = {}
    ignore: list[str] = []
    strict: bool = True
    part: str = ""


class RunSpec(Struct, frozen=True, kw_only=True):
    """A resolved run.

    Attributes:
        run: Id of the run.
        name: Names of the run. The job passes them, since `run.json` contains no names.
        identity: Digest of the identity document of the training.
        datasets: Weight of each dataset by id, as in `DatasetPlace`.
        model: Model as written in the run table.
        model_class: Import path of the model, or the script.
        environment: Packages to install: `python`, and `requirements` of the lock.
        lightning: Packages of Lightning that the code imports, see `Documents.lightning_of`; empty if unknown.
        init: Weights that a fresh training begins from.
        bases: What the run begins from, as its records contain it.
        members: Runs that `settings.average` or `settings.ensemble` names, in their order.
    """

    run: str
    name: str = ""
    identity: str = ""
    datasets: dict[str, str] = {}
    model: str = ""
    model_class: str
    settings: RunSettings
    environment: dict[str, Any] = {}
    lightning: tuple[str, ...] = ()
    init: InitWeights | None = None
    bases: tuple[BaseRef, ...] = ()
    members: tuple[Member, ...] = ()

    @classmethod
    def of(cls, recorded: ResolvedRun, *, name: str = "") -> "RunSpec":
        """Return the run of a `run.json`, possibly of an earlier version."""
        return cls(
            run=recorded.run,
            name=name,
            identity=recorded.identity,
            datasets=recorded.mix,
            model=recorded.model,
            model_class=recorded.model_class,
            settings=as_type(recorded.settings, RunSettings),
            environment=recorded.environment,
            bases=tuple(recorded.bases or ()),
        )

    @property
    def id(self) -> str:
        """The id, as in `RunPlan`."""
        return self.run

    @property
    def title(self) -> str:
        """The name of the run in messages."""
        return self.name or self.run


REMEDY = "or set elastic: true to train with the same global batch on fewer ranks"


@dataclass(frozen=True, kw_only=True)
class PlannedGeometry:
    """The ranks in the settings of a run, which are part of its identity.

    Attributes:
        nodes: Number of machines.
        devices: Ranks per machine.
        accumulate: Micro-batches of each rank in a global batch.
        elastic: Whether the run may train on fewer ranks.
    """

    nodes: int
    devices: int
    accumulate: int
    elastic: bool

    @classmethod
    def of(cls, settings: RunSettings) -> "PlannedGeometry":
        """Return the geometry in the resolved settings of a run."""
        return cls(
            nodes=settings.nodes,
            devices=settings.devices,
            accumulate=settings.trainer.accumulate,
            elastic=settings.elastic,
        )

    @property
    def parts(self) -> int:
        """Number of micro-batches in a global batch, over all ranks."""
        return self.nodes * self.devices * self.accumulate

    def fits(self, actual: "ActualGeometry") -> bool:
        """Return whether the actual ranks are the planned ranks."""
        return (self.nodes, self.devices) == (actual.nodes, actual.devices)

    def __str__(self) -> str:
        return f"nodes={self.nodes} x devices={self.devices}"


@dataclass(frozen=True, kw_only=True)
class ActualGeometry:
    """The ranks that a job has for a run.

    Attributes:
        nodes: Number of machines.
        devices: Ranks per machine.
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

    The ranks must divide the planned micro-batches of a global batch evenly. One rank can
    always compute all of them.

    Args:
        run: Name of the run, for the error.
        nodes: Number of available machines.
        devices: Ranks that each machine can run.
        uses_all: Whether all available machines must be used.

    Raises:
        LaunchError: The machines cannot divide the micro-batches evenly.
    """
    most = min(planned.nodes, nodes)
    choices = product(
        range(most if uses_all else 1, most + 1), range(1, min(planned.devices, devices) + 1)
    )
    even = [ActualGeometry(nodes=n, devices=d) for n, d in choices if planned.parts % (n * d) == 0]
    if not even:
        accumulate_on(planned, ActualGeometry(nodes=nodes, devices=1), run=run)
    # with equal ranks, prefer fewer machines
    return max(even, key=lambda found: (found.ranks, -found.nodes))


def accumulate_on(planned: PlannedGeometry, actual: ActualGeometry, *, run: str) -> int:
    """Return how many micro-batches of a global batch each rank computes.

    Args:
        run: Name of the run, for the error.

    Raises:
        LaunchError: The run is planned for other ranks and not elastic, or the ranks cannot
            divide its micro-batches evenly.
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
    """Return the settings of a run for the actual ranks; see `accumulate_on`."""
    accumulate = accumulate_on(PlannedGeometry.of(settings), actual, run=run)
    trainer = structs.replace(settings.trainer, accumulate=accumulate)
    return structs.replace(settings, nodes=actual.nodes, devices=actual.devices, trainer=trainer)
