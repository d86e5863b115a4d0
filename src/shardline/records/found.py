"""Results of `shardline find`, handed from ranks and jobs to the command."""

from shardline.records.base import Record


class FoundRates(Record, frozen=True, kw_only=True):
    """Result of a learning rate range test.

    Attributes:
        rates: Learning rate of each step.
        losses: Training loss of each step, smoothed; the mean over all ranks.
        suggested: Rate at which the loss falls fastest; null if the loss does not fall.
        key: Dotted key of the setting; empty if the model takes its rate from elsewhere.
    """

    rates: list[float]
    losses: list[float]
    suggested: float | None
    key: str


class MeasuredBatch(Record, frozen=True, kw_only=True):
    """Memory of a few training steps with a global batch.

    Attributes:
        batch: Global batch.
        peak_bytes: Largest memory of a rank's process; null if the batch does not fit.
        limit_bytes: Memory that a rank can use; null if the batch does not fit.
        rows: Samples of an epoch; null if the batch does not fit.
        reason: Why the batch does not fit; empty if it does.
    """

    batch: int
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    rows: int | None = None
    reason: str = ""


class FoundBatch(Record, frozen=True, kw_only=True):
    """Result of a search for the largest global batch.

    Attributes:
        tried: Batches that were trained, in this order.
        largest: Largest batch that fits.
        bound: What limits the batch: `memory` or `rows`.
    """

    tried: list[MeasuredBatch]
    largest: int
    bound: str
