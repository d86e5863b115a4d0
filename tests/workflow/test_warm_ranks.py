"""With the real Snakemake, ranks are forked from the server however the command was started."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.workspace import TINY_CONFIG, Workspace

ROWS = [
    {"name": f"run{seed}", "dataset": "table", "model": "mlp", "devices": 1, "seed": seed}
    for seed in (1, 2)
]
FORKED, COLD = "the ranks are forked from a server", "the ranks are started cold"
# what a user's shell may have: its own `_`, values of several lines, other alphabets, names that no shell can set
ODD = {
    "_": "/usr/bin/own", "OLDPWD": "/", "LINES_OF": "first\nsecond\n", "GRÖSSE": "größe ✓",
    "LATIN": os.fsdecode(b"gr\xf6\xdfe"), "dotted.name-1": "x", "BASH_FUNC_own%%": "() {  echo own\n}", "EMPTY": "",
}  # fmt: skip
# of a package that Lightning imports where it is installed
THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

class S3FileSystem:
    pass
"""


def project(folder: Path, rows: int = 2, **runtime) -> Workspace:
    """Return a project whose trainings each have one rank."""
    workspace = Workspace(folder)
    runtime = {"threads_per_rank": 1, **runtime}
    workspace.configure({**TINY_CONFIG, "runtime": runtime}, ROWS[:rows])
    return workspace


def run(workspace: Workspace, command: list[str], env: dict[str, str]) -> str:
    """Run the pipeline, and return what it prints."""
    done = subprocess.run(
        command, cwd=workspace.path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def jobs(workspace: Workspace, sentence: str) -> list[str]:
    """Return the rules of the jobs whose logs contain a sentence, one for each start of ranks."""
    logs = workspace.matching("logs/*/*.log")
    return sorted(one.parent.name for one in logs for _ in range(one.read_text().count(sentence)))


def results(workspace: Workspace) -> dict[str, tuple[bytes, object]]:
    """Return weights and metrics of each run by its id."""
    found = {}
    for model in workspace.matching("results/runs/*/model.safetensors"):
        (evaluation,) = model.parent.glob("evaluations/*.json")
        headline = json.loads(evaluation.read_text())["headline"]
        found[model.parent.name] = (model.read_bytes(), headline)
    return found


@pytest.mark.slow
@pytest.mark.rotating
def test_all_ranks_are_forked_however_the_command_is_started(tmp_path):
    cold = project(tmp_path / "cold", warm_ranks=False)
    run(cold, cold.command(), {**os.environ})
    assert (jobs(cold, FORKED), jobs(cold, COLD)) == ([], [])
    (tmp_path / "tmp").mkdir()
    # PYTHONPATH where the tests run on another copy than the installed one
    own = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "PYTHONPATH")}
    ways = {
        "shell": lambda command: (["sh", "-c", shlex.join(command)], {**os.environ, **ODD}),
        "bare": lambda command: (["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in own.items()), *command], {}),
        "bash": lambda command: (
            ["bash", "-c", f"export TMPDIR={tmp_path / 'tmp'}; {shlex.join(command)}; exit $?"], {**os.environ, **ODD},
        ),
    }  # fmt: skip
    for name, way in ways.items():
        warm = project(tmp_path / name)
        output = run(warm, *way(warm.command()))
        assert jobs(warm, COLD) == [], f"{name}: ranks were started cold"
        assert jobs(warm, FORKED) == ["evaluate", "evaluate", "train", "train"], name
        assert results(warm) == results(cold)
        assert "have imported torch themselves" not in output


@pytest.mark.slow
@pytest.mark.rotating
def test_the_end_of_the_command_says_why_ranks_were_started_cold(tmp_path):
    cold = project(tmp_path / "project", rows=1)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "s3fs.py").write_text(THREAD)
    path = os.pathsep.join(filter(None, [str(tmp_path / "own"), os.environ.get("PYTHONPATH")]))
    output = run(cold, cold.command(), {**os.environ, "PYTHONPATH": path})
    assert jobs(cold, FORKED) == []
    (line,) = [one for one in output.splitlines() if "have imported torch themselves" in one]
    assert "The ranks of 2 jobs" in line
    assert "imports have started threads" in line
