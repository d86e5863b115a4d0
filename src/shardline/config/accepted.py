"""`accepted.json`: the record beside a result that an earlier identity's files stand for."""

from collections.abc import Mapping
from typing import Any

ACCEPTED = "accepted.json"


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
