"""Who starts a training again on this machine: Snakemake, from where it was, and not for ever."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import training_job, wait_until
from tests.support.workspace import Workspace

# Slow, and without an end, until a file `hurry` is there; fails at one place while `fail` is.
MODEL = """
import time
from pathlib import Path

from shardline.training.models.mlp import MLP


class Own(MLP):
    def training_step(self, batch, batch_idx):
        if not Path("hurry").exists():
            time.sleep(0.2)
        while self.global_step >= 300 and not Path("hurry").exists():
            time.sleep(0.1)
        if Path("fail").exists() and self.global_step == 7:
            raise RuntimeError(f"no luck at {id(self):#x}")
        return super().training_step(batch, batch_idx)
"""
ROW = {"name": "run", "dataset": "table", "model": "own:Own", "trainer.max_epochs": 20}


class Training:
    """One training by the real Snakemake, in a process group of its own as a terminal gives it."""

    def __init__(self, workspace: Workspace, store: Path | None = None) -> None:
        workspace.write("own.py", MODEL)
        self.workspace, self.path = workspace, workspace.path
        self.store = store or workspace.path / "store"
        self.process: subprocess.Popen[str]

    def start(self, *arguments: str) -> None:
        """Run the same command as ever."""
        shutil.rmtree(self.path / "logs", ignore_errors=True)
        self.process = subprocess.Popen(
            self.workspace.command("--until", "train", *arguments), cwd=self.path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "SHARDLINE_STORE": str(self.store)},
        )  # fmt: skip

    def end(self) -> str:
        """Wait for the command's end and return what it told."""
        return self.process.communicate(timeout=300)[0]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds while the command runs."""
        wait_until(condition, self.process)

    def is_at(self, step: int) -> bool:
        """Return whether the training has recorded a step."""
        logs = self.store.glob("work/*/metrics.jsonl")
        return any(f'"step": {step},' in log.read_text() for log in logs)

    def attempts(self) -> list[dict[str, Any]]:
        """Return the attempts so far."""
        lines = self.workspace.the("store/work/*/attempts.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def is_waiting(self) -> bool:
        """Return whether its job waits for another one's end."""
        logs = (self.path / "logs" / "train").glob("*.log")
        return any("waiting until it exits" in log.read_text() for log in logs)

    def model(self) -> bytes:
        """Return the sealed weights."""
        return self.workspace.the("results/runs/*/model.safetensors").read_bytes()

    def shardline(self, command: str) -> str:
        """Return what a command of Shardline's prints."""
        program = Path(sys.executable).with_name("shardline")
        env = {**os.environ, "SHARDLINE_STORE": str(self.store)}
        return subprocess.run(
            [program, command], cwd=self.path, env=env, text=True, capture_output=True, check=True
        ).stdout

    def hurry(self) -> None:
        """Let it go on at full speed."""
        (self.path / "hurry").touch()


@pytest.fixture
def training(tiny: Callable[..., Workspace]) -> Training:
    return Training(tiny(ROW, runtime={"log_every_steps": 1}))


@pytest.fixture
def tell_cost(record_property: Callable[[str, object], None]) -> Callable[[Training], None]:
    """Tell what was lost where one attempt trains, and another only has to see that it has."""

    def tell(training: Training) -> None:
        attempts = training.attempts()
        trained, later = (datetime.fromisoformat(one["ended"]) for one in attempts)
        record_property("steps_lost", sum(one["steps_lost"] for one in attempts))
        record_property("seconds_lost", (later - trained).total_seconds())

    return tell


