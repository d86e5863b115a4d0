"""Ranks that are forked from a server train, evaluate, predict and check with the bits of ranks that are started."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace as with_fields
from pathlib import Path

import psutil
import pytest
import torch
from msgspec.structs import replace

from shardline.checkpoints.folder import last_step
from shardline.config.resolved import ActualGeometry, RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.core.files import read_json_lines
from shardline.core.nested import with_values
from shardline.records.base import encode
from shardline.supervision.failure_records import killed_rank
from shardline.supervision.warm.client import VARIABLE, start_warm
from shardline.training.evaluate import evaluate
from shardline.training.predict import predict
from shardline.training.rank_task import (
    Check,
    CheckedDataset,
    Evaluate,
    Predict,
    RankTask,
    read_result,
    read_task,
    write_task,
)
from tests.support.processes import rank_environment, wait_until
from tests.support.rank_tasks import rank_runtime
from tests.support.rotation import rotating
from tests.support.warm_server import held

SMALL = {"trainer.max_epochs": 2, "early_stopping.patience": 0}
MEASURED = {"time", "wall_s", "samples_per_s", "data_wait_s", "step_s"}


@pytest.fixture(autouse=True)
def server():
    """Offer a server to a test; each has a folder of its own, and a folder has a server of its own."""
    with held() as (_, offer), pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, offer)
        yield


def start(task: Path, ranks: int):
    """Fork ranks for a task."""
    env = {
        name: value for name, value in rank_environment().items() if name != "PYTEST_CURRENT_TEST"
    }
    return start_warm(
        [str(task)], module="shardline.training.rank", env={**env, "HOME": str(Path.home())}, ranks=ranks,
        run_id="warm", grace_s=10, package="pytorch_lightning",
    )  # fmt: skip


def finish(task: Path, ranks: int) -> str:
    """Fork ranks for a task, and return what they printed."""
    warm = start(task, ranks)
    output = warm.stdout.read()
    assert warm.wait() == 0, output
    return output


def steps(folder: Path) -> list[dict]:
    """Return the metric records of a training, without times."""
    records = read_json_lines(folder / "results/metrics.jsonl")
    return [{key: one[key] for key in one.keys() - MEASURED} for one in records]


@pytest.mark.parametrize("devices", [2, *rotating(1)])
def test_a_training_evaluation_and_prediction_have_the_same_bits(prepare, devices):
    ranks = with_fields(prepare(devices=devices, **SMALL), is_by_torchrun=True)
    ranks.train("cold")
    finish(ranks.spec_file("warm"), devices)
    assert ranks.model("warm") == ranks.model("cold")
    assert steps(ranks.root / "warm") == steps(ranks.root / "cold")
    cold, warm = ranks.provenance("cold"), ranks.provenance("warm")
    for one in (cold, warm):
        for rank in one["world"]["ranks"]:
            rank.pop("latency_s", None)
        one["action"]["variables"].pop("MASTER_PORT", None)
        one["action"]["variables"].pop("PYTEST_CURRENT_TEST", None)
    assert warm["action"]["variables"] == cold["action"]["variables"]
    assert warm["world"]["launcher"] == cold["world"]["launcher"]

    task = read_task(ranks.root / "warm/rank.json")
    model, folder = ranks.results("warm") / "model.safetensors", ranks.root / "again"
    (folder / "parts").mkdir(parents=True)
    geometry = ActualGeometry(nodes=1, devices=devices)
    task = replace(task, work=folder, rank_logs=folder / "logs", geometry=geometry)
    found = folder / "found.json"
    action = Evaluate(model=model, output=found, has_test_step=False, has_samples=False)
    write_task(folder / "evaluate.json", replace(task, action=action))
    parts = (0,)
    rows = task.datasets[0]
    write_task(
        folder / "predict.json",
        replace(task, action=Predict(model=model, rows=rows, split="test", parts=parts, folder=folder / "parts")),
    )  # fmt: skip
    finish(folder / "evaluate.json", devices)
    finish(folder / "predict.json", devices)

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the job does
    try:
        here = evaluate(task.run, model_file=model, datasets=task.datasets)
        (folder / "here").mkdir()
        list(predict(
            task.run, model_file=model, trained_on=task.datasets, rows=rows, split="test", parts=parts,
            folder=folder / "here",
        ))  # fmt: skip
    finally:
        torch.set_num_threads(before)
    assert json.loads(found.read_text()) == json.loads(json.dumps(encode(here)))
    files = sorted(path.name for path in (folder / "here").iterdir())
    assert files
    for name in files:
        assert (folder / "parts" / name).read_bytes() == (folder / "here" / name).read_bytes()


@pytest.mark.rotating
def test_a_check_has_the_same_bits(tmp_path):
    given = with_values({}, {"global_batch": 32, "nodes": 1, "devices": 1})
    run = RunSpec(
        run="0123456789ab", name="net", model="bits", model_class="tests.support.checked_bits:Bits",
        settings=as_type(fill(given, schema_of(RunSettings)), RunSettings),
    )  # fmt: skip
    dataset = CheckedDataset(
        id="ba9876543210", name="rows", manifest=tmp_path / "none", shards=tmp_path / "none",
        source_class="shardline.data.sources.synthetic:Synthetic",
        source={"options": {"rows_per_shard": 100, "features": 8}}, num_shards=4, files=[],
    )  # fmt: skip
    found = {}
    for kind in ("cold", "warm"):
        folder = tmp_path / kind
        folder.mkdir()
        task = RankTask(
            run=run, action=Check(sources=(dataset,), output=folder / "result.json", memory_bytes=1 << 40), work=folder,
            rank_logs=folder / "logs", runtime=rank_runtime(),
        )  # fmt: skip
        write_task(folder / "rank.json", task)
        if kind == "warm":
            output = finish(folder / "rank.json", 1)
        else:
            command = [sys.executable, "-m", "shardline.training.rank", str(folder / "rank.json")]
            output = subprocess.run(
                command, env=rank_environment(), capture_output=True, text=True, check=True
            ).stdout
        bits = [line for line in output.splitlines() if line.startswith("bits ")]
        found[kind] = ((folder / "result.json").read_text(), bits)
    assert found["warm"] == found["cold"]
    assert len({*found["cold"][1]}) > 1, "steps were done"
    assert not read_result(tmp_path / "warm" / "result.json").problems


HELD = """
import time
from pathlib import Path

from shardline.training.models.mlp import MLP


class Held(MLP):
    def training_step(self, batch, batch_idx):
        while self.global_step == 12 and Path("hold").exists():
            time.sleep(0.01)
        return super().training_step(batch, batch_idx)
"""


def test_a_killed_rank_is_named_and_the_next_attempt_resumes_with_the_same_bits(prepare, tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    ranks = prepare(every_steps=5, devices=2, model="held:Held", **SMALL)
    ranks.train("whole")
    (ranks.root / "hold").touch()
    warm = start(ranks.spec_file("killed"), 2)
    for line in warm.stdout:
        if line.startswith("starting:"):
            break
    wait_until(lambda: last_step(ranks.root / "killed/work/checkpoints") >= 10, warm)
    rank = max(child.pid for child in psutil.Process(warm.pid).children())
    os.kill(rank, signal.SIGKILL)
    (ranks.root / "hold").unlink()
    output = warm.stdout.read()
    assert warm.wait() == 1
    assert "was killed by a signal (SIGKILL)" in (killed_rank(output) or output)
    assert "resuming from step" in finish(ranks.spec_file("killed"), 2)
    assert ranks.model("killed") == ranks.model("whole")
