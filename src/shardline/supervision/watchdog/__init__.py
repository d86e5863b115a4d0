"""The watchdog: a small process per rank, which keeps running while the rank is stopped or stuck."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from shardline.core.files import make_folder
from shardline.core.world import World
from shardline.supervision.watchdog.heartbeats import stack_file
from shardline_io import heartbeat_memory

# Profilers and MPI libraries may use the first real-time signals.
DUMP_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 11


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Settings of the ranks' watchdogs.

    Attributes:
        hang_timeout_s: seconds without a tick after which a rank counts as hung; 0: never.
        startup_timeout_s: the same before the first step. The preflight check has its own deadlines.
        attempt: number of the attempt at the training, from 1; 0: unknown.
    """

    hang_timeout_s: float
    startup_timeout_s: float
    attempt: int = 0

    def start(self, world: World, *, work: Path, logs: Path) -> None:
        """Start this rank's watchdog, which exits with the rank, and adopt the heartbeat memory.

        Args:
            work: the run's folder in the store.
            logs: folder for the ranks' logs.
        """
        if sys.platform != "linux":  # other systems do not report a process's state and exit
            return
        stacks = stack_file(work, world.rank)
        make_folder(stacks.parent)
        # works in any state but D: the handler needs neither a lock nor Python
        stacks.write_bytes(b"")
        # append mode, since a program that the rank starts writes to this file too
        faulthandler.register(DUMP_SIGNAL, stacks.open("ab"), all_threads=True)
        task = Task(
            rank=world.rank,
            num_ranks=world.world_size,
            pid=os.getpid(),
            work=str(work),
            logs=str(logs),
            first_host=world.master_addr if world.node_rank else "",
            port=world.master_port,
            dump_signal=DUMP_SIGNAL,
            **asdict(self),
        )
        descriptor = heartbeat_memory.shared_file()
        heartbeat_memory.adopt(heartbeat_memory.HeartbeatMemory(descriptor))
        # -P: a user's module in this folder may shadow a module of Python
        command = [sys.executable, "-P", "-m", __name__, str(descriptor), json.dumps(asdict(task))]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(descriptor,))


@dataclass(frozen=True, kw_only=True)
class Task(Watch):
    """The task of one watchdog.

    Attributes:
        num_ranks: ranks of the job.
        pid: pid of the rank's process, the watchdog's parent.
        work: the run's folder in the store.
        logs: folder for the ranks' logs.
        first_host: address of the first rank's host; empty on that host itself.
        port: port on which the first rank listens.
        dump_signal: signal that makes the rank write its stacks.
    """

    rank: int
    num_ranks: int
    pid: int
    work: str
    logs: str
    first_host: str
    port: int
    dump_signal: int
