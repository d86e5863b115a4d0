"""Jobs as the service keeps them."""

import datetime
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

TERMINAL = ("Completed", "Failed", "Canceled")

Mode = Literal["ReadOnlyMount", "ReadWriteMount", "Download", "Upload", "Direct"]


def now() -> str:
    """Return the time as the service writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True)
class Mount:
    """A folder of a datastore that a job asked for.

    Attributes:
        name: Name of the input, output or data reference.
        datastore: Name of the datastore.
        path: Path below the datastore.
        mode: How the node is to see it, in the words of the service's v2 interface.
        variable: Environment variable that holds the path on the node.
        reference: What stands for the path in the command, such as `${{outputs.store}}`.
        is_file: Whether `path` is one file.
    """

    name: str
    datastore: str
    path: str
    mode: Mode
    variable: str
    reference: str
    is_file: bool = False


@dataclass(frozen=True)
class JobSpec:
    """What a submission through either interface comes down to.

    Attributes:
        sdk: `v1` or `v2`: which interface it came through.
        nodes: Count of nodes.
        processes_per_node: Count of processes that the service starts on each node.
        code: Path below the working folder -> file that holds the content.
        timeout_s: Seconds after which the service cancels the job; None for no limit.
        priority: Jobs with a higher one start earlier.
        definition: The submission's own words, for answers and for tests.
    """

    name: str
    sdk: Literal["v1", "v2"]
    experiment: str
    display_name: str
    command: str
    compute: str
    nodes: int
    processes_per_node: int
    distribution: Literal["Mpi", "PyTorch"] | None
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    code: Mapping[str, Path]
    timeout_s: float | None
    priority: int
    shm_size: str
    definition: Mapping[str, Any]


@dataclass(frozen=True)
class Measurement:
    """A metric's value at a step, as a job's tracking has it; `timestamp` in milliseconds."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class Process:
    """One process of a job: its place and what became of it."""

    node: int
    host: str
    local_rank: int
    log: Path
    exit_code: int | None = None


@dataclass
class Job:
    """A job and its life so far.

    Attributes:
        history: (status, time) of every change, oldest first.
        nodes: Host names of the nodes of the current attempt, in order.
        attempts: How often its nodes were started: more than once after a preemption.
        metrics, params: What was tracked, in the order of arrival.
        claimed: Paths of artifacts that were made through the service.
        artifacts: Folder of what the service keeps of the job: `user_logs/`, `outputs/`, ...
    """

    spec: JobSpec
    artifacts: Path
    tags: dict[str, str]
    properties: dict[str, str]
    status: str = "NotStarted"
    history: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    attempts: int = 0
    error: str = ""
    warning: str = ""
    created: str = field(default_factory=now)
    started: str | None = None
    ended: str | None = None
    cancelling: threading.Event = field(default_factory=threading.Event)
    preempting: threading.Event = field(default_factory=threading.Event)
    metrics: list[Measurement] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The job's name, which is its run id as well."""
        return self.spec.name

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will change any more."""
        return self.status in TERMINAL

    @property
    def logs(self) -> dict[str, str]:
        """Path of each log, such as `user_logs/std_log.txt` -> its text so far."""
        return {
            path: (self.artifacts / path).read_text(errors="replace")
            for path in self.artifact_paths()
            if path.startswith(("user_logs/", "system_logs/"))
        }

    def artifact_paths(self) -> list[str]:
        """Return the paths of what the service keeps of the job, sorted."""
        files = (path for path in self.artifacts.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.artifacts).as_posix() for path in files)

    def change(self, status: str) -> None:
        """Enter a status; one that it is in already, or that follows its end, changes nothing."""
        if self.is_over or status == self.status:
            return
        self.status = status
        time = now()
        self.history.append((status, time))
        if status == "Running" and self.started is None:
            self.started = time
        if status in TERMINAL:
            self.ended = time
