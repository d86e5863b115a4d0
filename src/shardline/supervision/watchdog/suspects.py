"""Which rank a hanging job waits for, by what the watchdogs of all ranks tell."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardline.supervision.watchdog.heartbeats import Sign

_SHOWN = 4  # ranks that are named; a hang without a culprit has all of them
_ON_DISK = "its process waits for a disk or a network file system (state D)"


@dataclass(frozen=True, kw_only=True)
class Guilty:
    """The ranks that the others wait for.

    Attributes:
        signs: of each of them; of all ranks where nothing tells them apart.
        looks: what it looks like.
    """

    signs: tuple[Sign, ...]
    looks: str


def find_guilty(before: Sequence[Sign], after: Sequence[Sign]) -> Guilty:
    """Tell whom the ranks of a hanging job wait for; the surest evidence decides.

    Args:
        before: signs of the ranks when the hang was noticed, by rank.
        after: the same ranks' a while later, in which each watchdog writes several times. A rank
            of which no sign was ever seen keeps its files where this one cannot read them.
    """
    earlier = {sign.rank: sign for sign in before}
    by_evidence: tuple[tuple[str, Callable[[Sign], bool]], ...] = (
        (
            "its host gives no sign of life: it is down, or cut off from the store",
            lambda sign: sign.state not in "LXZ" and _is_silent(earlier, sign),
        ),
        ("its process is stopped (state T)", lambda sign: sign.state in ("T", "t")),
        ("its process is gone", lambda sign: sign.state in ("X", "Z")),
    )
    for looks, holds in by_evidence:
        if found := [sign for sign in after if holds(sign)]:
            return Guilty(signs=tuple(found), looks=looks)
    stuck = [sign for sign in after if sign.state != "L" and not _goes_on(earlier, sign)]
    if len(stuck) == 1:
        return Guilty(signs=tuple(stuck), looks=_how(stuck[0], len(after)))
    return (
        _not_waiting(stuck)
        or _cut_off(stuck)
        or _behind(stuck)
        or Guilty(signs=tuple(stuck or after), looks=_all_wait(stuck))
    )


def _is_silent(earlier: Mapping[int, Sign], sign: Sign) -> bool:
    return sign.rank in earlier and sign.count == earlier[sign.rank].count


def _goes_on(earlier: Mapping[int, Sign], sign: Sign) -> bool:
    return sign.rank in earlier and sign.ticks != earlier[sign.rank].ticks


def _how(sign: Sign, num_ranks: int) -> str:
    if sign.state == "D":
        return _ON_DISK
    if num_ranks == 1:
        return "it computes or waits for something other than a rank"
    return "the other ranks go on" if sign.waits is None else _waiting(sign.waits)


def _waiting(waits: bool) -> str:
    return "it waits for other ranks" if waits else "it is in code of its own"


def _not_waiting(stuck: Sequence[Sign]) -> Guilty | None:
    """Find the ranks that are somewhere in their code while others wait in a collective operation."""
    own = [sign for sign in stuck if sign.waits is False]
    if not own or not any(sign.waits for sign in stuck):
        return None
    last = min((sign.step, sign.place) for sign in own)
    found = tuple(sign for sign in own if (sign.step, sign.place) == last)
    on_disk = all(sign.state == "D" for sign in found)
    return Guilty(
        signs=found, looks=_ON_DISK if on_disk else "it is in code of its own while others wait"
    )


def _cut_off(stuck: Sequence[Sign]) -> Guilty | None:
    found = [sign for sign in stuck if sign.reaches_first is False]
    if not found:
        return None
    # of the first host's ranks nobody asks
    first = tuple(sign for sign in stuck if sign.reaches_first is None)
    hosts, cut_off = ({sign.host for sign in signs} for signs in (stuck, found))
    if first and len(cut_off) > 1 and cut_off == hosts - {first[0].host}:
        return Guilty(signs=first, looks="no other host reaches it over the network")
    return Guilty(
        signs=tuple(found), looks="it does not reach the first rank's host over the network"
    )


def _behind(stuck: Sequence[Sign]) -> Guilty | None:
    """Find the ranks that are behind the others, as far as that can be compared."""
    last, first = (pick((sign.step for sign in stuck), default=0) for pick in (min, max))
    found = [sign for sign in stuck if sign.step == last]
    if last == first:
        if len({sign.phase for sign in stuck}) > 1:
            return None
        place = min((sign.place for sign in stuck), default=0)
        found = [sign for sign in stuck if sign.place == place]
    if len(found) == len(stuck):
        return None
    return Guilty(signs=tuple(found), looks="it is behind the others")


def _all_wait(stuck: Sequence[Sign]) -> str:
    if stuck and all(sign.waits for sign in stuck):
        return "all wait in a collective operation; their stacks should be the same"
    return "nothing tells the ranks apart; their stacks may"


def hung_message(guilty: Guilty, *, idle_s: float, timeout_s: float, stacks: str) -> str:
    """Return one sentence that names the ranks that a job hangs for, and what to do.

    Args:
        idle_s: seconds for which nothing has gone on.
        timeout_s: `runtime.hang_timeout_s`.
        stacks: where those of all ranks lie.
    """
    shown = [f"rank {sign.rank} on {sign.host}" for sign in guilty.signs[:_SHOWN]]
    more = [f"{len(guilty.signs) - _SHOWN} more"] if len(guilty.signs) > _SHOWN else []
    first = guilty.signs[0]
    many = len(guilty.signs) > 1
    return (
        f"{', '.join(shown + more)} {'hang' if many else 'hangs'} at step {first.step} ({first.phase}), "
        f"no sign for {idle_s:.0f} s: {guilty.looks}; stacks of the ranks: {stacks}; run the same command "
        f"again to go on, and raise runtime.hang_timeout_s={timeout_s:g} if this was only slow"
    )
