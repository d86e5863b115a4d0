"""Files of a run: `run.json`, `provenance.json`, evaluations and predictions."""

from typing import Any, Literal

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

# links and ids by tracker and name; None if a tracker has not reported them
Places = dict[str, dict[str, str | None] | None]


class DatasetRef(Record, frozen=True, kw_only=True):
    """The dataset of a run.

    Attributes:
        id: Id of the dataset.
    """

    id: Id


class MixedDataset(DatasetRef, frozen=True, kw_only=True):
    """A dataset of a mix.

    Attributes:
        weight: Weight in the mix, as text.
        manifest_sha256: SHA-256 of the manifest that the training read.
    """

    weight: str
    manifest_sha256: str | UnsetType = UNSET


class _OnDatasets(Record, frozen=True, kw_only=True):
    """Base of records with datasets.

    Attributes:
        dataset: Dataset of a run that is trained on one.
        datasets: Datasets of a mix.
    """

    dataset: DatasetRef | UnsetType = UNSET
    datasets: list[MixedDataset] | UnsetType = UNSET

    @property
    def mix(self) -> dict[str, str]:
        """Weights of the datasets by id, in the order of the mix; 1 for a single dataset."""
        if self.datasets:
            return {part.id: part.weight for part in self.datasets}
        return {self.dataset.id: "1"} if self.dataset else {}


class BaseRef(Record, frozen=True, kw_only=True):
    """What a run begins from.

    Attributes:
        kind: What the run does with the base, such as `init`.
        source: `run`, `file`, `hf` for a folder of transformers, or `sweep` for the trials of a finished study.
        run: Id of a run; empty for others.
        identity: Digest of the identity document of a run or study, or of the content of a file or folder.
        state: Which weights of a run: `best`, the sealed ones, or `last`, of its last training checkpoint.
        step: Optimiser step of that training checkpoint.
        sha256: SHA-256 of the weights that the training read: of the sealed weights or the file, or of the
            manifest of the training checkpoint.
        trials: Number of trials of a study.
        left_out: Why trials of a study have no weights, by number.
    """

    kind: str
    source: str
    run: str = ""
    identity: str
    state: str = "best"
    step: int | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    trials: int | UnsetType = UNSET
    left_out: dict[str, str] | UnsetType = UNSET

    @property
    def counted(self) -> dict[str, str]:
        """The part of the identity document of the run that begins from this base."""
        if self.run:
            return {"kind": self.kind, "run": self.identity, "state": self.state}
        number = {"trials": str(self.trials)} if self.trials else {}
        return {"kind": self.kind, self.source: self.identity, **number}


