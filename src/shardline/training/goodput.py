"""Where a training's time went, and how fast its steps were once they were steady."""

import statistics
import time
from collections.abc import Mapping, Sequence

from shardline.records.attempts import Attempt
from shardline.records.measured import Goodput, StepSeconds, Throughput

# In the order in which they are drawn.
PARTS = (
    "queue", "environment", "rendezvous", "data_wait", "compute", "validation", "checkpoint", "lost",
    "other",
)  # fmt: skip
# What can be measured of a training script: the rest happens in the user's own program.
_OF_SCRIPT = ("queue", "environment", "rendezvous", "other")
WARMUP_STEPS, WARMUP_SHARE = 10, 10
MIN_STEPS = 10


class Timeline:
    """Seconds of one attempt by part: at each moment exactly one part is under way.

    Args:
        started: when the attempt's job started, seconds since the epoch. What has
            passed since is start-up.
    """

    def __init__(self, started: float) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._seconds["environment"] = max(0.0, time.time() - started)
        self.part = "environment"
        self._since = time.perf_counter()

    def switch(self, part: str) -> str:
        """Let another part begin now, and return the one that ends."""
        now = time.perf_counter()
        before, self.part = self.part, part
        self._seconds[before] += now - self._since
        self._since = now
        return before

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part up to now."""
        self.switch(self.part)
        return dict(self._seconds)

    def go_back(self, kept: Mapping[str, float]) -> None:
        """Count as lost what has been done since a state that is gone back to.

        Args:
            kept: seconds of each part up to that state, as `seconds` gave them.
        """
        now = self.seconds()
        lost = sum(now.values()) - sum(kept.values())
        self._seconds = {**kept, "lost": kept["lost"] + lost}

    def stepping_s(self) -> float:
        """Return the seconds of steps up to now: waiting for batches, and computing."""
        self.switch(self.part)
        return self._seconds["data_wait"] + self._seconds["compute"]


def kept_seconds(kept: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return, by attempt, the seconds whose work is kept."""
    return {number: sum(parts.values()) for number, parts in kept.items()}


def goodput(
    attempts: Sequence[Attempt], kept: Mapping[int, Mapping[str, float]], *, is_script: bool = False
) -> Goodput:
    """Return where the time of all attempts went.

    The time between two attempts counts nowhere. Nor does it count as lost that a resumed
    training starts up again: that stands under the parts' own names.

    Args:
        attempts: all of them, the last one just sealed.
        kept: by attempt (from 1), the seconds of each part whose work is in the
            result; the rest of an attempt's time is lost.
        is_script: whether the user's own program trained, of which no more is known than
            when it ran, and what it did again if it reads by `shardline_io`; then all that is
            not known stands under `other`.
    """
    queues = [attempt.queue_s for attempt in attempts if attempt.queue_s is not None]
    durations = [max(0.0, attempt.duration_s) for attempt in attempts]
    # the last one's is measured by a clock that nobody sets
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
    """Return how fast steps are once they are steady.

    The first steps are left out: the larger of 10 steps and a tenth of all, at
    most half of them. Validations and saves are in no reading.

    Args:
        readings: seconds of a step; each the mean of `steps_a_reading` optimiser steps.
        global_batch: samples of a step over all ranks.
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
