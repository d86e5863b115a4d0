"""What the readers of sealed results rely on. Whatever else a file holds is damage, and no bug of theirs.

Keys that no reader needs are not named. A key that some version did not write has a default.
"""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from shardline.records.datasets import Id, Name

Action = dict[str, Any] | None
Settings = TypeVar("Settings")


class Environment(Struct):
    """`environment` of an identity document."""

    packages: dict[str, Any] = {}


class Identity(Struct, Generic[Settings]):
    """The identity document of a dataset, a training or an evaluation."""

    settings: Settings
    model: str | UnsetType = UNSET
    inputs: dict[str, Any] = {}
    source: dict[str, str] = {}
    versions: dict[str, int] = {}
    code: dict[str, Any] = {}
    code_files: dict[str, str] = {}
    environment: Environment = msgspec.field(default_factory=Environment)


class TrainingSettings(Struct):
    """`settings` of a training's identity."""

    seed: int


TrainingIdentity = Identity[TrainingSettings]  # identity.json


class DatasetRef(Struct):
    """What other files say of a dataset."""

    id: Id


class DatasetPart(DatasetRef):
    """What other files say of a dataset of a mix."""

    weight: str
    manifest_sha256: str = ""


class RunSpec(Struct):
    """run.json."""

    identity: str
    model_class: str
    settings: dict[str, Any]
    dataset: DatasetRef | UnsetType = UNSET
    datasets: list[DatasetPart] | UnsetType = UNSET
    action: Action = None

    def __post_init__(self) -> None:
        """Refuse a run without a dataset."""
        if not self.dataset and not self.datasets:
            raise ValueError("Object missing required field `dataset`")


class Commit(Struct):
    """State of a git checkout."""

    commit: str | None = None
    dirty: bool | None = None


class Prediction(Struct):
    """predictions/{id}.json."""

    identity: dict[str, Any]
    rows: int
    files: dict[str, str]
    action: Action = None


class Certificate(Struct):
    """What a training records of the resume certificate that it found."""

    path: Name
    sha256: str


class Installed(Struct):
    """`environment` of a training's provenance."""

    packages: dict[str, Any] = {}
    conda: list[Any] | None = None


class PackedDataset(Struct):
    """What a training records of the blocks or packs of a dataset."""

    id: str
    number: int
    waste: float


class Packs(Struct):
    """What a training records of samples that are blocks or packs."""

    method: str
    column: str
    length: int
    datasets: list[PackedDataset]


class Training(Struct):
    """What a training records of its steps; a script may record none."""

    resumed_step: int | None = None
    steps: int | None = None


class Provenance(Struct):
    """provenance.json of a training."""

    manifest_sha256: str = ""
    dataset: DatasetRef | UnsetType = UNSET
    datasets: list[DatasetPart] | UnsetType = UNSET
    files: dict[Name, str] = {}
    certificate: Certificate | None = None
    action: Action = None
    environment: Installed = msgspec.field(default_factory=Installed)
    software: dict[str, Any] = {}
    world: dict[str, Any] = {}
    resources: dict[str, Any] | None = None
    packs: Packs | UnsetType = UNSET
    attempt_log: list[dict[str, Any]] | None = None
    training: Training = msgspec.field(default_factory=Training)
    git: Commit | None = None
    shardline_git: Commit | None = None


class Evaluation(Struct):
    """evaluations/{id}.json."""

    identity: Identity[dict[str, Any]]
    metrics: dict[str, float | None] = {}
    headline: dict[str, Any] = {}
    num_samples: int | None = None
    files: dict[Name, str] = {}
    action: Action = None


class Entity(Struct):
    """An entity of a crate."""

    id: str = msgspec.field(name="@id")
    sha256: str = ""


class Crate(Struct):
    """ro-crate-metadata.json."""

    graph: list[Entity] = msgspec.field(name="@graph")


class Headline(Struct):
    """`headline` of a run in report.json."""

    action: str


class ReportedRun(Struct):
    """A run in report.json."""

    id: Id
    headline: Headline


class Report(Struct):
    """report.json."""

    runs: list[ReportedRun]
    action: Action = None
