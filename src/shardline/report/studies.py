"""Scaling studies as the report reads them: one run trained at several numbers of ranks."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of a study.

    Attributes:
        nodes: Machines.
        devices: Ranks on each machine.
        run: Id of the run that trained at this size.
    """

    nodes: int
    devices: int
    run: str

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.devices

    @property
    def label(self) -> str:
        """Such as 2x4: nodes x devices."""
        return f"{self.nodes}x{self.devices}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A scaling study.

    Attributes:
        name: The study's key in the config.
        run: Name of the run that it varies.
        mode: strong: the global batch stays. weak: the batch of each rank stays.
        sizes: In the config's order.
    """

    name: str
    run: str
    mode: Mode
    sizes: tuple[Size, ...]
