"""One of the job's processes, as the leader knows it."""

from dataclasses import dataclass

from snakemake_executor_plugin_azureml.node.wire import Connection


@dataclass
class Member:
    """One of the job's processes.

    Attributes:
        lost: what became of its line; empty while it is there.
        line: None for the leader itself.
    """

    rank: int
    node: int
    local_rank: int
    host: str
    pid: int
    line: Connection | None = None
    address: str = ""
    lost: str = ""

    def __str__(self) -> str:
        at = f", {self.address}" if self.address not in ("", self.host) else ""
        return f"rank {self.rank} (node {self.node}, host {self.host}{at})"
