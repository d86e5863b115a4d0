"""What a training measured of itself, in its `provenance.json`."""

from msgspec import UNSET, UnsetType

from shardline.records.base import Record

Number = int | float  # as it was written: a whole one stays whole


class Goodput(Record, frozen=True, kw_only=True):
    """Where the time of all attempts went.

    Attributes:
        elapsed_s: of all attempts, each from its submission to its end.
        parts: seconds by part, None where unknown; their sum is `elapsed_s`.
        share: of computing in all; None of a training script.
    """

    elapsed_s: Number
    parts: dict[str, Number | None]
    share: Number | None = None


class StepSeconds(Record, frozen=True, kw_only=True):
    """Seconds of a step."""

    median: Number
    p10: Number
    p90: Number


class Throughput(Record, frozen=True, kw_only=True):
    """How fast steps are once they are steady.

    Attributes:
        step_s: None where fewer than 10 steps were measured, as is `samples_per_s`.
        samples_per_s: of all ranks together.
        steps: that were measured.
        warmup_steps: that were left out.
        global_batch: samples of a step over all ranks.
    """

    step_s: StepSeconds | None = None
    samples_per_s: Number | None = None
    steps: int
    warmup_steps: int
    global_batch: int
    ranks: int


class UsageCurve(Record, frozen=True, kw_only=True):
    """What a rank used over time, by column, see `supervision.resource_usage.MachinePoint`.

    A column that was never known is absent.
    """

    attempt: list[int]
    s: list[Number]
    rss_bytes: list[int]
    cpu_percent: list[Number]
    gpu_bytes: list[int | None] | UnsetType = UNSET
    gpu_percent: list[Number | None] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse columns of different lengths."""
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
    """What a rank used up to its end, with the programs that it ran.

    Attributes:
        peak_rss_bytes: of the largest process.
        cpu_s: user and system.
        peak_gpu_bytes: as PyTorch allocated them; None without a GPU, or in a training script.
        curve: of a rank that ran long enough.
        data_wait_s: what the steps of the last attempt waited for batches.
        compute_s: what they computed.
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
    """The CPUs that rank 0 may use, its machine's memory, and what each rank used."""

    num_cpus: int
    memory_bytes: int
    ranks: list[RankUsage]


class Weights(Record, frozen=True, kw_only=True):
    """Of the sealed parameters.

    Attributes:
        largest: in absolute value; None where no tensor is known to be a parameter.
    """

    largest: Number | None


class SealedCheck(Record, frozen=True, kw_only=True):
    """What came of a batch that a fresh model has evaluated again.

    Attributes:
        reason: why it was not.
        tolerance: relative; 0: all bits.
        differences: a sentence for each value.
    """

    is_repeated: bool
    reason: str | UnsetType = UNSET
    step: int | UnsetType = UNSET
    tolerance: Number | UnsetType = UNSET
    differences: list[str] | UnsetType = UNSET


class ConsumedSteps(Record, frozen=True, kw_only=True):
    """The steps that a training took, those of all epochs, and why there are fewer."""

    steps: int
    planned: int
    reasons: list[str]


class Trouble(Record, frozen=True, kw_only=True):
    """The first step at which a training is known to be bad.

    Attributes:
        step: optimiser step, from 1, whose loss is bad.
        epoch: from 0.
        rank: where it was seen, where it was worst.
        cause: such as `the training loss is NaN`.
        lr: learning rate of the step; None where no optimiser has recorded it.
    """

    step: int
    epoch: int
    rank: int
    cause: str
    lr: float | None

    @property
    def place(self) -> str:
        """Where it was seen, as messages tell it."""
        lr = "" if self.lr is None else f", lr {self.lr:.6g}"
        return f"{self.cause} at step {self.step} (epoch {self.epoch}, rank {self.rank}{lr})"


class Intervention(Trouble, frozen=True, kw_only=True):
    """What was done about a trouble.

    Attributes:
        first: the first step that is done in another way; the training goes back before it.
        action: `skip` leaves out the updates of steps first..step, `lower` multiplies the
            learning rate by `factor` from `first` on.
        factor: of the learning rate; 1 under `skip`.
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
    """divergence.json in a run's folder of the store: what was done so far, of the run of an identity."""

    identity: str
    interventions: list[Intervention]
