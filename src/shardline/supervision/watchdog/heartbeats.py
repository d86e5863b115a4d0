"""The sign of life of a rank, which its watchdog leaves for those of the other ranks."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shardline.supervision.heartbeat_memory import REASONS

FOLDER = "watch"
WANTED = "stacks-wanted"
# Where the last Python frame of a rank lies that waits for its peers: DDP sums gradients in backward.
_WAITS = re.compile(
    r"/(torch/(distributed/|nn/parallel/distributed\.py|autograd/graph\.py)|shardline/launch/preflight/rendezvous\.py)"
)


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a watchdog tells of its rank.

    Attributes:
        pid: of the rank's process on its host.
        count: goes up with every writing, so that nobody compares clocks of two machines.
        step: optimiser steps done.
        phase: one of `pulse.PHASES`.
        place: how far it is within the step, see `Pulse.tick`.
        ticks: times that the rank told that it goes on.
        idle_s: seconds since the last of them.
        state: of the process, as Linux has it: R runs, S sleeps, D waits for a disk, T is stopped;
            X is gone, and L has left in good order.
        waits: whether its main thread waits for other ranks, by its stack; None: there is none.
        reaches_first: whether its host can connect to the first rank's; None: not tried.
    """

    rank: int
    host: str
    pid: int
    count: int
    step: int
    phase: str
    place: int
    ticks: int
    idle_s: float
    state: str
    waits: bool | None = None
    reaches_first: bool | None = None


def sign_file(work: Path, rank: int) -> Path:
    """Return where a rank's sign of life lies."""
    return work / FOLDER / f"rank-{rank:05d}.json"


def stack_file(work: Path, rank: int) -> Path:
    """Return where a rank's stacks lie, once somebody has asked for them."""
    return work / FOLDER / f"rank-{rank:05d}.stack"


def write_sign(work: Path, sign: Sign) -> None:
    """Leave a sign; a disk that is full, or a folder that is gone, is no reason to end a training.

    Readers see the whole of it or the one before. It is not forced to disk: it need not
    outlive this machine.
    """
    path = sign_file(work, sign.rank)
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        scratch.write_text(json.dumps(asdict(sign)))
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


def read_signs(work: Path, num_ranks: int) -> Iterator[Sign]:
    """Yield the signs that can be read now."""
    for rank in range(num_ranks):
        with suppress(OSError, ValueError, TypeError):
            yield Sign(**json.loads(sign_file(work, rank).read_bytes()))


def stop_asked(work: Path) -> str | None:
    """Return the reason in the job's `stop.json`; None where there is no such file."""
    try:
        reason = json.loads((work / "stop.json").read_bytes())["reason"]
    except OSError:
        return None
    except (ValueError, TypeError, KeyError):  # being written, or by hand
        return "requested"
    return reason if reason in REASONS else "requested"


def waits_for_peers(stack: str) -> bool | None:
    """Return whether a main thread waits for other ranks, by what faulthandler wrote; None if it wrote nothing.

    The main thread comes last, its innermost frame first.
    """
    threads = re.split(r"^(?:Current thread|Thread) .*\n", stack, flags=re.MULTILINE)
    frame = re.match(r'  File "(.*)", line', threads[-1])
    return bool(_WAITS.search(frame[1])) if frame else None
