"""Mistakes and accidents, each really made: one clear sentence, a non-zero exit, nothing lost."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import training_job, wait_until
from tests.support.workspace import REPOSITORY

LONG = {"trainer.max_epochs": 400}


def sealed(folder: Path) -> list[Path]:
    """Return whatever was written below results/runs beside the resolved spec."""
    return [
        f for f in folder.glob("results/runs/*/*") if f.name not in ("run.json", "identity.json")
    ]


def test_more_devices_than_the_machine_has_is_refused_before_any_job(tiny):
    workspace = tiny(
        {"name": "wide", "dataset": "digits", "model": "linear", "devices": 64, "global_batch": 64}
    )
    done = workspace.snakemake()
    assert done.returncode != 0
    assert 'config/runs.tsv row 1 (run "wide"): devices=64, but this machine has' in done.stdout
    assert "Traceback" not in done.stdout
    assert not (workspace.path / "results").exists()


TINY_ROW = {"name": "run", "dataset": "digits", "model": "linear"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{**TINY_ROW, "optim.lrr": 1}],
            'config/runs.tsv: column "optim.lrr" is not a known setting; did you mean',
        ),
        ([TINY_ROW, TINY_ROW], 'config/runs.tsv row 2 (run "run"): the name "run" is taken by'),
        (
            [{**TINY_ROW, "dataset": "digit"}],
            "dataset=digit is not in datasets of config/config.yaml; did you mean",
        ),
        ([{**TINY_ROW, "global_batch": 101}], "global_batch=101 cannot be split over 2 ranks"),
        (
            [{**TINY_ROW, "model": "mypkg.models:Net"}],
            'run "run"): model=mypkg.models:Net: no module',
        ),
    ],
)
def test_a_mistake_in_the_table_is_one_sentence_before_any_job(tiny, rows, message):
    done = tiny(*rows).snakemake()
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_a_model_that_does_not_import_shows_the_users_own_traceback_only(tiny):
    workspace = tiny({"name": "own", "dataset": "table", "model": "mypkg.models:Net", "devices": 1})
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/models.py", "from mypkg import helpers\n\nclass Net: ...\n")
    workspace.write("mypkg/helpers.py", "def rate():\n    return 1 / 0\n\nRATE = rate()\n")
    done = workspace.snakemake()
    assert done.returncode != 0
    assert 'run "own": model=mypkg.models:Net does not import: ZeroDivisionError' in done.stdout
    assert "helpers.py, line 2, in rate: return 1 / 0" in done.stdout
    assert "importlib" not in done.stdout
    assert not sealed(workspace.path)


@pytest.mark.slow
def test_a_model_that_fails_in_a_step_shows_the_users_own_frames_only(tiny):
    workspace = tiny({"name": "own", "dataset": "table", "model": "mypkg.models:Net", "devices": 1})
    model = (REPOSITORY / "docs/own-model.md").read_text().split("```python\n")[1].split("```")[0]
    workspace.write(
        "mypkg/models.py", model.replace("return self.net(features)", "return self.nett(features)")
    )
    done = workspace.snakemake()
    assert done.returncode != 0
    assert "AttributeError: 'Net' object has no attribute 'nett'" in done.stdout
    assert "mypkg/models.py, line 21, in forward: return self.nett(features)" in done.stdout
    assert "site-packages" not in done.stdout
    log = workspace.the("logs/train/*/attempt-1.log")
    assert "site-packages" in log.read_text(), "the log has all of it"
    assert f"its log is {log.with_name('attempt-2.log').relative_to(workspace.path)}" in done.stdout


@pytest.mark.slow
def test_a_truncated_shard_is_named_with_its_remedy_and_the_remedy_works(tiny):
    workspace = tiny({"name": "run", "dataset": "table", "model": "linear", "devices": 1})
    assert workspace.snakemake("--until", "seal_dataset").returncode == 0
    shard = sorted(workspace.path.glob("store/datasets/*/shard-*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    done = workspace.snakemake()
    assert done.returncode != 0
    found = f"{shard.name} has {len(whole) - 100:,} bytes, its manifest says {len(whole):,}"
    remedy = f"run `shardline verify --repair {shard.parent.name}` and start the pipeline again"
    assert f"{found}; {remedy}" in done.stdout
    assert not sealed(workspace.path)
    shardline = Path(sys.executable).with_name("shardline")
    repair = [shardline, "verify", "--repair", shard.parent.name]
    subprocess.run(repair, cwd=workspace.path, check=True, capture_output=True)
    assert workspace.snakemake("--until", "train").returncode == 0
    assert shard.read_bytes() == whole


def start(workspace):
    """Start the pipeline in a process group of its own, as a terminal does, with no old logs and no retries."""
    shutil.rmtree(workspace.path / "logs", ignore_errors=True)
    return subprocess.Popen(
        workspace.command("--retries", "0"), cwd=workspace.path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def kill_job(workspace, when):
    """Kill the train job outright once a condition holds, and see that no rank is left."""
    process = start(workspace)
    wait_until(when, process)
    job = training_job(process.pid)
    ranks = job.children(recursive=True)
    job.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    _, alive = psutil.wait_procs(ranks, timeout=120)
    assert not alive, output


def interrupt(workspace, when):
    """Start the pipeline, press Ctrl-C once a condition holds, and see that nothing is left."""
    process = start(workspace)
    try:
        wait_until(when, process)
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 3, "launcher and ranks are running"
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    _, alive = psutil.wait_procs(started, timeout=120)
    assert not alive, output
    assert not sealed(workspace.path)
    return output


@pytest.mark.slow
def test_ctrl_c_or_sigkill_leaves_nothing_running_and_the_next_run_resumes(tiny):
    row = {"name": "run", "dataset": "table", "model": "mlp", **LONG}
    workspace = tiny(row, runtime={"checkpoint": {"every_steps": 5}})

    def has_saved():
        return bool(list(workspace.path.glob("store/work/*/checkpoints/step-*/state.pt")))

    def has_resumed():
        return any(
            "resuming from step" in log.read_text()
            for log in workspace.path.glob("logs/train/*.log")
        )

    interrupt(workspace, has_saved)
    kill_job(workspace, has_resumed)
    interrupt(workspace, has_resumed)


def test_a_store_that_cannot_be_written_to_is_one_sentence_before_any_job(tiny):
    workspace = tiny({"name": "run", "dataset": "digits", "model": "linear"})
    done = workspace.snakemake(env={"SHARDLINE_STORE": "/proc/self"})
    assert done.returncode != 0
    assert (
        "store /proc/self cannot be written to; mend its permissions or mount, or set SHARDLINE_STORE"
        in done.stdout
    )
    assert "Traceback" not in done.stdout
    assert "rule build_shards" not in done.stdout
