"""Diagnosis: which rank a hung job waits for, and how a rank exited without a report."""

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardline.core.errors import DataError
from shardline.records.failures import Failure
from shardline.supervision.failure_records import read_failures, report_failure
from shardline.supervision.watchdog.heartbeats import ENDING, RankHeartbeat
from shardline.supervision.watchdog.proc import exit_code_of, signal_name

_SHOWN = 4  # ranks that a message names
_ON_DISK = "its process waits for a disk or a network file system (state D)"
# Messages of a rank that lost its peer. They may be recorded before the message of the peer itself.
_LOST_PEER = re.compile(
    r"by peer|Broken pipe|remote process|Connection reset|Dist(Backend|Network|Store)Error"
)
# Signals that the launcher sends to the other ranks.
_ORDERED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The ranks that the other ranks wait for.

    Attributes:
        suspects: heartbeats of these ranks; of all ranks if no evidence points to some of them.
        symptom: description of the evidence, as part of a sentence.
    """

    suspects: tuple[RankHeartbeat, ...]
    symptom: str


def diagnose_hang(before: Sequence[RankHeartbeat], after: Sequence[RankHeartbeat]) -> Diagnosis:
    """Find the ranks that a hung job waits for; the strongest evidence decides.

    Args:
        before: heartbeats of the ranks when the hang was noticed, by rank.
        after: heartbeats a while later; each watchdog has written several in between. A rank
            without any heartbeat keeps its files where this rank cannot read them.
    """
    earlier = {beat.rank: beat for beat in before}
    by_evidence: tuple[tuple[str, Callable[[RankHeartbeat], bool]], ...] = (
        (
            "its host sends no heartbeat: it is down, or cut off from the store",
            lambda beat: beat.state not in "LXZ" and _is_silent(earlier, beat),
        ),
        ("its process is stopped (state T)", lambda beat: beat.state in ("T", "t")),
        ("its process is gone", lambda beat: beat.state in ("X", "Z")),
    )
    for symptom, holds in by_evidence:
        if found := [beat for beat in after if holds(beat)]:
            return Diagnosis(suspects=tuple(found), symptom=symptom)
    stuck = [beat for beat in after if beat.state != "L" and not _makes_progress(earlier, beat)]
    if len(stuck) == 1:
        return Diagnosis(suspects=tuple(stuck), symptom=_how(stuck[0], len(after)))
    return (
        _not_waiting(stuck)
        or _cut_off(stuck)
        or _behind(stuck)
        or Diagnosis(suspects=tuple(stuck or after), symptom=_all_wait(stuck))
    )


def _is_silent(earlier: Mapping[int, RankHeartbeat], beat: RankHeartbeat) -> bool:
    return beat.rank in earlier and beat.count == earlier[beat.rank].count


def _makes_progress(earlier: Mapping[int, RankHeartbeat], beat: RankHeartbeat) -> bool:
    return beat.rank in earlier and beat.ticks != earlier[beat.rank].ticks


def _how(beat: RankHeartbeat, num_ranks: int) -> str:
    if beat.state == "D":
        return _ON_DISK
    if num_ranks == 1:
        return "it computes, or waits for something other than a rank"
    return "the other ranks make progress" if beat.waits is None else _waiting(beat.waits)


def _waiting(waits: bool) -> str:
    return "it waits for other ranks" if waits else "it runs its own code"


def _not_waiting(stuck: Sequence[RankHeartbeat]) -> Diagnosis | None:
    """Find the ranks that run their own code while others wait in a collective operation."""
    own = [beat for beat in stuck if beat.waits is False]
    if not own or not any(beat.waits for beat in stuck):
        return None
    last = min((beat.step, beat.place) for beat in own)
    found = tuple(beat for beat in own if (beat.step, beat.place) == last)
    on_disk = all(beat.state == "D" for beat in found)
    return Diagnosis(
        suspects=found,
        symptom=_ON_DISK if on_disk else "it runs its own code while other ranks wait",
    )


def _cut_off(stuck: Sequence[RankHeartbeat]) -> Diagnosis | None:
    found = [beat for beat in stuck if beat.reaches_first is False]
    if not found:
        return None
    # ranks of the first host are not probed
    first = tuple(beat for beat in stuck if beat.reaches_first is None)
    hosts, cut_off = ({beat.host for beat in heartbeats} for heartbeats in (stuck, found))
    if first and len(cut_off) > 1 and cut_off == hosts - {first[0].host}:
        return Diagnosis(suspects=first, symptom="no other host can reach it over the network")
    return Diagnosis(
        suspects=tuple(found), symptom="it cannot reach the first rank's host over the network"
    )


def _behind(stuck: Sequence[RankHeartbeat]) -> Diagnosis | None:
    """Find the ranks that are behind the others, if their progress can be compared."""
    last, first = (pick((beat.step for beat in stuck), default=0) for pick in (min, max))
    found = [beat for beat in stuck if beat.step == last]
    if last == first:
        if len({beat.phase for beat in stuck}) > 1:
            return None
        place = min((beat.place for beat in stuck), default=0)
        found = [beat for beat in stuck if beat.place == place]
    if len(found) == len(stuck):
        return None
    return Diagnosis(suspects=tuple(found), symptom="it is behind the other ranks")


def _all_wait(stuck: Sequence[RankHeartbeat]) -> str:
    if stuck and all(beat.waits for beat in stuck):
        return "all wait in a collective operation; their stacks should be the same"
    return "no evidence points to a single rank; compare the ranks' stacks"


def hung_message(diagnosis: Diagnosis, *, idle_s: float, timeout_s: float, stacks: str) -> str:
    """Return a sentence that names the suspects of a hang and the remedy.

    Args:
        idle_s: seconds without progress.
        timeout_s: `runtime.hang_timeout_s`.
        stacks: path pattern of all ranks' stacks.
    """
    shown = [f"rank {beat.rank} on {beat.host}" for beat in diagnosis.suspects[:_SHOWN]]
    more = [f"{len(diagnosis.suspects) - _SHOWN} more"] if len(diagnosis.suspects) > _SHOWN else []
    first = diagnosis.suspects[0]
    many = len(diagnosis.suspects) > 1
    also = ", or call shardline_io.alive() meanwhile," if first.phase == ENDING else ""
    return (
        f"{', '.join(shown + more)} {'hang' if many else 'hangs'} at step {first.step} ({first.phase}), "
        f"no heartbeat for {idle_s:.0f} s: {diagnosis.symptom}; stacks of the ranks: {stacks}; run the same command "
        f"again to resume, and raise runtime.hang_timeout_s={timeout_s:g}{also} if the step was just slow"
    )


def report_exit(work: Path, heartbeat: RankHeartbeat, kills: int) -> None:
    """Record how a rank ended that could not report it, unless a cause is already recorded.

    Args:
        work: the run's folder in the store.
        heartbeat: the rank's last heartbeat.
        kills: number of processes that the kernel has just killed for lack of memory.
    """
    code = exit_code_of(heartbeat.pid)
    if code is None and kills:
        code = -signal.SIGKILL
    with suppress(DataError, OSError):
        if (code is not None and -code in _ORDERED) or any(map(_is_cause, read_failures(work))):
            return
        report_failure(
            work,
            exit_message(heartbeat, code, kills),
            rank=heartbeat.rank,
            log=None,
            code=code if code and code > 0 else 128 - (code or 0),
            step=heartbeat.step,
        )


def exit_message(heartbeat: RankHeartbeat, code: int | None, kills: int) -> str:
    """Return a sentence about a rank's exit.

    Args:
        code: the rank's exit code, negative for a signal; None if unknown.
        kills: number of out-of-memory kills, see `report_exit`.
    """
    who = f"rank {heartbeat.rank} on {heartbeat.host}"
    where = f"at step {heartbeat.step} ({heartbeat.phase})"
    if code is not None and code >= 0:
        return f"{who} exited with code {code} {where} without an error message; see its log"
    how = "a signal" if code is None else f"a signal ({signal_name(-code)})"
    if kills and code == -signal.SIGKILL:
        return (
            f"{who} was killed by {how} {where}, when the kernel killed a process for lack of memory; request "
            "more memory, or lower data.workers or the batch"
        )
    return (
        f"{who} was killed by {how} {where}: by hand, out of memory, or by a fault in compiled code; "
        "run the same command again to resume"
    )


def _is_cause(failure: Failure) -> bool:
    """Return whether a failure may have caused others; the loss of a peer has not."""
    return not _LOST_PEER.search(failure.sentence) or failure.kind != "failed" or failure.is_killed
