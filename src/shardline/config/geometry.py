"""A run on fewer ranks than it was planned for: the same global batch, in more parts on each rank."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from shardline.core.errors import LaunchError

REMEDY = "or set elastic: true to train with the same global batch on fewer ranks"


def fitted(
    settings: Mapping[str, Any], *, run: str, nodes: int, devices: int, uses_all: bool = False
) -> tuple[int, int]:
    """Return the largest geometry for an elastic run, at most the planned one.

    The planned ranks' parts of a global batch have to be dealt out evenly. One rank
    can always take all of them.

    Args:
        settings: of the run, as planned.
        run: named in the error.
        nodes: machines that are there.
        devices: ranks that each of them can hold.
        uses_all: whether no machine that is there may be left out.

    Returns:
        Machines and ranks on each.

    Raises:
        LaunchError: the parts cannot be dealt out evenly over all machines.
    """
    most = min(settings["nodes"], nodes)
    choices = product(
        range(most if uses_all else 1, most + 1), range(1, min(settings["devices"], devices) + 1)
    )
    even = [(n, d) for n, d in choices if _parts(settings) % (n * d) == 0]
    if not even:
        settings_at(settings, run=run, nodes=nodes, devices=1)
    # of two with as many ranks, the one that crosses fewer machines
    return max(even, key=lambda found: (found[0] * found[1], -found[0]))


def settings_at(
    settings: Mapping[str, Any], *, run: str, nodes: int, devices: int
) -> dict[str, Any]:
    """Return a run's settings with the geometry that is there, and the parts that follow from it.

    Args:
        settings: of the run, as planned.
        run: named in the error.
        nodes: machines on which its ranks are.
        devices: ranks on each.

    Raises:
        LaunchError: the run is planned for other ranks and is not elastic, or its parts
            cannot be dealt out evenly.
    """
    planned = settings["nodes"], settings["devices"]
    if (nodes, devices) == planned:
        return dict(settings)
    told = (
        f'run "{run}" is planned for nodes={planned[0]} x devices={planned[1]}, '
        f"but its ranks are on {nodes} x {devices}"
    )
    if not settings["elastic"]:
        raise LaunchError(f"{told}; start as many as planned, {REMEDY}")
    parts = _parts(settings)
    if parts % (nodes * devices):
        raise LaunchError(
            f"{told}, which cannot share the {parts} parts of a global batch evenly; start a number "
            f"of ranks that divides {parts}"
        )
    trainer = {**settings["trainer"], "accumulate": parts // (nodes * devices)}
    return {**settings, "nodes": nodes, "devices": devices, "trainer": trainer}


def _parts(settings: Mapping[str, Any]) -> int:
    """Return the parts of a global batch, as planned."""
    parts: int = settings["nodes"] * settings["devices"] * settings["trainer"]["accumulate"]
    return parts
