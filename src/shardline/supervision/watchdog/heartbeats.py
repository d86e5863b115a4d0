"""Heartbeats: the state of each rank, which its watchdog writes for the watchdogs of other ranks."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shardline.core.files import renamed_when_complete
from shardline_io.heartbeat_memory import REASONS

FOLDER = "watch"
WANTED = "stacks-wanted"
# Phases of a user's script: before its first batch, and after its last batch.
UNWATCHED, ENDING = "script", "end"
# Innermost Python frame of a rank that waits for its peers. DDP sums gradients in the backward pass.
_WAITS = re.compile(
    r"/(torch/(distributed/|nn/parallel/distributed\.py|autograd/graph\.py)|shardline/launch/preflight/rendezvous\.py)"
)


@dataclass(frozen=True, kw_only=True)
class RankHeartbeat:
    """State of a rank, as its watchdog sees it.

    Attributes:
        pid: pid of the rank's process on its host.
        count: increases with every write, so that the clocks of machines need not agree.
        step: optimiser steps done.
        phase: one of `heartbeat_memory.PHASES`.
        place: position within the step, see `HeartbeatMemory.tick`.
        ticks: number of ticks of the rank.
        idle_s: seconds since the last tick.
        state: state of the process on Linux: R runs, S sleeps, D waits for a disk, T is stopped.
            In addition, X means gone, and L exited normally.
        waits: whether its main thread waits for other ranks, by its stack; None: no stack.
        reaches_first: whether its host can connect to the first rank's host; None: not tried.
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


def heartbeat_file(work: Path, rank: int) -> Path:
    """Return the path of a rank's heartbeat file."""
    return work / FOLDER / f"rank-{rank:05d}.json"


def stack_file(work: Path, rank: int) -> Path:
    """Return the path of a rank's stacks, which exist after a request."""
    return work / FOLDER / f"rank-{rank:05d}.stack"


def write_heartbeat(work: Path, heartbeat: RankHeartbeat) -> None:
    """Write a heartbeat; errors such as a full disk are ignored.

    Readers see either this heartbeat or the previous one. The file is not synced to disk, since
    it need not outlive this machine.
    """
    path = heartbeat_file(work, heartbeat.rank)
    with suppress(OSError), renamed_when_complete(path) as scratch:
        scratch.write_text(json.dumps(asdict(heartbeat)))


def read_heartbeats(work: Path, num_ranks: int) -> Iterator[RankHeartbeat]:
    """Yield the readable heartbeats."""
    for rank in range(num_ranks):
        with suppress(OSError, ValueError, TypeError):
            yield RankHeartbeat(**json.loads(heartbeat_file(work, rank).read_bytes()))


def any_works(
    heartbeats: Iterable[RankHeartbeat], before: Mapping[int, int], *, limit_s: float
) -> bool:
    """Return whether any of these ranks works, such as a rank that evaluates while the others wait.

    Args:
        heartbeats: current heartbeats of the ranks.
        before: earlier heartbeat count of each rank; it stays the same if the host is lost.
        limit_s: seconds without a tick after which a rank counts as not working.
    """
    watched = [beat for beat in heartbeats if beat.phase != UNWATCHED and beat.state not in "LXZ"]
    return any(beat.idle_s < limit_s and beat.count != before.get(beat.rank) for beat in watched)


def requested_stop(work: Path) -> str | None:
    """Return the reason in the job's `stop.json`; None without that file."""
    try:
        reason = json.loads((work / "stop.json").read_bytes())["reason"]
    except OSError:
        return None
    except (ValueError, TypeError, KeyError):  # incomplete, or edited by hand
        return "requested"
    return reason if reason in REASONS else "requested"


def has_main_thread(stack: bytes) -> bool:
    """Return whether faulthandler's output contains the main thread, its last, or reached its thread limit."""
    return b"Current thread" in stack or stack.endswith(b"\n...\n")


def waits_for_peers(stack: str) -> bool | None:
    """Return whether faulthandler's output shows a main thread that waits for other ranks; None if empty.

    The main thread comes last, with its innermost frame first.
    """
    threads = re.split(r"^(?:Current thread|Thread) .*\n", stack, flags=re.MULTILINE)
    frame = re.match(r'  File "(.*)", line', threads[-1])
    return bool(_WAITS.search(frame[1])) if frame else None
