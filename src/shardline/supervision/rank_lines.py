"""What a launcher's output reports of a training: step, metrics, rate and the time left."""

import math
import re
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from shardline.core.job_progress import job_progress

_PROGRESS = re.compile(r"^progress step=(?P<step>\d+)/(?P<total>\d+) (?P<rest>.*)$")
_EPOCH = re.compile(r"(\d+)/(\d+)")
_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[rest]}"),
    TimeRemainingColumn(),
)
_MOST = 20  # metrics; a display has place for two


class RankLines:
    """Reports each line `progress step=5/100 epoch=1/20 loss=0.3`, of a shipped training or a user's own script.

    Args:
        title: the run's name.
        monitor: the metric that comes right after the loss.
        clock: gives seconds.
    """

    def __init__(
        self, title: str, monitor: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._monitor, self._clock = title, monitor, clock
        self._begin: tuple[int, float] | None = None
        self._metrics: dict[str, float] = {}
        # without a terminal nothing is written: its reader may have exited while the job runs
        self._bar = Progress(
            *_COLUMNS, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        )
        self._task = self._bar.add_task(title, total=None, rest="")

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        if not self._bar.disable:  # else it would print an empty line
            self._bar.stop()

    def __call__(self, line: str) -> None:
        """Report what a line holds, if it is one of progress, and show it as a bar on a terminal."""
        if not (match := _PROGRESS.match(line)):
            return
        step, total = int(match["step"]), int(match["total"])
        self._bar.update(self._task, completed=step, total=total, rest=match["rest"])
        fields = dict(word.split("=", 1) for word in match["rest"].split() if "=" in word)
        epoch = _EPOCH.fullmatch(fields.pop("epoch", ""))
        self._metrics |= {
            name: value for name, text in fields.items() if (value := _number(text)) is not None
        }
        rate = self._rate(step)
        job_progress.report(
            title=self._title,
            step=step,
            steps=total,
            epoch=int(epoch[1]) if epoch else None,
            epochs=int(epoch[2]) if epoch else None,
            metrics={
                name: value if math.isfinite(value) else None for name, value in self._ordered()
            },
            rate=rate,
            left_s=max(total - step, 0) / rate if rate else None,
        )

    def _rate(self, step: int) -> float | None:
        """Return steps in a second since the first line of this attempt, validations included."""
        now = self._clock()
        if self._begin is None:
            self._begin = step, now
        first, since = self._begin
        return (step - first) / (now - since) if step > first and now > since else None

    def _ordered(self) -> list[tuple[str, float]]:
        known = self._metrics
        losses = [name for name in known if "loss" in name and not name.startswith("val")]
        first = [*losses[:1], *([self._monitor] if self._monitor in known else [])]
        names = [*dict.fromkeys(first), *(name for name in known if name not in first)]
        return [(name, known[name]) for name in names[:_MOST]]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
