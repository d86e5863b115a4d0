"""Real trainings that wait at a step while a fault is injected, and real file systems to fail under them.

File systems are mounted where every process sees them: ranks are forked by a
server that started before the test. They go when the test ends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.forked import Launch
from tests.support.processes import end_of_ranks, wait_until
from tests.support.ranks import Ranks, prepare  # noqa: F401  (a fixture)

# Waits at a step, once: a training that goes on from a later one passes by. Whoever goes on from the
# very step does so with `go` there.
GATED = """
import os
import select
from pathlib import Path

from shardline.training.models.mlp import MLP


GATE_STEP = 30


class Gated(MLP):
    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == GATE_STEP and not Path("go").exists():
            Path(f"reached-{self.global_rank}").write_text(str(os.getpid()))
            while not Path("go").exists():
                select.select([], [], [], 0.01)  # libfaketime makes an error of `time.sleep` when the clock jumps
"""
GATE_STEP = 30  # saved every 7 steps; an epoch has 20 or so
LAST_SAVED = 28
ROW = {"model": "gated:Gated", "trainer.max_epochs": 3}


# Of a row: model, recorded steps, seconds.
_UNBROKEN: dict[str, tuple[bytes, list[int], float]] = {}


@dataclass(frozen=True)
class Faulted:
    """A training, the fault that is injected into it at its 30th step, and what it must end with.

    Attributes:
        tell: takes a name and a value of what the fault cost, for `pytest_terminal_summary`.
    """

    ranks: Ranks
    row: str
    tell: Callable[[str, object], None]
    started: float = field(default_factory=time.monotonic)

    def goes_on(self) -> str:
        """Run the same command again: it goes on from a saved step, and ends as an unbroken training."""
        output = self.ranks.train("run")
        (step,) = set(re.findall(r"resuming from step (\d+)", output))
        assert int(step) > 0
        self.is_as_unbroken()
        return output

    def begins(self) -> None:
        """Run the same command again after nothing was trained."""
        (self.ranks.root / "go").touch()
        assert "starting: " in self.ranks.train("run")
        self.is_as_unbroken()

    def is_as_unbroken(self) -> None:
        """Hold model and records against those of an unbroken training of the same identity."""
        seconds = time.monotonic() - self.started
        (self.ranks.root / "go").touch()
        if self.row not in _UNBROKEN:
            started = time.monotonic()
            self.ranks.train("whole")
            whole_s = time.monotonic() - started
            _UNBROKEN[self.row] = self.ranks.model("whole"), self.ranks.steps("whole"), whole_s
        *whole, whole_s = _UNBROKEN[self.row]
        assert [self.ranks.model("run"), self.ranks.steps("run")] == whole
        self.tell("steps_lost", self.ranks.steps_lost("run"))
        self.tell("seconds_lost", seconds - whole_s)

    def run(self, inject: Callable[[], None], **runtime: Any) -> tuple[int | None, str]:
        """Train with the fault at the gate; return the exit code and all that the ranks said."""
        process = self._to_the_gate(**runtime)
        inject()
        (self.ranks.root / "go").touch()
        output = end_of_ranks(process, 300)
        return process.returncode, self._with_logs(output)

    def fails_at_once(self) -> tuple[int | None, str]:
        """Train with a fault that is there before; return the exit code and all that the ranks said."""
        process = self.ranks.start("run")
        output = end_of_ranks(process, 300)
        return process.returncode, self._with_logs(output)

    def kill(self) -> None:
        """Train up to the gate and kill all ranks at once."""
        process = self._to_the_gate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        (self.ranks.root / "go").touch()

    def _to_the_gate(self, **runtime: Any) -> "subprocess.Popen[str] | Launch":
        process = self.ranks.start("run", **runtime)
        wait_until(self.is_reached, process)
        wait_until(self.is_saved, process)
        return process

    def start_by_hand(self, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start the one rank as a program of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "shardline.training.rank", str(self.ranks.spec_file("run"))],
            cwd=self.ranks.root, env=dict(environment), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def pid_of(self, rank: int) -> int:
        """Return the process of a rank that waits at the gate."""
        return int((self.ranks.root / f"reached-{rank}").read_text())

    def reasons(self) -> str:
        """Return what was left about how ranks ended."""
        files = (self.ranks.root / "run" / "work" / "errors").glob("*.json")
        return "\n".join(path.read_text() for path in files)

    def _with_logs(self, output: str) -> str:
        logs = (self.ranks.root / "run" / "logs").glob("*")
        return "\n".join([output, *(log.read_text() for log in logs)])

    def is_reached(self) -> bool:
        """Return whether all ranks wait at the gate."""
        ranks = range(self.ranks.devices * self.ranks.nodes)
        return all((self.ranks.root / f"reached-{rank}").exists() for rank in ranks)

    def is_saved(self) -> bool:
        """Return whether the last state before the gate is on disk, which is written beside the training."""
        pointer = self.ranks.root / "run" / "work" / "checkpoints" / "latest.json"
        return pointer.exists() and f"step-{LAST_SAVED:08d}" in pointer.read_text()

    def sealed(self) -> list[str]:
        """Return what lies where the sealed files go."""
        return sorted(path.name for path in self.ranks.results("run").glob("*"))

    def half_written(self) -> list[Path]:
        """Return what a write that failed left."""
        return [path for path in (self.ranks.root / "run").rglob("*") if ".tmp" in path.name]


@dataclass(frozen=True)
class Disk:
    """A file system of its own, mounted on a folder."""

    path: Path

    def fill(self, room: int = 0) -> None:
        """Fill it up to the last `room` bytes."""
        status = os.statvfs(self.path)
        try:
            with (self.path / "filler").open("wb", buffering=0) as file:
                file.write(bytes(status.f_bavail * status.f_frsize - room))
                while not room:
                    file.write(bytes(4096))
        except OSError:
            pass

    def empty(self) -> None:
        """Take the filler away."""
        (self.path / "filler").unlink()

    def abort(self) -> None:
        """Have the kernel make it read-only under its users, as after an error of the disk."""
        run("sync", "--file-system", str(self.path))
        run("mount", "-o", "remount,abort", str(self.path))

    def mend(self) -> None:
        """Mount a copy of it after `abort`: the kernel keeps the failed one as long as any namespace holds it."""
        run("umount", str(self.path))
        copy = image_of(self.path).with_suffix(".copy")
        shutil.copyfile(image_of(self.path), copy)
        run("mount", "-o", "loop", str(copy), str(self.path))


def image_of(folder: Path) -> Path:
    """Return the file that holds the file system which is mounted on a folder."""
    return folder.with_name(f"{folder.name}.image")


def run(*command: str) -> str:
    """Run a command of the system to its end."""
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout
