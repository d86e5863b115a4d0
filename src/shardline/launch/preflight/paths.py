"""Measurement of every path between the ranks; each message's contents are verified."""

import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from shardline.core.errors import LaunchError
from shardline.launch.preflight.preflight_table import Arrival, name_ranks
from shardline.launch.preflight.rendezvous import Rendezvous, pauses

_LATENCY_ROUNDS = 20
_SMALL = 256  # elements
_MESSAGE_ELEMENTS = 2**20  # 4 MiB
_SILENCE_S = 5.0  # on a busy machine, another rank fails seconds later
_SOURCE = re.compile(r"\[/\S+:\d+\] ")  # in gloo's messages: a path on torch's build machine


@dataclass(frozen=True)
class Paths:
    """Measures the paths between the ranks through a temporary process group.

    Attributes:
        rendezvous: store through which the group forms.
        ranks: records of all ranks, by rank.
        rank: this rank.
        backend: `gloo` or `nccl`.
        device: device of the messages under nccl.
        timeout_s: longest wait for a step, seconds.
    """

    rendezvous: Rendezvous
    ranks: Sequence[Arrival]
    rank: int
    backend: str
    device: torch.device
    timeout_s: float

    def measure(self, joined_s: float) -> list[list[float]]:
        """Return each rank's latency (us), bandwidth (MB/s) and time to join (s), by rank."""
        try:
            with self._step("form a process group with all ranks"):
                self._join_group()
            with self._step("add up a number of all ranks"):
                self._check_sum()
            with self._step("pass messages between rank 0 and every rank"):
                self._pass_by_rank_0()
            with self._step("pass messages to the next rank round the ring"):
                self._pass_round(_SMALL)
                bandwidth = max(self._pass_round(_MESSAGE_ELEMENTS) for _ in range(2))
            with self._step("compare measurements"):
                return self._gather([self._latency(), bandwidth, joined_s])
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Add rank, host and step to an error; all ranks raise the first error."""
        try:
            yield
        except (RuntimeError, LaunchError) as error:
            me, reason = self.ranks[self.rank], _SOURCE.sub("", str(error).partition("\n")[0])
            message = (
                f"rank {self.rank} on host {me['host']} (interface {me['interface']}, {me['address']}) could not "
                f"{what} with backend={self.backend}: {reason.partition('. This is')[0]}; open all ports between "
                "the nodes, or set the right interface in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
            )
            with suppress(dist.DistError):  # rank 0 may be gone, and the store with it
                if silent := self._silent_ranks():
                    message += f"; {name_ranks(silent)} did not respond: read the log there first"
                    self.rendezvous.others = len(self.ranks) - len(silent) - 1
                message = self.rendezvous.agree("failure", message)
            raise LaunchError(message) from error

    def _silent_ranks(self) -> list[int]:
        """Return the ranks that reported no failure; a dead rank is the likely cause."""
        self.rendezvous.store.append("failed", f"{self.rank} ")  # type: ignore[attr-defined]  # not in its stub
        limit, reported = time.monotonic() + _SILENCE_S, [self.rank]
        for pause in pauses():
            reported = [int(rank) for rank in self.rendezvous.store.get("failed").split()]
            if len(reported) == len(self.ranks) or time.monotonic() > limit:
                break
            time.sleep(pause)
        return sorted(set(range(len(self.ranks))) - set(reported))

    def _join_group(self) -> None:
        # gloo waits five times its timeout for a connection: 25 s for 5 s
        timeout_s = max(2.0, self.timeout_s / 5) if self.backend == "gloo" else self.timeout_s
        dist.init_process_group(
            self.backend,
            store=PrefixStore("group", self.rendezvous.store),
            rank=self.rank,
            world_size=len(self.ranks),
            timeout=timedelta(seconds=timeout_s),
            device_id=self.device if self.backend == "nccl" else None,
        )

    @property
    def _place(self) -> torch.device:
        # gloo passes messages between CPUs only
        return self.device if self.backend == "nccl" else torch.device("cpu")

    def _tensor(self, size: int, value: float) -> torch.Tensor:
        return torch.full((size,), value, dtype=torch.float32, device=self._place)

    def _check_sum(self) -> None:
        size = len(self.ranks)
        total = self._tensor(1, float(self.rank))
        dist.all_reduce(total)
        if total.item() != size * (size - 1) / 2:
            raise LaunchError(
                f"the sum of ranks 0-{size - 1} is {size * (size - 1) // 2}, not {total.item():g}"
            )

    def _exchange(
        self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]
    ) -> None:
        """Send and receive at the same time."""
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in sends.items()]
            + [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in receives.items()]
        )
        for work in works:
            work.wait()
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)

    def _check(self, received: Mapping[int, torch.Tensor]) -> None:
        for peer, tensor in received.items():
            if not bool((tensor == peer).all()):
                raise LaunchError(f"the message from rank {peer} arrived with wrong contents")

    def _pass_by_rank_0(self) -> None:
        """Exchange a message between rank 0 and every other rank."""
        others = range(1, len(self.ranks))
        peers = others if self.rank == 0 else [0]
        sent = {peer: self._tensor(_SMALL, self.rank) for peer in peers}
        received = {peer: self._tensor(_SMALL, -1) for peer in peers}
        self._exchange(sent, received)
        self._check(received)

    def _pass_round(self, size: int) -> float:
        """Send to the next rank while all ranks do; return MB/s received from the previous rank."""
        before, after = ((self.rank + step) % len(self.ranks) for step in (-1, 1))
        sent, received = self._tensor(size, self.rank), self._tensor(size, -1)
        dist.all_reduce(self._tensor(1, 0))  # all start together
        started = time.perf_counter()
        self._exchange({after: sent}, {before: received})
        seconds = time.perf_counter() - started
        self._check({before: received})
        return received.nbytes / seconds / 1e6

    def _latency(self) -> float:
        """Return the median time of a small all-reduce, in us."""
        number, times = self._tensor(1, 0), []
        for _ in range(_LATENCY_ROUNDS):
            started = time.perf_counter()
            dist.all_reduce(number)
            number.item()  # waits for the GPU
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1e6

    def _gather(self, mine: list[float]) -> list[list[float]]:
        rows = [self._tensor(len(mine), 0) for _ in self.ranks]
        dist.all_gather(rows, torch.tensor(mine, dtype=torch.float32, device=self._place))
        return [row.tolist() for row in rows]