class ResolvedRun(_OnDatasets, frozen=True, kw_only=True):
    """run.json: a run with all settings resolved.

    Attributes:
        run: Id of the run.
        identity: Digest of the identity document.
        order: Version of the order of samples.
        model: Model as written in the run table.
        model_class: Import path of the model, or the script.
        settings: All settings, including defaults.
        environment: Packages to install: `python`, and `requirements` from the lock.
        definitions: Digests of the definitions in the user's code, see `config.documents`.
        bases: What the run begins from.
        action: Record of the job that resolved the run.
    """

    run: str
    identity: str
    order: int = 1
    model: str = ""
    model_class: str
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, Any] = field(default_factory=dict)
    bases: list[BaseRef] | UnsetType = UNSET
    action: JobRecord | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject a run without a dataset."""
        if not self.dataset and not self.datasets:
            raise ValueError("Object missing required field `dataset`")


class Certificate(Record, frozen=True, kw_only=True):
    """The resume certificate that a training found.

    Attributes:
        path: Path of the certificate, relative to the project's folder.
        sha256: SHA-256 of the certificate.
        verdict: `survived` or `not survived`.
    """

    path: Name
    sha256: str
    verdict: str | UnsetType = UNSET


class Installed(Record, frozen=True, kw_only=True):
    """Packages installed during a training, see `environments.installed.observe`.

    Attributes:
        python: Version of Python.
        packages: Versions of the Python packages, by name.
        conda: Packages of the conda environment.
        image: Digest of the container image.
    """

    python: str | None = None
    packages: dict[str, str] | UnsetType = UNSET
    conda: list[str] | None = None
    image: str | None = None


class ScriptInstalled(Record, frozen=True, kw_only=True):
    """Environment of a training script.

    Attributes:
        kind: Kind of the environment.
        image: Name of the image, for an image.
        python: Version of Python.
        packages: Versions of the installed packages, by name.
    """

    kind: str
    image: str | UnsetType = UNSET
    python: str | UnsetType = UNSET
    packages: dict[str, str] | UnsetType = UNSET


class ScriptHeadline(Record, frozen=True, kw_only=True):
    """The metric that a script's run is ranked by.

    Attributes:
        metric: Name of the metric.
        mode: `max` if higher values are better, else `min`.
    """

    metric: str
    mode: str


class ScriptEvaluation(Record, frozen=True, kw_only=True):
    """evaluation.json of a training script.

    Attributes:
        metrics: Metrics by name.
        num_samples: Number of evaluated samples.
        headline: Metric that the run is ranked by.
    """

    metrics: dict[str, Number]
    num_samples: int
    headline: ScriptHeadline | UnsetType = UNSET


class PackedDataset(Record, frozen=True, kw_only=True):
    """The blocks or packs of a dataset.

    Attributes:
        id: Id of the dataset.
        number: Number of blocks or packs.
        waste: For blocks, the share of values outside of all blocks. For packs, the share of empty places.
    """

    id: str
    number: int
    waste: float


class PackedSamples(Record, frozen=True, kw_only=True):
    """Samples that are blocks or packs.

    Attributes:
        method: Method of packing.
        column: Packed column.
        length: Length of a sample, in values.
        datasets: Blocks or packs of each dataset.
        action: In `report.json`, id of the training's record.
    """

    method: str
    column: str
    length: int
    datasets: list[PackedDataset]
    action: str | UnsetType = UNSET


class LoadedWeights(Record, frozen=True, kw_only=True):
    """The weights with which a training began.

    Attributes:
        source: `run`, `file` or `hf`, as in `init_from`.
        sha256: Digest of the file or folder that was read.
        understood: What was read, for example the `state_dict` of a checkpoint.
        loaded: Number of names that were loaded.
        renamed: Number of names in the file that each prefix of `init.rename` changed.
        ignored: Names that `init.ignore` left out.
        missing: Names of the model that kept their initial values, since the file lacks them.
        unexpected: Names in the file that the model lacks.
        shapes: Names with another shape, and both shapes.
        kinds: Names with another kind of numbers, and both types.
        untied: Names that share a tensor in the model, but not their values in the file.
    """

    source: str
    sha256: str
    understood: list[str] = field(default_factory=list)
    loaded: int
    renamed: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)

    @property
    def differences(self) -> dict[str, list[str]]:
        """Names that do not fit, by what is wrong with them, in words."""
        found = {
            "missing in the file": self.missing,
            "not in the model": self.unexpected,
            "of another shape": self.shapes,
            "of another kind": self.kinds,
            "tied in the model, with different values in the file": self.untied,
        }
        return {what: names for what, names in found.items() if names}


class Continued(Record, frozen=True, kw_only=True):
    """The run that a training continued, or whose milestone it ended with. Its steps were not trained again.

    Attributes:
        run: Id of that run.
        identity: Digest of its identity document.
        step: Optimiser steps in its state.
        seconds: Seconds of training up to its state.
        device_hours: Hours of all devices up to its state.
    """

    run: Id
    identity: str
    step: int
    seconds: float
    device_hours: float


class CombinedMember(Record, frozen=True, kw_only=True):
    """A run whose weights or outputs another run averages.

    Attributes:
        run: Id of the run.
        sha256: SHA-256 of its sealed weights.
        is_chosen: Whether the average contains it.
        score: For a greedy average, `checkpoint.monitor` of this member alone.
        tried: For a greedy average, `checkpoint.monitor` of the members chosen before and this one.
    """

    run: Id
    sha256: str
    is_chosen: bool = True
    score: float | UnsetType | None = UNSET
    tried: float | UnsetType | None = UNSET


class CombinedRuns(Record, frozen=True, kw_only=True):
    """How an average or an ensemble of sealed runs was made, without a training.

    Attributes:
        kind: `average` of weights, or `ensemble` of outputs.
        members: The members, in the order of the config.
        how: How members were chosen or outputs averaged: `uniform`, `greedy`, `probabilities` or `logits`.
        batch_norms: Number of layers of an average whose running statistics were recomputed.
        batches: Number of training batches that each of these layers saw.
    """

    kind: Literal["average", "ensemble"]
    members: list[CombinedMember]
    how: Literal["uniform", "greedy", "probabilities", "logits"]
    batch_norms: int = 0
    batches: int = 0


class Training(Record, frozen=True, kw_only=True):
    """End of a training, see `training.fit.Trained`.

    Attributes:
        best_score: Best value of `checkpoint.monitor`.
        steps: Optimiser steps done.
        epochs: Epochs done.
        stopped_early: Whether early stopping ended the training.
        resumed_step: Optimiser steps in the checkpoint of the last resume.
        consumed: Number of steps, and reasons for fewer steps than planned.
        checkpoint_s: Seconds that the last attempt spent on saving training checkpoints.
        interventions: Interventions after a divergence.
        own_optimizer: True if the model's `configure_optimizers` is used, so `optim` and `schedule` had no effect.
        combined: How an average or an ensemble was made, without a training.
        script: Path of the training script.
        arguments: Arguments of the training script.
        evaluation: Evaluation by the training script.
        environment: Environment of the training script.
        init: Weights with which the training began, if they are of another run or of a file.
    """

    best_score: float | UnsetType | None = UNSET
    steps: int | UnsetType | None = UNSET
    epochs: int | UnsetType | None = UNSET
    stopped_early: bool | UnsetType = UNSET
    resumed_step: int | UnsetType | None = UNSET
    consumed: ConsumedSteps | UnsetType = UNSET
    checkpoint_s: float | UnsetType = UNSET
    interventions: list[Intervention] | UnsetType = UNSET
    own_optimizer: bool | UnsetType = UNSET
    combined: CombinedRuns | UnsetType = UNSET
    script: str | UnsetType = UNSET
    arguments: list[str] | UnsetType = UNSET
    evaluation: ScriptEvaluation | UnsetType | None = UNSET
    environment: ScriptInstalled | UnsetType = UNSET
    init: LoadedWeights | UnsetType = UNSET


class RankReport(Record, frozen=True, kw_only=True):
    """Report of a rank in the preflight check, with the measured network.

    Attributes:
        rank: Global rank.
        local_rank: Rank on the machine.
        node_rank: Number of the machine.
        host: Name of the machine.
        device: Device of the rank, such as `cuda:0`.
        device_name: Model of the device.
        threads: CPU threads of an operation.
        libraries: Versions of libraries, by name.
        differences: Differences between the installed packages and the lock.
        cpus: Numbers of the CPUs that the rank may use.
        interface: Network interface towards rank 0.
        address: Network address towards rank 0.
        settings: Environment variables that configure the network between ranks.
        launcher: Launcher of the ranks.
        job: Job id of the scheduler.
        latency_us: Median time of small all-reduces, in microseconds; null for a single rank.
        bandwidth_mb_s: Data received from the left neighbour while all ranks sent, in MB/s; null for a single rank.
        joined_s: Seconds that the rank waited for all ranks.
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
    """Ranks of a training.

    Attributes:
        world_size: Number of ranks.
        nodes: Number of machines.
        launcher: Launcher of the ranks.
        backend: Backend of collective operations, such as `nccl`.
        ranks: Report of each rank.
    """

    world_size: int | None = None
    nodes: int | None = None
    launcher: str | None = None
    backend: str | UnsetType | None = UNSET
    ranks: list[RankReport] | UnsetType = UNSET


