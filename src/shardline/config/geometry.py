"""A run on fewer ranks than it was planned for: the same global batch, in more parts on each rank."""

from dataclasses import dataclass
from itertools import product

from msgspec import structs

from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import LaunchError

REMEDY = "or set elastic: true to train with the same global batch on fewer ranks"


@dataclass(frozen=True, kw_only=True)
class PlannedGeometry:
    """The ranks that a run's settings ask for, which are part of its identity.

    Attributes:
        nodes: machines.
        devices: ranks on each.
        accumulate: micro-batches of each rank in a global batch.
        elastic: whether fewer ranks may do the same work.
    """

    nodes: int
    devices: int
    accumulate: int
    elastic: bool

    @classmethod
    def of(cls, settings: RunSettings) -> "PlannedGeometry":
        """Return the geometry that a run's resolved settings ask for."""
        return cls(
            nodes=settings.nodes,
            devices=settings.devices,
            accumulate=settings.trainer.accumulate,
            elastic=settings.elastic,
        )

    @property
    def parts(self) -> int:
        """Micro-batches in a global batch, over all ranks."""
        return self.nodes * self.devices * self.accumulate

    def fits(self, actual: "ActualGeometry") -> bool:
        """Whether the ranks that are there are those that were planned."""
        return (self.nodes, self.devices) == (actual.nodes, actual.devices)

    def __str__(self) -> str:
        return f"nodes={self.nodes} x devices={self.devices}"


@dataclass(frozen=True, kw_only=True)
class ActualGeometry:
    """The ranks that a job has for a run.

    Attributes:
        nodes: machines.
        devices: ranks on each.
    """

    nodes: int
    devices: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices

    def __str__(self) -> str:
        return f"nodes={self.nodes} x devices={self.devices}"


def fit_geometry(
    planned: PlannedGeometry, *, run: str, nodes: int, devices: int, uses_all: bool = False
) -> ActualGeometry:
    """Return the largest geometry for an elastic run, at most the planned one.

    The planned micro-batches of a global batch have to be shared evenly. One rank
    can always take all of them.

    Args:
        run: named in the error.
        nodes: machines that are there.
        devices: ranks that each of them can hold.
        uses_all: whether no machine that is there may be left out.

    Raises:
        LaunchError: the micro-batches cannot be shared evenly by all machines.
    """
    most = min(planned.nodes, nodes)
    choices = product(
        range(most if uses_all else 1, most + 1), range(1, min(planned.devices, devices) + 1)
    )
    even = [ActualGeometry(nodes=n, devices=d) for n, d in choices if planned.parts % (n * d) == 0]
    if not even:
        accumulate_on(planned, ActualGeometry(nodes=nodes, devices=1), run=run)
    # of two with as many ranks, the one that crosses fewer machines
    return max(even, key=lambda found: (found.ranks, -found.nodes))


def accumulate_on(planned: PlannedGeometry, actual: ActualGeometry, *, run: str) -> int:
    """Return how many micro-batches of a global batch each rank computes.

    Args:
        run: named in the error.

    Raises:
        LaunchError: the run is planned for other ranks and is not elastic, or its
            micro-batches cannot be shared evenly.
    """
    if planned.fits(actual):
        return planned.accumulate
    problem = f'run "{run}" is planned for {planned}, but its ranks are on {actual.nodes} x {actual.devices}'
    if not planned.elastic:
        raise LaunchError(f"{problem}; start as many as planned, {REMEDY}")
    if planned.parts % actual.ranks:
        raise LaunchError(
            f"{problem}, which cannot share the {planned.parts} parts of a global batch evenly; start a "
            f"number of ranks that divides {planned.parts}"
        )
    return planned.parts // actual.ranks


def settings_on(settings: RunSettings, actual: ActualGeometry, *, run: str) -> RunSettings:
    """Return a run's settings with the geometry that is there; see `accumulate_on`."""
    accumulate = accumulate_on(PlannedGeometry.of(settings), actual, run=run)
    trainer = structs.replace(settings.trainer, accumulate=accumulate)
    return structs.replace(settings, nodes=actual.nodes, devices=actual.devices, trainer=trainer)
