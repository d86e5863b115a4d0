"""A workflow of one job that counts on a real Slurm, to be struck by accidents."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.support.machines import end_of
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.pipeline import FAST, SHIPPED
from tests.support.workspace import REPOSITORY, write_program

PATIENCE_S = 600
RANKS = (0, 1)

# Two ranks count on two nodes until they are told to finish, each from where it was cut off.
SNAKEFILE = f"""
import os
from shardline.launch.slurm.scancel import cancel_by_name
from shardline.launch.slurm.sacct import stand_before_sacct

if workflow.is_main_process:
    os.environ["PATH"] = f"{{os.getcwd()}}/bin:{{os.environ['PATH']}}"
    stand_before_sacct({str(REPOSITORY / "profiles/slurm/bin")!r})
    cancel_by_name()

rule count:
    output: "result"
    resources: nodes=2, tasks=2, mpi="srun"
    shell:
        "echo started; srun --nodes=2 --ntasks=2 --kill-on-bad-exit=1 bash count.sh"
        " && cat numbers-0 numbers-1 >{{output}}"
"""
# A second writer finds the lock taken; the kernel frees it when the writer dies.
COUNT = """
exec 9>lock-$SLURM_PROCID
flock --nonblock 9 || { echo "job $SLURM_JOB_ID" >>second-writer; exit 1; }
touch numbers-$SLURM_PROCID
number=$(wc -l <numbers-$SLURM_PROCID)
echo $SLURM_JOB_ID >>starts-$SLURM_PROCID
until [ -e finish ]; do
    number=$((number + 1))
    echo $number >>numbers-$SLURM_PROCID
    sleep 0.2 9>&-
done
"""


class Counting:
    """A workflow of one job in a folder of its own."""

    def __init__(self, path: Path, cluster: SlurmCluster) -> None:
        """Write the workflow and the shipped profile."""
        self.path, self.cluster = path, cluster
        self.process: subprocess.Popen[str] | None = None
        (path / "profile").mkdir(parents=True)
        (path / "Snakefile").write_text(SNAKEFILE)
        (path / "count.sh").write_text(COUNT)
        profile = yaml.safe_load(SHIPPED.read_text())
        del profile["set-resources"], profile["config"]
        profile["default-resources"] |= {"mem_mb": 100}
        (path / "profile" / "profile.yaml").write_text(yaml.safe_dump({**profile, **FAST}))

    # What the user does

    def start(self, *arguments: str) -> None:
        """Start Snakemake on the login machine."""
        snakemake = str(REPOSITORY / "tests" / "support" / "slurm" / "snakemake_fast.py")
        command = shlex.join([sys.executable, snakemake, "--profile", "profile", *arguments])
        self.process = self.cluster.login.popen(
            "bash", "-c", f"echo $$ >pid; exec {command} >>told 2>&1", cwd=self.path
        )

    def end(self) -> int:
        """Wait for Snakemake's end and return its exit code."""
        assert self.process is not None
        return end_of(self.process, self.told, timeout_s=PATIENCE_S)

    def told(self) -> str:
        """Return what Snakemake has printed."""
        return (self.path / "told").read_text()

    def delay(self, program: str, *, before: str = ":", after: str = ":") -> Path:
        """Have Snakemake find a slower program of Slurm's, until the returned file is gone.

        Args:
            program: its name.
            before: shell commands.
            after: shell commands, once it has done its work.
        """
        return write_slow(self.path / "bin" / program, before=before, after=after)

    def finish(self) -> None:
        """Let the job come to its end."""
        (self.path / "finish").touch()

    def run_again(self) -> int:
        """Run the same command once more, to the job's end."""
        (self.path / "told").rename(self.path / "told-first")
        self.start()
        self.wait_for_start(2)
        self.finish()
        return self.end()

    # What there is to see

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file; none if it is not there."""
        path = self.path / name
        return path.read_text().split() if path.exists() else []

    @property
    def job(self) -> str:
        """The id of the newest job."""
        return self.lines("starts-0")[-1]

    def starts(self) -> list[str]:
        """Return the job of each start; both ranks have started as often."""
        assert self.lines("starts-0") == self.lines("starts-1")
        return self.lines("starts-0")

    def wait_for_start(self, number: int = 1) -> None:
        """Wait until both ranks count, for the first or a later time."""

        def counting() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.told()
            return all(len(self.lines(f"starts-{rank}")) >= number for rank in RANKS)

        self.wait_until(counting, "the ranks")
        seen = [len(self.lines(f"numbers-{rank}")) for rank in RANKS]
        self.wait_until(
            lambda: all(len(self.lines(f"numbers-{rank}")) > seen[rank] + 1 for rank in RANKS),
            "numbers",
        )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds; the message tells what Snakemake told."""
        try:
            self.cluster.wait_until(condition, what, timeout=PATIENCE_S)
        except Exception as error:
            raise AssertionError(f"{error}\nSnakemake told\n{self.told()}") from error

    def wait_for_state(self, state: str) -> None:
        """Wait for a state of the job, in squeue's words."""
        self.wait_until(lambda: self.cluster.job_state(self.job) == state, state)

    def check_result(self, starts: int) -> None:
        """Assert that each number is there once, by so many starts and never two at a time."""
        assert not (self.path / "second-writer").exists()
        assert len(self.starts()) == starts
        numbers = [self.lines(f"numbers-{rank}") for rank in RANKS]
        for counted in numbers:
            assert counted == [str(number + 1) for number in range(len(counted))]
        assert self.lines("result") == numbers[0] + numbers[1]

    def check_failure(self, *reasons: str) -> None:
        """Assert that the first run failed by name, and that the same command then goes on."""
        assert self.end() == 1
        for reason in reasons:
            assert reason in self.told()
        assert "Failed to retrieve" not in self.told()
        assert not (self.path / "result").exists()
        assert self.run_again() == 0, self.told()
        self.check_result(starts=2)


def write_slow(path: Path, *, before: str = ":", after: str = ":") -> Path:
    """Write a program that does more than the one of its name in PATH."""
    return write_program(path, f'{before}\n{shutil.which(path.name)} "$@"\n{after}')
