"""Progress of running trainings."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.config.plans import RunPlan
from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.supervision.attempt_log import read_attempts, tail_of
from shardline.supervision.watchdog.heartbeats import heartbeat_file

# heartbeats come at least every 5 s; a network disk may show them late
_FRESH_S = 60.0
_PROGRESS = re.compile(rb"^progress step=(\d+)/(\d+) ", re.MULTILINE)
_ENDED = ("X", "L")  # values of `state` in a heartbeat


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a training.

    Attributes:
        step: Optimiser steps done.
        steps: Steps of the whole training; None if unknown.
        steps_per_s: Steps per second of this attempt; None before the first metrics.
        left_s: Seconds until the last step at this rate; None if unknown.
    """

    step: int
    steps: int | None = None
    steps_per_s: float | None = None
    left_s: float | None = None


def progress_of(run: RunPlan, *, now: float | None = None) -> Progress | None:
    """Return the progress of a run's training; None without a recent heartbeat.

    Args:
        now: Seconds since the epoch; None for the present time.
    """
    work = run.layout.work(run.id)
    heartbeat = fresh_heartbeat(work, time.time() if now is None else now)
    if heartbeat is None:
        return None
    step = int(heartbeat["step"])
    found = _PROGRESS.findall(tail_of(run.layout.log("train", run.id)))
    steps = int(found[-1][1]) if found else None
    rate = _rate(tail_of(work / "metrics.jsonl"))
    left = (steps - step) / rate if steps and rate and steps >= step else None
    return Progress(step=step, steps=steps, steps_per_s=rate, left_s=left)


def fresh_heartbeat(work: Path, now: float) -> Mapping[str, Any] | None:
    """Return the heartbeat of rank 0, or None if it is old or the attempt has ended."""
    path = heartbeat_file(work, 0)
    with suppress(OSError, DataError, KeyError, TypeError, ValueError):
        if now - path.stat().st_mtime > _FRESH_S or read_attempts(work)[-1].end is not None:
            return None
        heartbeat: Mapping[str, Any] = read_json(path, remedy="")
        int(heartbeat["step"])
        return None if heartbeat["state"] in _ENDED else heartbeat
    return None


def _rate(lines: bytes) -> float | None:
    """Return the steps per second between the first and the last line of metrics."""
    places = re.findall(rb'"step": ?(\d+)[^\n]*?"wall_s": ?([\d.]+)', lines)
    if not places:
        return None
    steps = int(places[-1][0]) - int(places[0][0])
    seconds = float(places[-1][1]) - float(places[0][1])
    return steps / seconds if steps > 0 and seconds > 0 else None
