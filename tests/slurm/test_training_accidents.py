"""A real training that accidents strike on a real Slurm ends with the bits of one that none struck.

The accidents of `test_accidents.py` happen here to two ranks on two nodes, one after the other:
to one training those that Slurm repairs by itself, to another those that end in a failure, and a
third has less time than it needs.
"""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import yaml

from tests.support.machines import kill_group
from tests.support.needs import params_to_run
from tests.support.rotation import rotating
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import Workspace

PATIENCE_S = 600

# Slow, so that an accident strikes in the middle, and without an end, until a file `hurry` is there.
MODEL = """
import time
from pathlib import Path

from shardline.training.models.mlp import MLP


class Slow(MLP):
    def training_step(self, batch, batch_idx):
        if not Path("hurry").exists():
            time.sleep(0.7)
        while self.global_step >= 310 and not Path("hurry").exists():
            time.sleep(0.1)
        return super().training_step(batch, batch_idx)
"""
ROW = {"nodes": 2, "devices": 1, "model": "slow:Slow", "trainer.max_epochs": 16}
RUNTIME = {
    "launcher": "srun",
    "checkpoint": {"every_steps": 3},  # 20 steps an epoch
    "hang_timeout_s": 30,
}
NUM_STEPS = 320


class Training:
    """One training by `snakemake --profile`, and what its user sees of it."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Take a project whose dataset is built."""
        self.pipeline, self.path, self.cluster = pipeline, pipeline.path, pipeline.cluster
        self._process: subprocess.Popen[str] | None = None

    # What the user does

    def start(self) -> None:
        """Run the pipeline in the background; always the same command."""
        command = self.pipeline.command("--until", "train")
        with (self.path / "told").open("w") as told:
            self._process = self.cluster.login.popen(*command, cwd=self.path, stdout=told)

    def end(self) -> int:
        """Wait for the command's end and return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill_group(self._process, signal.SIGKILL)
            self._process.wait()
            raise AssertionError(f"Snakemake did not end; it told\n{self.told()}") from None

    def hurry(self) -> None:
        """Let the training go on at full speed."""
        (self.path / "hurry").touch()

    # What there is to see

    def told(self) -> str:
        """Return what the last command has printed."""
        return (self.path / "told").read_text()

    @property
    def job(self) -> str:
        """The id of the one Slurm job that the last command has submitted."""
        (job,) = re.findall(r"has been submitted with SLURM jobid (\d+)", self.told())
        return job

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds while the command runs."""

        def holds() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"ended before {what}; it told\n{self.told()}"
            return condition()

        self.cluster.wait_until(holds, what, timeout=PATIENCE_S)

    def wait_for_state(self, state: str) -> None:
        """Wait for a state of the job, in squeue's words."""
        self.wait_until(lambda: self.cluster.job_state(self.job) == state, state)

    def wait_for_checkpoint(self) -> None:
        """Wait until the training has saved its state once more."""
        known = self._saves()
        self.wait_until(lambda: self._saves() != known, "a training checkpoint")

    def _saves(self) -> list[int]:
        return [path.stat().st_ino for path in self.path.glob("store/work/*/checkpoints/step-*")]

    def resumed(self) -> list[int]:
        """Return the step from which the last start has resumed, if it has.

        Snakemake deletes a rule's log before each start.
        """
        steps = re.findall(r"resuming from step (\d+): 2 ranks on 2 nodes", self.pipeline.log())
        return [int(step) for step in steps]

    def ends(self) -> list[tuple[str, str | None, int]]:
        """Return of each attempt how it ended, why it was asked to, and which retry it was."""
        log = self.pipeline.provenance()["attempt_log"]
        return [(attempt["end"], attempt["stop"], attempt["retry"]) for attempt in log]

    def steps_lost(self) -> list[int]:
        """Return the steps of each attempt that were done again."""
        return [attempt["steps_lost"] for attempt in self.pipeline.provenance()["attempt_log"]]

    def check_failure(self, *reasons: str) -> None:
        """Assert that the command fails, for reasons that it tells, and seals nothing."""
        assert self.end() == 1
        for reason in reasons:
            assert reason in self.told()
        assert not list(self.path.glob("results/runs/*/model.safetensors"))

    def check_end(self, *, attempts: int) -> None:
        """Assert that the command ends well, after so many starts of the training."""
        assert self.end() == 0, self.told() + self.pipeline.log()
        found = self.pipeline.provenance()
        assert found["attempts"] == len(found["attempt_log"]) == attempts
        resumed = [step for a in found["attempt_log"] if (step := a["resumed_step"]) is not None]
        assert resumed == sorted(resumed), "each goes on from where one before it was"
        parts = found["goodput"]["parts"]
        assert sum(parts.values()) == pytest.approx(found["goodput"]["elapsed_s"], rel=0.02)
        assert (parts["lost"] > 0) == (attempts > 1)  # at least the end of a stopped one


def unbroken(run: Training) -> None:
    """Nothing happens."""
    run.hurry()
    run.start()
    run.check_end(attempts=1)
    assert run.resumed() == []


