"""What a scaling study is: the config describes them, the report draws them."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of a study.

    Attributes:
        nodes: machines.
        devices: ranks on each machine.
        run: id of the run that trains at this size.
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
        name: its key in the config.
        run: name of the run that it varies.
        mode: `strong` keeps the global batch, `weak` that of each rank.
        sizes: in the config's order.
    """

    name: str
    run: str
    mode: Mode
    sizes: tuple[Size, ...]

    @property
    def runs(self) -> frozenset[str]:
        """The ids of its runs."""
        return frozenset(size.run for size in self.sizes)
