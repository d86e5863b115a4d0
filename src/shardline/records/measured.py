"""Measurements of a training, in its `provenance.json`."""

from msgspec import UNSET, UnsetType

from shardline.records.base import Record

Number = int | float  # integers stay integers


class Goodput(Record, frozen=True, kw_only=True):
    """Time of all attempts, by part.

    Attributes:
        elapsed_s: Seconds of all attempts, each from submission to end.
        parts: Seconds by part; null if unknown. The sum is `elapsed_s`.
        share: Share of the time that was spent computing; null for a training script.
        action: In `report.json`, id of the training's record.
    """

    elapsed_s: Number
    parts: dict[str, Number | None]
    share: Number | None = None
    action: str | UnsetType = UNSET


class StepSeconds(Record, frozen=True, kw_only=True):
    """Seconds of a step.

    Attributes:
        median: Median.
        p10: 10th percentile.
        p90: 90th percentile.
    """

    median: Number
    p10: Number
    p90: Number


class Throughput(Record, frozen=True, kw_only=True):
    """Speed of the steps after the warm-up.

    Attributes:
        step_s: Seconds of a step; null for fewer than 10 measured steps.
        samples_per_s: Samples per second over all ranks; null for fewer than 10 measured steps.
        steps: Number of measured steps.
        warmup_steps: Number of steps before the measurement.
        global_batch: Samples of a step over all ranks.
        ranks: Number of ranks.
        action: In `report.json`, id of the training's record.
    """

    step_s: StepSeconds | None = None
    samples_per_s: Number | None = None
    steps: int
    warmup_steps: int
    global_batch: int
    ranks: int
    action: str | UnsetType = UNSET


class UsageCurve(Record, frozen=True, kw_only=True):
    """CPU, memory and GPU use of a rank over time, one list per quantity.

    See `supervision.resource_usage.MachinePoint`. A quantity that was never known is absent.

    Attributes:
        attempt: Number of the attempt, from 1.
        s: Seconds of running, without the time between attempts.
        rss_bytes: Resident memory of the rank and its child processes.
        cpu_percent: CPU use; 100 is one core.
        gpu_bytes: GPU memory that PyTorch holds; null if unknown.
        gpu_percent: GPU utilisation, by NVML; null if unknown.
    """

    attempt: list[int]
    s: list[Number]
    rss_bytes: list[int]
    cpu_percent: list[Number]
    gpu_bytes: list[int | None] | UnsetType = UNSET
    gpu_percent: list[Number | None] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject lists of different lengths."""
        columns = (
            self.attempt,
            self.s,
            self.rss_bytes,
            self.cpu_percent,
            self.gpu_bytes,
            self.gpu_percent,
        )
        if len({len(column) for column in columns if column is not UNSET}) > 1:
            raise ValueError("columns of different lengths")


class RankUsage(Record, frozen=True, kw_only=True):
    """CPU, memory and GPU use of a rank and its child processes.

    Attributes:
        rank: Global rank.
        host: Name of the machine.
        peak_rss_bytes: Peak memory of the largest process.
        cpu_s: CPU seconds, user and system.
        peak_gpu_bytes: Peak memory that PyTorch allocated; null without a GPU, or for a training script.
        curve: Use over time, if the rank ran long enough.
        data_wait_s: Seconds that the steps of the last attempt waited for batches.
        compute_s: Seconds that these steps computed.
    """

    rank: int
    host: str
    peak_rss_bytes: int
    cpu_s: Number
    peak_gpu_bytes: int | None = None
    curve: UsageCurve | UnsetType = UNSET
    data_wait_s: Number | UnsetType = UNSET
    compute_s: Number | UnsetType = UNSET


class Resources(Record, frozen=True, kw_only=True):
    """Machine of rank 0, and the use of all ranks.

    Attributes:
        num_cpus: Number of CPUs that rank 0 may use.
        memory_bytes: Memory of the machine.
        ranks: Use of each rank.
        action: In `report.json`, id of the training's record.
    """

    num_cpus: int
    memory_bytes: int
    ranks: list[RankUsage]
    action: str | UnsetType = UNSET


class Weights(Record, frozen=True, kw_only=True):
    """Size of the sealed weights.

    Attributes:
        largest: Largest absolute weight; null if no tensor is known to be a parameter.
    """

    largest: Number | None


class SealedCheck(Record, frozen=True, kw_only=True):
    """Repeated evaluation of a batch by a fresh model with the sealed weights.

    Attributes:
        is_repeated: Whether the batch was evaluated again.
        reason: Reason why the batch was not evaluated again.
        step: Step of the weights.
        tolerance: Allowed relative difference; 0 means bit-identical.
        differences: Sentence for each value that differs.
    """

    is_repeated: bool
    reason: str | UnsetType = UNSET
    step: int | UnsetType = UNSET
    tolerance: Number | UnsetType = UNSET
    differences: list[str] | UnsetType = UNSET


class ConsumedSteps(Record, frozen=True, kw_only=True):
    """Number of steps of a training.

    Attributes:
        steps: Steps done.
        planned: Steps of all planned epochs.
        reasons: Reasons for fewer steps than planned.
    """

    steps: int
    planned: int
    reasons: list[str]


class Trouble(Record, frozen=True, kw_only=True):
    """The first step at which a training diverged.

    Attributes:
        step: Optimiser step with the bad loss, from 1.
        epoch: Epoch of the step, from 0.
        rank: Rank with the worst loss.
        cause: Cause, such as `the training loss is NaN`.
        lr: Learning rate of the step; null if no optimiser recorded it.
    """

    step: int
    epoch: int
    rank: int
    cause: str
    lr: float | None

    @property
    def place(self) -> str:
        """Cause, step, epoch, rank and learning rate, for messages."""
        lr = "" if self.lr is None else f", lr {self.lr:.6g}"
        return f"{self.cause} at step {self.step} (epoch {self.epoch}, rank {self.rank}{lr})"


class Intervention(Trouble, frozen=True, kw_only=True):
    """Intervention after a divergence.

    Attributes:
        first: First changed step; the training goes back to before this step.
        action: `skip` leaves out the updates of steps `first` to `step`. `lower` multiplies the
            learning rate by `factor` from step `first` on.
        factor: Factor of the learning rate; 1 for `skip`.
    """

    first: int
    action: str
    factor: float

    def __str__(self) -> str:
        if self.action == "skip":
            steps = (
                f"step {self.step}"
                if self.first == self.step
                else f"steps {self.first} to {self.step}"
            )
            return f"{self.place}: left out the update of {steps}"
        return f"{self.place}: multiplied the learning rate by {self.factor:g} from step {self.first} on"


class Interventions(Record, frozen=True, kw_only=True):
    """divergence.json in the store: interventions of a training so far.

    Attributes:
        identity: Digest of the run's identity document.
        interventions: Interventions, in order.
    """

    identity: str
    interventions: list[Intervention]
