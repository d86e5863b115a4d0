"""What a run's files hold: `run.json`, `provenance.json`, evaluations and predictions."""

from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.datasets import Count, Id, Name, Skipped
from shardline.records.evaluations import Evaluated
from shardline.records.identities import IdentityDocument, check_identity
from shardline.records.jobs import Commit, JobRecord
from shardline.records.measured import (
    ConsumedSteps,
    Goodput,
    Intervention,
    Number,
    Resources,
    SealedCheck,
    Throughput,
    Weights,
)

Places = dict[
    str, dict[str, str | None] | None
]  # by tracker, by name; None for what it has not told


class DatasetRef(Record, frozen=True, kw_only=True):
    """The dataset of a run that is trained on one."""

    id: Id


class MixedDataset(DatasetRef, frozen=True, kw_only=True):
    """A dataset of a mix, with the checksum of the manifest that a training has read."""

    weight: str
    manifest_sha256: str | UnsetType = UNSET


class _OnDatasets(Record, frozen=True, kw_only=True):
    dataset: DatasetRef | UnsetType = UNSET
    datasets: list[MixedDataset] | UnsetType = UNSET

    @property
    def mix(self) -> dict[str, str]:
        """The weights of its datasets by id, in the order in which they are mixed; of one dataset 1."""
        if self.datasets:
            return {part.id: part.weight for part in self.datasets}
        return {self.dataset.id: "1"} if self.dataset else {}


class ResolvedRun(_OnDatasets, frozen=True, kw_only=True):
    """run.json.

    Attributes:
        run: its id.
        identity: digest of its identity document.
        order: version of the order of samples.
        model: as the run table names it.
        model_class: import path of the model, or the script.
        environment: what is to be installed: `python`, and `requirements` of the lock.
        definitions: digests of the definitions of the user's code, see `config.documents`.
    """

    run: str
    identity: str
    order: int = 1
    model: str = ""
    model_class: str
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, Any] = field(default_factory=dict)
    action: JobRecord | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse a run without a dataset."""
        if not self.dataset and not self.datasets:
            raise ValueError("Object missing required field `dataset`")


class Certificate(Record, frozen=True, kw_only=True):
    """The resume certificate that a training found."""

    path: Name
    sha256: str
    verdict: str | UnsetType = UNSET


class Installed(Record, frozen=True, kw_only=True):
    """`environment` of a training's provenance, see `environments.installed.observe`."""

    python: str | None = None
    packages: dict[str, str] | UnsetType = UNSET
    conda: list[str] | None = None
    image: str | None = None


class ScriptInstalled(Record, frozen=True, kw_only=True):
    """The environment that a training script has of its own: of an image its name, else what is installed."""

    kind: str
    image: str | UnsetType = UNSET
    python: str | UnsetType = UNSET
    packages: dict[str, str] | UnsetType = UNSET


class ScriptHeadline(Record, frozen=True, kw_only=True):
    """The metric by which a script's run is to be ranked."""

    metric: str
    mode: str


class ScriptEvaluation(Record, frozen=True, kw_only=True):
    """evaluation.json of a training script: numbers by name, and the held-out samples behind them."""

    metrics: dict[str, Number]
    num_samples: int
    headline: ScriptHeadline | UnsetType = UNSET


class PackedDataset(Record, frozen=True, kw_only=True):
    """The blocks or packs of a dataset.

    Attributes:
        waste: of blocks the share of the values that none holds, of packs the share of their places that no
            value fills.
    """

    id: str
    number: int
    waste: float


class PackedSamples(Record, frozen=True, kw_only=True):
    """Samples that are blocks or packs."""

    method: str
    column: str
    length: int
    datasets: list[PackedDataset]


class Training(Record, frozen=True, kw_only=True):
    """What a training ended with, see `training.fit.Trained`; of a script, what the script left."""

    best_score: float | UnsetType | None = UNSET
    steps: int | UnsetType | None = UNSET
    epochs: int | UnsetType | None = UNSET
    stopped_early: bool | UnsetType = UNSET
    resumed_step: int | UnsetType | None = UNSET
    consumed: ConsumedSteps | UnsetType = UNSET
    checkpoint_s: float | UnsetType = UNSET
    interventions: list[Intervention] | UnsetType = UNSET
    script: str | UnsetType = UNSET
    arguments: list[str] | UnsetType = UNSET
    evaluation: ScriptEvaluation | UnsetType | None = UNSET
    environment: ScriptInstalled | UnsetType = UNSET