class TrainingProvenance(_OnDatasets, frozen=True, kw_only=True):
    """provenance.json of a training.

    Attributes:
        run: Id of the run.
        identity: Digest of the identity document at the training.
        manifest_sha256: SHA-256 of the manifest that the training read.
        bases: What the training began from, with the digests of the weights.
        files: SHA-256 of the sealed files, by name.
        seed: Seed of all randomness.
        started: Start time, UTC, ISO 8601.
        ended: End time, UTC, ISO 8601.
        duration_s: Seconds of the last attempt.
        attempts: Number of attempts.
        attempt_log: All attempts, the oldest first.
        goodput: Time of all attempts, by part.
        throughput: Speed of the steps.
        resources: CPU, memory and GPU use of the ranks.
        packs: Blocks or packs, if samples are such.
        weights: Size of the sealed weights.
        sealed_check: Repeated evaluation of a batch before sealing.
        training: End of the training.
        continued: The shorter run that the training continued, if it did.
        tracking: Links and ids of the run in each tracker.
        world: Ranks, machines and launcher.
        devices: Device of each rank.
        host: Machine of rank 0.
        software: Versions of the software, by name.
        environment: Installed packages.
        git: State of the project's checkout.
        shardline_git: State of Shardline's checkout.
        certificate: Resume certificate that is valid for the training.
        action: Record of the job.
    """

    run: str = ""
    identity: str = ""
    manifest_sha256: str | UnsetType = UNSET
    bases: list[BaseRef] | UnsetType = UNSET
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
    continued: Continued | UnsetType = UNSET
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
        """SHA-256 of the manifests that the training read, by dataset id."""
        if self.datasets:
            return {part.id: part.manifest_sha256 or "" for part in self.datasets}
        if not self.dataset or self.manifest_sha256 is UNSET:
            return {}
        return {self.dataset.id: self.manifest_sha256}


