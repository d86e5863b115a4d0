"""This process's place among the ranks, from whatever variables its launcher set."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardline.errors import LaunchError

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among the ranks.

    Attributes:
        rank: 0 <= rank < world_size.
        local_rank: place on this node, 0 <= local_rank < local_world_size.
        launcher: what started this process.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    launcher: str

    @property
    def node_rank(self) -> int:
        """Place of this node among the nodes, each of which holds equally many ranks."""
        return self.rank // self.local_world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.local_world_size


def resolve_world(env: Mapping[str, str]) -> World:
    """Read this process's place in the job from torchrun's variables.

    Args:
        env: process environment; read, never written. None of the variables
            set means one process. A partial set is an error: defaulting the
            rest would make two processes rank 0.

    Raises:
        LaunchError: a variable is missing, not an integer or out of range; the
            message names it and the value found.
    """
    found = {name: env[name] for name in _VARIABLES if env.get(name)}
    if not found:
        return World(
            rank=0, local_rank=0, world_size=1, local_world_size=1,
            master_addr="127.0.0.1", master_port=0, launcher="none",
        )  # fmt: skip
    missing = [name for name in _VARIABLES if name not in found]
    if missing:
        raise LaunchError(
            f"{', '.join(found)} set but {', '.join(missing)} not; "
            "start the ranks with a launcher that sets all, or unset all for one process"
        )
    world = World(
        rank=_integer(found, "RANK"),
        local_rank=_integer(found, "LOCAL_RANK"),
        world_size=_integer(found, "WORLD_SIZE"),
        local_world_size=_integer(found, "LOCAL_WORLD_SIZE"),
        master_addr=found["MASTER_ADDR"],
        master_port=_integer(found, "MASTER_PORT"),
        launcher="torchrun",
    )
    _check_range("RANK", world.rank, "WORLD_SIZE", world.world_size)
    _check_range("LOCAL_RANK", world.local_rank, "LOCAL_WORLD_SIZE", world.local_world_size)
    if world.world_size % world.local_world_size:
        raise LaunchError(
            f"WORLD_SIZE={world.world_size} is no multiple of LOCAL_WORLD_SIZE={world.local_world_size}; "
            "start equally many ranks on each node"
        )
    return world


def _integer(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise LaunchError(f"{name}={env[name]} is not a whole number; mend the launcher") from None


def _check_range(name: str, value: int, limit_name: str, limit: int) -> None:
    if not 0 <= value < limit:
        raise LaunchError(
            f"{name}={value} is outside 0..{limit - 1} ({limit_name}={limit}); mend the launcher"
        )


def check_world(world: World, *, nodes: int, devices: int) -> None:
    """Refuse a world that is not the one the run asks for.

    Raises:
        LaunchError: names what was asked and what was found.
    """
    if (world.num_nodes, world.local_world_size) != (nodes, devices):
        raise LaunchError(
            f"the run asks for nodes={nodes} x devices={devices}, but {world.launcher} started "
            f"{world.num_nodes} x {world.local_world_size}; mend the launcher's geometry"
        )