class RankReport(Record, frozen=True, kw_only=True):
    """What a rank reported of itself in the preflight check, and what was measured to it.

    Attributes:
        device_name: of its hardware.
        threads: CPU threads of an operation.
        differences: how what is installed differs from the lock.
        cpus: numbers of the CPUs that it may run on.
        interface: on the way to rank 0, as is `address`.
        settings: variables that decide how ranks reach each other.
        latency_us: the median of small all-reduces; None in a world of one, as is `bandwidth_mb_s`.
        bandwidth_mb_s: what it received from its left neighbour while all ranks sent at once.
        joined_s: how long it waited for all ranks.
    """

    rank: int
    local_rank: int
    node_rank: int
    host: str
    device: str
    device_name: str
    threads: int
    libraries: dict[str, str | None] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    cpus: str
    interface: str
    address: str
    settings: dict[str, str]
    launcher: str
    job: str
    latency_us: Number | None
    bandwidth_mb_s: Number | None
    joined_s: Number


class RanksOfTraining(Record, frozen=True, kw_only=True):
    """`world` of a training's provenance."""

    world_size: int | None = None
    nodes: int | None = None
    launcher: str | None = None
    backend: str | UnsetType | None = UNSET
    ranks: list[RankReport] | UnsetType = UNSET


class TrainingProvenance(_OnDatasets, frozen=True, kw_only=True):
    """provenance.json of a training.

    Attributes:
        identity: digest of the identity document that it was trained as.
        files: SHA-256 of the sealed files.
        tracking: where each tracker shows the training.
    """

    run: str = ""
    identity: str = ""
    manifest_sha256: str | UnsetType = UNSET
    files: dict[Name, str] = field(default_factory=dict)
    seed: int | UnsetType = UNSET
    started: str | None = None
    ended: str | None = None
    duration_s: float | None = None
    attempts: int | None = None
    attempt_log: list[Attempt] | None = None
    goodput: Goodput | None = None
    throughput: Throughput | None = None
    resources: Resources | None = None
    packs: PackedSamples | UnsetType = UNSET
    weights: Weights | UnsetType = UNSET
    sealed_check: SealedCheck | UnsetType = UNSET
    training: Training = Training()
    tracking: Places = field(default_factory=dict)
    world: RanksOfTraining = RanksOfTraining()
    devices: list[str] | None = None
    host: str | None = None
    software: dict[str, str] = field(default_factory=dict)
    environment: Installed = Installed()
    git: Commit | None = None
    shardline_git: Commit | None = None
    certificate: Certificate | None = None
    action: JobRecord | UnsetType = UNSET

    @property
    def manifests(self) -> dict[str, str]:
        """The checksums of the manifests that the training read, by dataset."""
        if self.datasets:
            return {part.id: part.manifest_sha256 or "" for part in self.datasets}
        if not self.dataset or self.manifest_sha256 is UNSET:
            return {}
        return {self.dataset.id: self.manifest_sha256}


class EvaluationRef(Record, frozen=True, kw_only=True):
    """An evaluation of a run."""

    run: Id
    evaluation: Name


class TakenOver(Record, frozen=True, kw_only=True):
    """What an evaluation was taken over from."""

    from_: EvaluationRef = field(name="from")


class EvaluationResult(Evaluated, frozen=True, kw_only=True):
    """evaluations/{id}.json.

    Attributes:
        files: SHA-256 of the evaluated files.
        accepted: the run and the evaluation that it was taken over from.
    """

    files: dict[Name, str] | UnsetType = UNSET
    identity: IdentityDocument
    accepted: TakenOver | UnsetType = UNSET
    action: JobRecord | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse an identity that is none."""
        check_identity(self.identity)


class PredictionResult(Record, frozen=True, kw_only=True):
    """predictions/{id}.json, and before the parts are one file {id}.parts.json.

    Attributes:
        parts: how many files the ranks have written.
        manifest_sha256: of the predicted dataset.
        files: SHA-256 of the model and of the file of predictions.
    """

    run: str = ""
    rows: Count
    parts: Count = 0
    classes: list[Any] | None = None
    skipped: Skipped = Skipped()
    manifest_sha256: str = ""
    files: dict[Name, str]
    identity: IdentityDocument
    action: JobRecord | UnsetType = UNSET


class RunRecord(Record, frozen=True, kw_only=True):
    """What is sealed of a run: what its plan became.

    Attributes:
        spec: `run.json`, all settings resolved.
        provenance: of the training.
        evaluation: of the model.
    """

    spec: ResolvedRun
    provenance: TrainingProvenance
    evaluation: EvaluationResult
