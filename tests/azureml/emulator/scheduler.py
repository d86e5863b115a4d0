"""The queue: which job starts when, and on which nodes."""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tests.azureml.emulator.attempt import Attempt
from tests.azureml.emulator.constants import COMPUTES
from tests.azureml.emulator.faults import Faults
from tests.azureml.emulator.jobs import Job
from tests.azureml.emulator.node import Node
from tests.azureml.emulator.variables import MpiAddress


@dataclass
class Ways:
    """How the service goes about running jobs; tests may change it while it runs.

    Attributes:
        nodes: Count of nodes of each compute.
        cancel_grace_s: Between telling processes to end and ending them.
        straggler_grace_s: For the other processes, once one has failed.
        limit_scale: What jobs' time limits are multiplied by; they are whole minutes.
        mpi_address: How an MPI job on several nodes learns its first node's address.
    """

    nodes: int
    cancel_grace_s: float = 5.0
    straggler_grace_s: float = 10.0
    limit_scale: float = 1.0
    mpi_address: MpiAddress = "batch"


class Scheduler:
    """Starts jobs as nodes come free, and sees each to its end."""

    def __init__(
        self,
        *,
        ways: Ways,
        start_node: Callable[[Job, int, int], Node],
        address_of: Callable[[int], str],
        faults: Faults,
    ) -> None:
        """Start with an empty queue.

        Args:
            ways: How to go about it.
            start_node: Switches on a node, given a job, the node's number in the job, and a free
                place in the network.
            address_of: Address of a place in the network.
            faults: What is to go wrong.
        """
        self.ways = ways
        self.start_node = start_node
        self.address_of = address_of
        self.faults = faults
        self.stopping = threading.Event()
        self._lock = threading.RLock()
        self._queue: list[Job] = []
        self._places: dict[str, list[int]] = {compute: [] for compute in COMPUTES}
        self._threads: list[threading.Thread] = []

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            job.change("Preparing")
            job.change("Queued")
            self._queue.append(job)
            self._dispatch()

    def cancel(self, job: Job) -> None:
        """Have a job end, wherever it is; one that is over stays as it is."""
        with self._lock:
            if job.is_over:
                return
            job.change("CancelRequested")
            job.cancelling.set()
            if job in self._queue:
                self._queue.remove(job)
                job.change("Canceled")

    def stop(self) -> None:
        """End every job at once, and wait until nothing of them is left."""
        with self._lock:
            self.stopping.set()
            self._queue.clear()
        for thread in self._threads:
            thread.join()

    def dispatch(self) -> None:
        """Start what fits, by priority and then by age; also when `ways.nodes` has changed."""
        with self._lock:
            self._dispatch()

    def _dispatch(self) -> None:
        for job in sorted(self._queue, key=lambda job: -job.spec.priority):
            taken = self._places[job.spec.compute]
            if len(taken) + job.spec.nodes > self.ways.nodes or self.stopping.is_set():
                continue
            used = {place for places in self._places.values() for place in places}
            count = len(used) + job.spec.nodes
            places = [place for place in range(count) if place not in used][: job.spec.nodes]
            taken += places
            self._queue.remove(job)
            thread = threading.Thread(target=self._run, args=(job, places), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, job: Job, places: list[int]) -> None:
        """See one attempt of a job to its end and free its nodes."""
        again = False
        try:
            again = Attempt(job, places, self).run()
        except Exception as error:  # of the emulator: a test is to see it, not to wait for ever
            traceback.print_exc(file=sys.stderr)
            job.error = f"the emulator failed: {error}"
            job.change("Failed")
        with self._lock:
            for place in places:
                self._places[job.spec.compute].remove(place)
            if again:
                job.preempting.clear()
                job.change("Queued")
                self._queue.insert(0, job)
                if job.cancelling.is_set():  # between the attempt's end and here
                    self._queue.remove(job)
                    job.change("Canceled")
            self._dispatch()
