"""Suggestions for mistyped names."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """Return the sentence part that names the nearest valid name.

    Args:
        otherwise: the text if no valid name is near.
        cutoff: minimum similarity, 0 to 1, see `difflib.get_close_matches`.
    """
    nearest = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f'did you mean "{nearest[0]}"?' if nearest else otherwise


def suggest(name: str, known: Iterable[str], below: Iterable[str] = ()) -> str:
    """Return the sentence part that names the nearest valid name, or all of them.

    A name without its group is found too: `lr` for `optim.lr`.

    Args:
        known: the valid names.
        below: further valid names, too many to list.
    """
    known = sorted(known)
    names = sorted({*known, *below}, reverse=True)
    by_last = {key.rpartition(".")[2]: key for key in names}
    nearest = get_close_matches(name, names, n=1) or [
        by_last[last] for last in get_close_matches(name, by_last, n=1)
    ]
    return did_you_mean(
        nearest[0] if nearest else name, nearest, otherwise=f"known are {', '.join(known)}"
    )
