"""Progress of a training, read from its launcher's output: step, metrics, rate and time left."""

import math
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shardline.core.job_progress import job_progress
from shardline.core.metric_names import split_of

if TYPE_CHECKING:
    from rich.progress import Progress

_FIELD = re.compile(r"(\S.*?)=([^\s=]+)(?=\s|$)")  # a name may contain spaces, as `loss (train)`
_PROGRESS = re.compile(r"^progress step=(?P<step>\d+)/(?P<total>\d+) (?P<rest>.*)$")
_EPOCH = re.compile(r"(\d+)/(\d+)")
_MOST = 20  # metrics per report; the display shows two


class RankLines:
    """Reports lines such as `progress step=5/100 epoch=1/20 loss=0.3` of a training or a user's script.

    Args:
        title: name of the run.
        monitor: metric that is listed right after the loss.
        clock: returns seconds.
    """

    def __init__(
        self, title: str, monitor: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._monitor, self._clock = title, monitor, clock
        self._begin: tuple[int, float] | None = None
        self._metrics: dict[str, float] = {}
        # not without a terminal: the reader of standard error may exit while the job runs
        self._bar = _bar(title) if sys.stderr.isatty() else None

    def __enter__(self) -> None:
        if self._bar:
            self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, line: str) -> None:
        """Report a progress line, and show it as a bar on a terminal; ignore other lines."""
        if not (match := _PROGRESS.match(line)):
            return
        step, total = int(match["step"]), int(match["total"])
        if self._bar:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=step, total=total, rest=match["rest"])
        fields = dict(_FIELD.findall(match["rest"]))
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
        """Return steps per second since the first line of this attempt, validations included."""
        now = self._clock()
        if self._begin is None:
            self._begin = step, now
        first, since = self._begin
        return (step - first) / (now - since) if step > first and now > since else None

    def _ordered(self) -> list[tuple[str, float]]:
        known = self._metrics
        losses = [name for name in known if "loss" in name and split_of(name) != "val"]
        first = [*losses[:1], *([self._monitor] if self._monitor in known else [])]
        names = [*dict.fromkeys(first), *(name for name in known if name not in first)]
        return [(name, known[name]) for name in names[:_MOST]]


def _bar(title: str) -> "Progress":
    from rich.console import Console  # imported in 0.05 s, and most jobs have no terminal
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rest]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(title, total=None, rest="")
    return bar


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
