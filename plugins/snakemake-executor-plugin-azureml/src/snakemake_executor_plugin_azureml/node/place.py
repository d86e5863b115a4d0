"""This process's place in an Azure ML job, from the variables that the service sets."""

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from snakemake_executor_plugin_azureml.node.errors import NodeError

# A range without well-known services, apart from 20000..32767, where trainings choose a rendezvous port.
_PORTS = range(16384, 20000)
_NUM_PORTS = 8
_OPEN_MPI = tuple(
    f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)
_PMI = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_JOB_IDS = ("AZUREML_RUN_ID", "MLFLOW_RUN_ID", "AZ_BATCH_JOB_ID")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of this process among all processes that Azure ML started for a job.

    Attributes:
        rank: 0 <= rank < size; rank 0 is the leader.
        node: number of this node.
        local_rank: place among the processes of this node.
        per_node: processes on each node; 0 if no variable contains it.
        job: ID that all processes of the job share, and no other job has.
        addresses: possible addresses of the leader, best first; empty if no variable contains one.
        node_list: addresses of all nodes, in no known order; empty if no variable contains them.
        ports: ports on which the leader may listen, in the order in which it tries them.
        origin: the variables that the place was read from.
    """

    rank: int
    size: int
    node: int
    local_rank: int
    per_node: int
    job: str
    addresses: tuple[str, ...]
    node_list: tuple[str, ...]
    ports: tuple[int, ...]
    origin: str

    @property
    def is_one_node(self) -> bool:
        """Whether all processes are on this node, as far as the variables show."""
        return self.per_node == self.size

    def node_of(self, rank: int) -> int | None:
        """Return the node of another process; None if no variable contains it."""
        return rank // self.per_node if self.per_node else None


def find_place(env: Mapping[str, str]) -> Place:
    """Read this process's place from its environment variables.

    Raises:
        NodeError: a variable is missing, not a number, out of range or contradicts another.
    """
    found = [place for place in (_torch(env), _mpi(env, _OPEN_MPI), _mpi(env, _PMI)) if place]
    for other in found[1:]:
        if other[:2] != found[0][:2]:
            raise NodeError(
                f"{found[0][4]}, but {other[4]}; unset the variables that Azure ML has not set for this job"
            )
    num_nodes = _number(env, "AZUREML_NODE_COUNT")
    if not found and num_nodes is not None and num_nodes > 1:
        raise NodeError(
            f"AZUREML_NODE_COUNT={num_nodes}, but no variable contains this process's rank; submit "
            "the job with azureml_distribution: pytorch or mpi"
        )
    rank, size, local_rank, per_node, origin = found[0] if found else (0, 1, 0, 1, "one process")
    node_list = _list(env, "AZ_BATCH_NODE_LIST") or _list(env, "AZ_BATCH_HOST_LIST")
    for count in (num_nodes, len(node_list)):
        if not per_node and count and size % count == 0:
            per_node = size // count
    node = _node(env, rank, local_rank, per_node, origin)
    if not per_node and node > 0:
        per_node = (rank - local_rank) // node
    if not (0 <= rank < size and 0 <= local_rank < max(1, per_node or size)):
        raise NodeError(
            f"{origin} are not a rank among {size} processes; find out what changed these variables"
        )
    job = next((env[name] for name in _JOB_IDS if env.get(name)), "")
    if size > 1 and not job:
        raise NodeError(
            f"{origin}, but {_JOB_IDS[0]} is not set, by which the processes of a job identify "
            "each other; set it to the same text in all processes"
        )
    return Place(
        rank=rank, size=size, node=node, local_rank=local_rank, per_node=per_node, job=job,
        addresses=_addresses(env, node_list, is_one_node=per_node == size),
        node_list=node_list, ports=_control_ports(env, job), origin=origin,
    )  # fmt: skip


_Found = tuple[int, int, int, int, str]  # rank, size, local rank, processes per node or 0, origin


def _torch(env: Mapping[str, str]) -> _Found | None:
    """Read torch's variables of one process per rank or one process per node."""
    rank, size, node = (_number(env, name) for name in ("RANK", "WORLD_SIZE", "NODE_RANK"))
    if rank is not None and size is not None:
        local_rank = _number(env, "LOCAL_RANK")
        origin = f"RANK={rank}, WORLD_SIZE={size}"
        if local_rank is None:
            if node is not None and node != rank:
                raise NodeError(f"{origin}, NODE_RANK={node}, but LOCAL_RANK is not set; set it")
            local_rank = 0
        return rank, size, local_rank, _number(env, "LOCAL_WORLD_SIZE") or 0, origin
    if rank is None and node is not None:
        count = _number(env, "AZUREML_NODE_COUNT") or size
        if count is None:
            raise NodeError(f"NODE_RANK={node}, but WORLD_SIZE is not set; set it, or unset both")
        return node, count, 0, 1, f"NODE_RANK={node}, {count} nodes"
    return None


def _mpi(env: Mapping[str, str], names: tuple[str, ...]) -> _Found | None:
    values = [_number(env, name) for name in names]
    if all(value is None for value in values):
        return None
    there = ", ".join(f"{name}={env[name]}" for name in names if env.get(name))
    if missing := [name for name, value in zip(names, values, strict=True) if value is None]:
        if names is _PMI:
            return None  # a batch system may set some of these variables without a process manager
        raise NodeError(f"{there}, but {', '.join(missing)} not set; find out what removed them")
    rank, size, local_rank, per_node = (value or 0 for value in values)
    return rank, size, local_rank, per_node, there


def _node(env: Mapping[str, str], rank: int, local_rank: int, per_node: int, origin: str) -> int:
    # not OMPI_COMM_WORLD_NODE_RANK, which is the rank on the node
    if per_node:
        return rank // per_node
    for name in ("NODE_RANK", "AZUREML_CR_NODE_RANK"):
        if (node := _number(env, name)) is not None:
            return node
    if rank == local_rank:
        return 0
    raise NodeError(f"{origin}, but no variable contains the number of this node; set NODE_RANK")


def _addresses(
    env: Mapping[str, str], node_list: tuple[str, ...], *, is_one_node: bool
) -> tuple[str, ...]:
    if is_one_node:
        return ("127.0.0.1",)
    master = env.get("AZ_BATCH_MASTER_NODE", "")
    named = (
        env.get("MASTER_ADDR", ""),
        master.rpartition(":")[0] or master,
        env.get("AZ_BATCHAI_MPI_MASTER_NODE", ""),
        env.get("MASTER_IP", ""),
    )
    # a loopback address differs by node; of a list, the leader is at the address that answers
    return tuple(name for name in named if name and not is_loopback(name))[:1] or node_list


def _control_ports(env: Mapping[str, str], job: str) -> tuple[int, ...]:
    ports: list[int] = []
    for attempt in range(_NUM_PORTS):
        digest = hashlib.sha256(f"{job}/control/{attempt}".encode()).digest()
        ports.append(_PORTS[int.from_bytes(digest[:8], "big") % len(_PORTS)])
    return tuple(port for port in ports if str(port) != env.get("MASTER_PORT"))


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address or `localhost`."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.split(".")[0] == "localhost"


def _list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part for part in env.get(name, "").replace(",", ";").split(";") if part)


def _number(env: Mapping[str, str], name: str) -> int | None:
    if not (text := env.get(name)):
        return None
    if not text.isdigit():
        raise NodeError(f"{name}={text} is not an integer; find out what changed it")
    return int(text)
