"""Daemons on machines: started in the foreground, logged to one file each, watched while waiting."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.machines import Machine, MachineError, kill_group

LOG_LINES = 15


class Daemons:
    """The daemons of a cluster, named `program-machine`."""

    def __init__(self, folder: Path) -> None:
        """Keep the logs in a folder, which must exist."""
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, machine: Machine, *program: str) -> None:
        """Start a program that stays in the foreground."""
        name = f"{program[0]}-{machine.name}"
        with (self._folder / f"{name}.log").open("a") as log:
            self._running[name] = machine.popen(*program, cwd=self._folder, stdout=log)

    def stop(self, name: str) -> None:
        """End a daemon in the orderly way."""
        daemon = self._running.pop(name)
        kill_group(daemon, signal.SIGTERM)
        daemon.wait(180)

    def forget(self, machine: Machine) -> None:
        """Collect the exit codes of the daemons of a machine that is off."""
        for name in [name for name in self._running if name.endswith(f"-{machine.name}")]:
            self._running.pop(name).wait()

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout: float = 180) -> None:
        """Ask again and again until something holds; Slurm's clients give no event to wait for.

        Args:
            condition: What should come to hold.
            what: The same in words, for the message.
            timeout: Seconds.

        Raises:
            MachineError: a daemon ended, or the time is over; the message ends with the logs.
        """
        end = time.monotonic() + timeout
        while not condition():
            ended = [name for name, daemon in self._running.items() if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                why = f"{', '.join(ended)} ended" if ended else f"not within {timeout:g} s"
                raise MachineError(f"waiting for {what}: {why}; the logs say\n{self.logs()}")
            time.sleep(0.2)  # one question to Slurm costs 12 ms of CPU time

    def logs(self) -> str:
        """Return the last lines of every daemon's log."""
        tails = []
        for path in sorted(self._folder.iterdir()):
            lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
            tails.append("\n".join([f"== {path.name}", *lines]))
        return "\n".join(tails)
