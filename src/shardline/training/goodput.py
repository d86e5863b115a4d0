"""Measure where the time of a training went, and how fast its steady steps were."""

import statistics
import time
from collections.abc import Mapping, Sequence

from shardline.records.attempts import Attempt
from shardline.records.measured import Goodput, StepSeconds, Throughput

# In the order of the report's figure.
PARTS = (
    "queue", "environment", "rendezvous", "data_wait", "compute", "validation", "checkpoint", "lost",
    "other",
)  # fmt: skip
# Parts that are measured for a training script, which is the user's own program.
_OF_SCRIPT = ("queue", "environment", "rendezvous", "other")
WARMUP_STEPS, WARMUP_SHARE = 10, 10
MIN_STEPS = 10


class Timeline:
    """Seconds of one attempt by part; exactly one part is active at any time.

    Args:
        started: Start of the attempt's job in seconds since the epoch. The time since
            then counts as `environment`.
    """

    def __init__(self, started: float) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._seconds["environment"] = max(0.0, time.time() - started)
        self.part = "environment"
        self._since = time.perf_counter()

    def switch(self, part: str) -> str:
        """Start another part now, and return the part that ends."""
        now = time.perf_counter()
        before, self.part = self.part, part
        self._seconds[before] += now - self._since
        self._since = now
        return before

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part so far."""
        self.switch(self.part)
        return dict(self._seconds)

    def go_back(self, kept: Mapping[str, float]) -> None:
        """Count as lost all time since a state to which the training goes back.

        Args:
            kept: Result of `seconds` when the state was saved.
        """
        now = self.seconds()
        lost = sum(now.values()) - sum(kept.values())
        self._seconds = {**kept, "lost": kept["lost"] + lost}

    def stepping_s(self) -> float:
        """Return the seconds of steps so far: waiting for batches, and computing."""
        self.switch(self.part)
        return self._seconds["data_wait"] + self._seconds["compute"]


def kept_seconds(kept: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return the seconds of kept work by attempt."""
    return {number: sum(parts.values()) for number, parts in kept.items()}


def goodput(
    attempts: Sequence[Attempt], kept: Mapping[int, Mapping[str, float]], *, is_script: bool = False
) -> Goodput:
    """Return where the time of all attempts went.

    The time between two attempts is not counted. The start-up of a resumed training is not lost
    time: it counts under its own parts.

    Args:
        attempts: All attempts; the last one has just been sealed.
        kept: By attempt (from 1), the seconds of each part whose work is in the result. The
            rest of an attempt's time is lost.
        is_script: Whether a training script trained. Its run time counts as `other`, except for
            work that `shardline_io` reports as lost.
    """
    queues = [attempt.queue_s for attempt in attempts if attempt.queue_s is not None]
    durations = [max(0.0, attempt.duration_s) for attempt in attempts]
    # the last attempt was measured with a monotonic clock
    durations[-1] = kept_seconds(kept).get(len(attempts), durations[-1])
    elapsed = sum(durations) + sum(queues)
    parts: dict[str, float | None] = {
        part: sum(seconds.get(part, 0.0) for seconds in kept.values()) for part in PARTS
    }
    parts["queue"] = sum(queues) if queues else None
    if is_script:
        parts = {part: parts[part] if part in _OF_SCRIPT else None for part in PARTS}
        if attempts[-1].resumed_step is not None:  # reported by `shardline_io`
            parts["lost"] = sum(attempt.lost_s or 0.0 for attempt in attempts[:-1])
        known = sum(value or 0.0 for part, value in parts.items() if part != "other")
        parts["other"] = max(0.0, elapsed - known)
    else:
        parts["lost"] = (parts["lost"] or 0.0) + sum(
            max(0.0, duration - kept_seconds(kept).get(number, 0.0))
            for number, duration in enumerate(durations[:-1], 1)
        )
    return Goodput(
        elapsed_s=round(elapsed, 3),
        parts={name: None if s is None else round(s, 3) for name, s in parts.items()},
        share=None if is_script or not elapsed else round((parts["compute"] or 0) / elapsed, 4),
    )


def throughput(
    readings: Sequence[float], steps_a_reading: int, *, global_batch: int, ranks: int
) -> Throughput:
    """Return the speed of the steady steps.

    The first steps are dropped: 10 steps or a tenth of all steps, whichever is more, but at most
    half of them. Readings contain no validations and saves.

    Args:
        readings: Seconds of a step; each is the mean of `steps_a_reading` optimiser steps.
        steps_a_reading: Optimiser steps of a reading.
        global_batch: Samples of a step over all ranks.
        ranks: Number of ranks.
    """
    num_steps = len(readings) * steps_a_reading
    dropped = min(max(WARMUP_STEPS, num_steps // WARMUP_SHARE), num_steps // 2)
    first = -(-dropped // steps_a_reading)
    steady = readings[first:]
    steps = len(steady) * steps_a_reading
    step_s = _quantiles(steady) if steps >= MIN_STEPS else None
    return Throughput(
        step_s=step_s,
        samples_per_s=round(global_batch / step_s.median, 3) if step_s else None,
        steps=steps,
        warmup_steps=first * steps_a_reading,
        global_batch=global_batch,
        ranks=ranks,
    )


def _quantiles(values: Sequence[float]) -> StepSeconds:
    tenths = statistics.quantiles(
        [*values] * (1 if len(values) > 1 else 2), n=10, method="inclusive"
    )
    numbers = {"median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1]}
    return StepSeconds(**{name: float(f"{value:.6g}") for name, value in numbers.items()})
