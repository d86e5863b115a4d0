"""What a run's files hold: `run.json`, `provenance.json`, evaluations and predictions."""

from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.datasets import Count, Id, Name, Skipped
from shardline.records.identities import IdentityDocument, check_identity
from shardline.records.jobs import Commit, JobRecord


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
    packages: dict[str, Any] | UnsetType = UNSET
    conda: list[Any] | None = None
    image: str | None = None


class PackedDataset(Record, frozen=True, kw_only=True):
    """The blocks or packs of a dataset."""

    id: str
    number: int
    waste: float


class Packs(Record, frozen=True, kw_only=True):
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
    consumed: dict[str, Any] | UnsetType = UNSET
    checkpoint_s: float | UnsetType = UNSET
    interventions: list[dict[str, Any]] | UnsetType = UNSET
    script: str | UnsetType = UNSET
    arguments: list[str] | UnsetType = UNSET
    evaluation: dict[str, Any] | UnsetType | None = UNSET
    environment: dict[str, Any] | UnsetType = UNSET


class RanksOfTraining(Record, frozen=True, kw_only=True):
    """`world` of a training's provenance; `ranks` are what each reported of itself."""

    world_size: int | None = None
    nodes: int | None = None
    launcher: str | None = None
    backend: str | UnsetType | None = UNSET
    ranks: list[dict[str, Any]] | UnsetType = UNSET


class TrainingProvenance(_OnDatasets, frozen=True, kw_only=True):
    """provenance.json of a training.

    Attributes:
        identity: digest of the identity document that it was trained as.
        files: SHA-256 of the sealed files.
        resources: the machine, and what each rank used of it.
        weights: `largest`: of the sealed parameters, in absolute value.
        sealed_check: what came of a batch that a fresh model has evaluated again.
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
    goodput: dict[str, Any] | None = None
    throughput: dict[str, Any] | None = None
    resources: dict[str, Any] | None = None
    packs: Packs | UnsetType = UNSET
    weights: dict[str, Any] | UnsetType = UNSET
    sealed_check: dict[str, Any] | UnsetType = UNSET
    training: Training = Training()
    tracking: dict[str, Any] = field(default_factory=dict)
    world: RanksOfTraining = RanksOfTraining()
    devices: list[str] | None = None
    host: str | None = None
    software: dict[str, Any] = field(default_factory=dict)
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


class HeadlineValue(Record, frozen=True, kw_only=True):
    """The held-out metric that runs are ranked by.

    Attributes:
        value: None where none could be computed.
        mode: which end of it is better, `min` or `max`.
        interval: ends of its 95 % interval, where the evaluation has found one by `interval_method`.
    """

    metric: str
    value: float | None
    mode: str = "max"
    interval: list[float] | UnsetType = UNSET
    interval_method: str | UnsetType = UNSET


class EvaluationRef(Record, frozen=True, kw_only=True):
    """An evaluation of a run."""

    run: Id
    evaluation: Name


class TakenOver(Record, frozen=True, kw_only=True):
    """What an evaluation was taken over from."""

    from_: EvaluationRef = field(name="from")


class EvaluationResult(Record, frozen=True, kw_only=True):
    """evaluations/{id}.json.

    Attributes:
        measured_by: `script` or `model`; absent where Shardline measured.
        reference: a value of others to compare with.
        confusion, calibration, residuals, samples: see `training.evaluate`.
        files: SHA-256 of the evaluated files.
        accepted: the run and the evaluation that it was taken over from.
    """

    run: str = ""
    split: str = "test"
    task: str = ""
    num_samples: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    headline: HeadlineValue
    confusion: dict[str, Any] | UnsetType | None = UNSET
    calibration: dict[str, Any] | UnsetType | None = UNSET
    residuals: dict[str, Any] | UnsetType | None = UNSET
    samples: dict[str, Any] | UnsetType | None = UNSET
    measured_by: str | UnsetType = UNSET
    reference: dict[str, Any] | UnsetType | None = UNSET
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
