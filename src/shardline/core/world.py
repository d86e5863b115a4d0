"""One process's place among the ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among the ranks, which are counted node by node.

    Attributes:
        rank: 0 <= rank < world_size.
        local_rank: place on this node, 0 <= local_rank < local_world_size.
        world_size: number of ranks.
        local_world_size: number of ranks on each node, the same on all.
        master_addr: name or address of rank 0's node.
        master_port: TCP port on it; 0 (any) only in a world of one.
        launcher: what started this process.
        hosts: names of the nodes by node rank, or () where they are not known.
        origins: where each value came from, such as {"rank": "SLURM_PROCID=3"}.
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
        """Place of this node among the nodes, each of which holds equally many ranks."""
        return self.rank // self.local_world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.local_world_size
