"""`provenance.json` of a training."""

from msgspec import UNSET, UnsetType, field

from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.datasets import Name
from shardline.records.environments import Installed, ScriptInstalled
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
from shardline.records.origins import BaseRef, CombinedRuns, Continued, LoadedWeights, OnDatasets
from shardline.records.ranks import RanksOfTraining

# links and ids by tracker and name; None if a tracker has not reported them
Places = dict[str, dict[str, str | None] | None]


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
        unsaved: Values of the model's code that had changed before the training resumed, and that began again, since
            no training checkpoint contains them.
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
    unsaved: list[str] | UnsetType = UNSET


class TrainingProvenance(OnDatasets, frozen=True, kw_only=True):
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