@pytest.mark.slow
def test_ctrl_c_saves_and_a_job_told_to_end_is_started_again_by_snakemake(training):
    training.start()
    training.wait(lambda: training.is_at(3))
    started = psutil.Process(training.process.pid).children(recursive=True)
    os.killpg(training.process.pid, signal.SIGINT)
    output = training.end()
    assert training.process.returncode != 0
    (saved,) = re.findall(
        r"interrupted: saved at step (\d+); the same command resumes from there", output
    )
    assert not psutil.wait_procs(started, timeout=60)[1]
    assert re.search(r"^run +stopped$", output, re.MULTILINE), output
    assert re.search(r"jobs done, 1 stopped, ", output), output
    assert "failed" not in output
    assert "0 runs with a result, 1 stopped" in training.shardline("report")
    (stopped,) = training.attempts()
    assert stopped["last_step"] == int(saved)

    training.start()
    training.wait(lambda: training.is_at(int(saved) + 3))
    training_job(training.process.pid).send_signal(signal.SIGTERM)
    training.wait(lambda: len(training.attempts()) == 3)
    training.hurry()
    assert training.end()
    assert training.process.returncode == 0
    ends = [(one["end"], one["stop"], one["retry"]) for one in training.attempts()]
    assert ends == [("stopped", "interrupted", 0), ("stopped", "preempted", 0), ("sealed", None, 1)]
    assert [one["steps_lost"] for one in training.attempts()] == [0, 0, 0]
    resumed = [one["resumed_step"] for one in training.attempts()]
    assert resumed == [0, int(saved), training.attempts()[1]["last_step"]]


@pytest.mark.rotating
@pytest.mark.slow
def test_the_same_error_at_the_same_place_is_not_tried_for_ever(training):
    training.hurry()
    (training.path / "fail").touch()
    training.start()
    output = training.end()
    assert training.process.returncode == 1
    assert [(one["end"], one["retry"]) for one in training.attempts()] == [
        ("failed", 0),
        ("failed", 1),
    ]
    assert "not started again, since two attempts in a row ended before they had saved" in output
    assert output.count("two attempts in a row") == 1, "the third attempt repeats nothing"
    assert "RuntimeError: no luck at" in output

    (training.path / "fail").unlink()
    training.start()
    assert training.end()
    assert training.process.returncode == 0
    assert [(one["end"], one["retry"]) for one in training.attempts()][2:] == [("sealed", 0)]


@pytest.mark.rotating
@pytest.mark.fault
@pytest.mark.slow
def test_a_job_that_outlives_a_killed_snakemake_is_waited_for(training, tell_cost):
    training.start()
    training.wait(lambda: training.is_at(3))
    job = training_job(training.process.pid)
    training.process.kill()
    training.process.wait()
    assert re.search(r"\brunning, step \d+ of ", training.shardline("ls"))
    assert "0 runs with a result, 1 running" in training.shardline("report")
    page = (training.path / "results/report/index.html").read_text()
    assert "0 of 1 run finished; 1 running" in page
    assert "it trains: step " in page
    training.start()
    assert "run the same command with --unlock at its end" in training.end()
    subprocess.run(training.workspace.command("--unlock"), cwd=training.path, check=True)
    training.start()
    training.wait(training.is_waiting)
    training.hurry()
    output = training.end()
    assert training.process.returncode == 0, output
    assert re.search(rf"another job \(process {job.pid} on .*, now at step \d+\)", output)
    first, second = training.attempts()
    assert (first["end"], second["end"]) == ("sealed", "sealed"), first["reason"]
    assert second["resumed_step"] == second["last_step"] == first["last_step"]
    tell_cost(training)


@pytest.mark.fault
@pytest.mark.slow
def test_two_controllers_of_one_store_train_a_run_once(training, tell_cost, tmp_path):
    training.start()
    training.wait(lambda: training.is_at(3))
    beside = subprocess.run(
        training.workspace.command(), cwd=training.path, text=True, capture_output=True, check=False
    )
    assert beside.returncode == 1
    assert "--unlock" in beside.stderr, "a second one in the same folder is refused by Snakemake"

    config = training.path / "config"
    shutil.copytree(config, tmp_path / "clone" / "config")
    clone = Training(Workspace(tmp_path / "clone"), training.store)
    clone.start()
    clone.wait(clone.is_waiting)
    for each in (training, clone):
        each.hurry()
    for each in (training, clone):
        output = each.end()
        assert each.process.returncode == 0, output
    first, second = training.attempts()
    assert (first["end"], second["end"]) == ("sealed", "sealed")
    assert second["resumed_step"] == first["last_step"], "no step is taken twice"
    assert clone.model() == training.model()
    tell_cost(training)
