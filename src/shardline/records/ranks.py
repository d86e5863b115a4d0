"""Ranks of a training: machines, devices and network."""

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record
from shardline.records.measured import Number


class RankReport(Record, frozen=True, kw_only=True):
    """Report of a rank in the preflight check, with the measured network.

    Attributes:
        rank: Global rank.
        local_rank: Rank on the machine.
        node_rank: Number of the machine.
        host: Name of the machine.
        device: Device of the rank, such as `cuda:0`.
        device_name: Model of the device.
        threads: CPU threads of an operation.
        libraries: Versions of libraries, by name.
        differences: Differences between the installed packages and the lock.
        cpus: Numbers of the CPUs that the rank may use.
        interface: Network interface towards rank 0.
        address: Network address towards rank 0.
        settings: Environment variables that configure the network between ranks.
        launcher: Launcher of the ranks.
        job: Job id of the scheduler.
        latency_us: Median time of small all-reduces, in microseconds; null for a single rank.
        bandwidth_mb_s: Data received from the left neighbour while all ranks sent, in MB/s; null for a single rank.
        joined_s: Seconds that the rank waited for all ranks.
    """

    rank: int
    local_rank: int
    node_rank: int
    host: str
    device: str
    device_name: str
    threads: int
    libraries: dict[str, str | None] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    cpus: str
    interface: str
    address: str
    settings: dict[str, str]
    launcher: str
    job: str
    latency_us: Number | None
    bandwidth_mb_s: Number | None
    joined_s: Number


class RanksOfTraining(Record, frozen=True, kw_only=True):
    """Ranks of a training.

    Attributes:
        world_size: Number of ranks.
        nodes: Number of machines.
        launcher: Launcher of the ranks.
        backend: Backend of collective operations, such as `nccl`.
        ranks: Report of each rank.
    """

    world_size: int | None = None
    nodes: int | None = None
    launcher: str | None = None
    backend: str | UnsetType | None = UNSET
    ranks: list[RankReport] | UnsetType = UNSET
