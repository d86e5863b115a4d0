"""One start of a job on nodes of its own: from switching them on to how it ended."""

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.azureml.emulator.faults import JOB_KINDS
from tests.azureml.emulator.jobs import Job, Process
from tests.azureml.emulator.node import Node
from tests.azureml.emulator.variables import place_variables, workspace_variables

if TYPE_CHECKING:
    from tests.azureml.emulator.scheduler import Scheduler

LOOK_S = 0.03


class Attempt:
    """One start of a job; after a preemption there is another."""

    def __init__(self, job: Job, places: list[int], scheduler: "Scheduler") -> None:
        """Prepare to run.

        Args:
            job: The job.
            places: Places in the network, one for each of its nodes.
            scheduler: What the attempt belongs to.
        """
        self._job = job
        self._places = places
        self._scheduler = scheduler
        self._ways = scheduler.ways
        self._nodes: list[Node] = []
        missing = scheduler.faults.take(job.name, JOB_KINDS)
        self._missing = missing.options.get("node", 1) if missing else None
        self._failed_first: Process | None = None
        self._failed_at: float | None = None
        self._kill_at: float | None = None

    def run(self) -> bool:
        """Run to the end and return whether the job is to be queued again."""
        job = self._job
        job.attempts += 1
        job.processes = []
        job.change("Starting")
        try:
            for number, place in enumerate(self._places):
                if number != self._missing:
                    self._nodes.append(self._scheduler.start_node(job, number, place))
            job.nodes = [node.host for node in self._nodes]
            if not job.cancelling.is_set():
                job.change("Running")
                self._start_processes()
            preempted = self._watch()
            if not preempted:
                job.change("Finalizing")
                for node in self._nodes:
                    node.collect(job.artifacts)
        finally:
            for node in self._nodes:
                node.switch_off()
        if preempted and not job.cancelling.is_set():
            return True
        self._conclude()
        return False

    def _start_processes(self) -> None:
        job, per_node = self._job, self._job.spec.processes_per_node
        addresses = [self._scheduler.address_of(place) for place in self._places]
        for node in self._nodes:
            for local_rank in range(per_node):
                place = place_variables(
                    job.spec,
                    node=node.number,
                    local_rank=local_rank,
                    addresses=addresses,
                    mpi_address=self._ways.mpi_address,
                )
                rank, world = node.number * per_node + local_rank, job.spec.nodes * per_node
                log = job.artifacts / log_path(rank, world, job.attempts)
                node.start(local_rank, {**workspace_variables(job.spec), **place}, log)
                job.processes.append(node.running[-1][0])

    def _watch(self) -> bool:
        """Wait until the processes have ended; return whether the job was preempted."""
        job, started = self._job, time.monotonic()
        while not self._scheduler.stopping.is_set():
            for node in self._nodes:
                node.poll()
            codes = [process.exit_code for process in job.processes]
            if self._failed_first is None:
                failures = (process for process in job.processes if process.exit_code)
                self._failed_first = next(failures, None)
            failed = self._failed_first is not None
            # While a node is missing, the job goes on waiting for it, unless the others give up.
            if None not in codes and (self._missing is None or failed or job.cancelling.is_set()):
                return False
            elapsed = time.monotonic() - started
            if job.preempting.is_set():
                return True
            limit_s = job.spec.timeout_s
            if limit_s is not None and elapsed > limit_s * self._ways.limit_scale:
                job.warning = f"The job ran longer than its limit of {limit_s:.0f} s."
                job.change("CancelRequested")
                job.cancelling.set()
            self._end_the_rest(elapsed)
            time.sleep(LOOK_S)  # processes, events and clocks: nothing to wait on them all
        return False

    def _end_the_rest(self, elapsed: float) -> None:
        """Tell processes to end, and end them, once the job is cancelled or one has failed."""
        if self._failed_first is not None and self._failed_at is None:
            self._failed_at = elapsed
        late = self._failed_at is not None and (
            elapsed > self._failed_at + self._ways.straggler_grace_s
        )
        if (self._job.cancelling.is_set() or late) and self._kill_at is None:
            self._kill_at = elapsed + self._ways.cancel_grace_s
            for node in self._nodes:
                node.signal(signal.SIGTERM)
        if self._kill_at is not None and elapsed > self._kill_at:
            for node in self._nodes:
                node.signal(signal.SIGKILL)

    def _conclude(self) -> None:
        """Say how the job ended."""
        job = self._job
        if job.cancelling.is_set() or self._scheduler.stopping.is_set():
            job.change("CancelRequested")
            job.change("Canceled")
        elif (first := self._failed_first) is not None:
            log = first.log.relative_to(job.artifacts).as_posix()
            job.error = (
                f"Execution failed. User process exited with status code {first.exit_code} on "
                f"node {first.node} ({first.host}). Please check log file '{log}' for details."
            )
            job.change("Failed")
        else:
            job.change("Completed")


def log_path(rank: int, world: int, attempt: int) -> Path:
    """Return where the service keeps the output of one process of an attempt."""
    name = "std_log.txt" if world == 1 else f"std_log_process_{rank:0{len(str(world - 1))}}.txt"
    retry = f"retry_{attempt - 1:03}" if attempt > 1 else ""
    return Path("user_logs") / retry / name
