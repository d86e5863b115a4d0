"""Place of one process among the ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class World:
    """Place of a process among the ranks, which are numbered node by node.

    Attributes:
        rank: 0 <= rank < world_size.
        local_rank: rank on this node, 0 <= local_rank < local_world_size.
        world_size: number of ranks.
        local_world_size: number of ranks on each node, the same on all.
        master_addr: name or address of rank 0's node.
        master_port: TCP port on that node; 0 (any) only for one rank.
        launcher: launcher that started this process.
        hosts: names of the nodes by node rank; empty if unknown.
        origins: the variable behind each value, such as {"rank": "SLURM_PROCID=3"}.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    launcher: str
    hosts: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0; all nodes have the same number of ranks."""
        return self.rank // self.local_world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.local_world_size


def alone(world: World) -> World:
    """Return the place of a rank that works without the others."""
    return replace(world, rank=0, local_rank=0, world_size=1, local_world_size=1)