def repaired(run: Training) -> None:
    """Slurm carries one job through it all, and the user does nothing."""
    run.start()
    run.wait_for_checkpoint()

    run.cluster.stop_controller()
    run.wait_for_checkpoint()  # the training goes on meanwhile
    run.cluster.start_controller()
    run.wait_for_state("RUNNING")
    run.wait_for_checkpoint()
    assert run.resumed() == []

    high = run.cluster.sbatch("sleep 1000", "--partition=high", "--nodes=2", "--ntasks=4")
    run.wait_for_state("PENDING")
    run.wait_until(lambda: run.cluster.job_state(high) == "RUNNING", "the other job")
    run.cluster.run("scancel", high)
    run.wait_for_checkpoint()
    (first,) = run.resumed()

    run.cluster.kill_node("n2")
    run.wait_for_state("PENDING")
    run.cluster.start_node("n2", wait=False)
    run.hurry()
    run.check_end(attempts=3)
    (second,) = run.resumed()
    assert 0 < first < second < NUM_STEPS
    first_end, lost_end, last_end = run.ends()
    assert (first_end, last_end) == (("stopped", "preempted", 0), ("sealed", None, 2))
    # whether the ranks could still say what they saw of the node's end
    assert lost_end in [("killed", None, 1), ("failed", None, 1)]
    first_lost, _, last_lost = run.steps_lost()
    assert first_lost == last_lost == 0
    listed = ("squeue", "--noheader", "--states=all", "--format=%i", "--partition=main")
    assert run.cluster.run(*listed).stdout.split() == [run.job]
    assert "Restarts=2" in run.cluster.scontrol("show", "job", run.job)


def limited(run: Training) -> None:
    """Its limit is shorter than the training, and it has itself queued again; torchrun starts it."""
    file = run.path / "profile" / "profile.yaml"
    profile = yaml.safe_load(file.read_text())
    profile["set-resources"]["train"]["runtime"] = (
        4  # minutes; on a busy machine the ranks need one to start
    )
    profile["config"]["runtime"]["launcher"] = "torchrun"
    file.write_text(yaml.safe_dump(profile))
    run.start()
    run.wait_for_checkpoint()
    run.cluster.run("scancel", "--signal=USR1", run.job)  # as `--signal=USR1@60` has Slurm do
    run.wait_for_state("PENDING")
    run.wait_for_state("RUNNING")
    run.wait_for_checkpoint()
    run.wait_for_state("PENDING")
    run.hurry()
    run.check_end(attempts=3)
    assert run.ends() == [("stopped", "signal", 0), ("stopped", "deadline", 1), ("sealed", None, 2)]
    assert run.steps_lost() == [0, 0, 0]
    assert "Restarts=2" in run.cluster.scontrol("show", "job", run.job)


def failed(run: Training) -> None:
    """Killed and hanging ranks are started again; what else fails is named, and the same command goes on."""
    run.start()
    run.wait_for_checkpoint()
    run.cluster.node("n2").run("pkill", "-KILL", "--full", "shardline.training.rank")
    run.wait_for_state("PENDING")
    run.wait_for_state("RUNNING")
    run.wait_for_checkpoint()
    (killed,) = run.resumed()

    run.cluster.node("n2").run("pkill", "-STOP", "--full", "shardline.training.rank")
    run.wait_for_state("PENDING")
    run.wait_for_state("RUNNING")
    run.wait_for_checkpoint()
    (hung,) = run.resumed()

    run.cluster.run("scancel", run.job)
    run.check_failure(
        f"SLURM-job '{run.job}' failed, SLURM status is: 'CANCELLED'",
        "cancelled by scancel or by an administrator; run the same command again",
    )

    run.start()
    run.wait_for_checkpoint()
    (cancelled,) = run.resumed()
    run.cluster.scontrol("update", f"JobId={run.job}", "EndTime=now")
    run.check_failure("longer than its limit of 00:0", ", raise runtime in the profile")

    run.hurry()
    run.start()
    run.check_end(attempts=5)
    (too_long,) = run.resumed()
    assert 0 < killed <= hung < cancelled < too_long < NUM_STEPS
    ends = [end for end, *_ in run.ends()]
    assert ends == ["failed", "hung", "stopped", "stopped", "sealed"]
    assert run.steps_lost()[2:] == [0, 0, 0], "what was told to stop lost nothing"
    reasons = [attempt["reason"] for attempt in run.pipeline.provenance()["attempt_log"]]
    # in Slurm's words, or in its watchdog's where that knew the signal
    assert re.search(r"rank 1 on n2 was killed by a signal \((Killed|SIGKILL)\)", reasons[0])
    assert "rank 1 on n2 hangs at step " in reasons[1]
    assert "its process is stopped (state T)" in reasons[1]


STORIES = {story.__name__: story for story in (failed, limited, repaired, unbroken)}


@pytest.fixture(scope="module")
def trainings(
    request: pytest.FixtureRequest,
    start_slurm: Callable[..., SlurmCluster],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[Pipeline]]]:
    """The trainings side by side, each on a cluster of its own."""
    names = params_to_run(request, "name") | {"unbroken"}
    clusters = {name: start_slurm(changes={"SlurmdTimeout": "5"}) for name in names}
    project = Pipeline(Workspace(tmp_path_factory.mktemp("project")), clusters["unbroken"])
    project.workspace.write("slow.py", MODEL)
    project.configure(runtime=RUNTIME, **ROW)
    done = project.run("--executor", "local", "--cores", "2", "--until", "seal_dataset")
    assert done.returncode == 0, done.stdout

    def train(name: str) -> Pipeline:
        pipeline = project.copy(tmp_path_factory.mktemp(name) / "project", clusters[name])
        STORIES[name](Training(pipeline))
        return pipeline

    with ThreadPoolExecutor() as pool:
        yield {name: pool.submit(train, name) for name in names}


@pytest.mark.parametrize("name", rotating("limited", "repaired", "failed"))
def test_a_training_ends_with_the_bits_of_an_unbroken_one(
    name: str, trainings: dict[str, Future[Pipeline]]
):
    whole, struck = trainings["unbroken"].result(), trainings[name].result()
    assert struck.samples() == whole.samples()
    assert struck.model() == whole.model()
