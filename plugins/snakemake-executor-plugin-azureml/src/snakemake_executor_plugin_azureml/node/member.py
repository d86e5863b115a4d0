"""One of the job's processes, as the leader sees it."""

from dataclasses import dataclass

from snakemake_executor_plugin_azureml.node.wire import Connection


@dataclass
class Member:
    """One of the job's processes.

    Attributes:
        lost: how its connection was lost; empty while it is connected.
        connection: None for the leader itself.
    """

    rank: int
    node: int
    local_rank: int
    host: str
    pid: int
    connection: Connection | None = None
    address: str = ""
    lost: str = ""

    def __str__(self) -> str:
        at = f", {self.address}" if self.address not in ("", self.host) else ""
        return f"rank {self.rank} (node {self.node}, host {self.host}{at})"