class EvaluationRef(Record, frozen=True, kw_only=True):
    """An evaluation of a run.

    Attributes:
        run: Id of the run.
        evaluation: Id of the evaluation.
    """

    run: Id
    evaluation: Name


class TakenOver(Record, frozen=True, kw_only=True):
    """Origin of an accepted evaluation.

    Attributes:
        from_: Earlier evaluation.
    """

    from_: EvaluationRef = field(name="from")


class EvaluationResult(Evaluated, frozen=True, kw_only=True):
    """evaluations/{id}.json: an evaluation of a sealed model.

    Attributes:
        files: SHA-256 of the evaluated files, by name.
        identity: Identity document of the evaluation.
        accepted: Earlier evaluation that was accepted.
        action: Record of the job.
    """

    files: dict[Name, str] | UnsetType = UNSET
    identity: IdentityDocument
    accepted: TakenOver | UnsetType = UNSET
    action: JobRecord | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject an invalid identity document."""
        check_identity(self.identity)


class PredictionResult(Record, frozen=True, kw_only=True):
    """predictions/{id}.json. Until the parts are joined, the file is {id}.parts.json.

    Attributes:
        run: Id of the run.
        rows: Number of predicted rows.
        parts: Number of files that the ranks wrote.
        classes: Names of the classes.
        skipped: Skipped rows.
        manifest_sha256: SHA-256 of the predicted dataset's manifest.
        files: SHA-256 of the model and of the Parquet file, by name.
        identity: Identity document of the prediction.
        action: Record of the job.
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
    """The sealed records of a run.

    Attributes:
        spec: `run.json`, with all settings resolved.
        provenance: Provenance of the training.
        evaluation: Evaluation of the model.
    """

    spec: ResolvedRun
    provenance: TrainingProvenance
    evaluation: EvaluationResult
