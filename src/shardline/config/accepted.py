"""`accepted.json`: the record beside a result that an earlier identity's files stand for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.core.errors import DataError
from shardline.core.files import read_json

ACCEPTED = "accepted.json"


def read_accepted(folder: Path) -> dict[str, Any] | None:
    """Return the record of a run's or dataset's folder; None where nothing was accepted.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / ACCEPTED
    if not path.exists():
        return None
    document = read_json(path, remedy=f"delete {folder} and accept the earlier result again")
    if not isinstance(document, dict) or "from" not in document:
        raise DataError(f"{path} is no record of an acceptance; delete {folder} and accept again")
    return document


def origin_of(accepted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `from` of the first acceptance of a chain: what really was trained or built."""
    origin: Mapping[str, Any] = accepted["from"]
    while "accepted" in origin:
        origin = origin["accepted"]["from"]
    return origin


def describe_acceptance(accepted: Mapping[str, Any]) -> str:
    """Return in one sentence from what, by whom, when and why a result was accepted."""
    action = accepted["action"]
    return (
        f"accepted from {accepted['from']['id']} by {action['agent']} on {action['ended']}: "
        f"{describe_reason(accepted)}"
    )


def describe_reason(accepted: Mapping[str, Any]) -> str:
    """Return why a result was accepted, with what was trained again before."""
    compared = accepted.get("first_steps")
    if not compared:
        return str(accepted["reason"])
    return (
        f"{accepted['reason']} (the first {compared['steps']} steps, trained again, gave the {compared['values']} "
        "recorded values)"
    )
