"""A program of another framework under the real Snakemake: a rank killed, another one asked to stop, the same bits."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from shardline.ledger import read_ledger
from tests.support.workspace import SNAKEMAKE
from tests.workflow.test_examples import copied

# Rank 1 kills itself at one step, and has its rank's program asked to end at another, once each.
FAULTS = """        optimizer.step()
        for step, name, target, number in (
            (70, "killed", os.getpid(), signal.SIGKILL), (150, "asked", os.getppid(), signal.SIGTERM)
        ):
            mark = io.work_folder() / name
            if batch.step == step and io.world().rank == 1 and not mark.exists():
                mark.touch()
                os.kill(target, number)
"""


def run(folder: Path, faults: str) -> dict[str, Any]:
    """Run the example once and return what it sealed."""
    folder.mkdir()
    project = copied("torchrun", folder)
    program = (project / "train.py").read_text()
    assert "        optimizer.step()\n" in program
    program = "import os\nimport signal\n" + program.replace("        optimizer.step()\n", faults)
    (project / "train.py").write_text(program)
    for words in (["python", "make_data.py", "data"], ["snakemake", "--profile", "profiles/local"]):
        done = subprocess.run(
            [SNAKEMAKE.parent / words[0], *words[1:]],
            cwd=project,
            text=True,
            check=False,
            timeout=600,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout
    results, work = next(project.glob("results/runs/*")), next(project.glob("store/work/*"))
    records = map(json.loads, (results / "metrics.jsonl").read_text().splitlines())
    attempts = map(json.loads, (work / "attempts.jsonl").read_text().splitlines())
    return {
        "model": load_file(results / "model.safetensors"),
        "metrics": [{k: v for k, v in one.items() if k != "wall_s"} for one in records],
        "ledger": read_ledger(work / "ledger"),
        "ends": [(one["end"], one["exit_code"]) for one in attempts],
        "reasons": (work / "attempts.jsonl").read_text(),
    }


@pytest.mark.rotating
def test_a_killed_and_stopped_program_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path / "whole", "        optimizer.step()\n")
    broken = run(tmp_path / "broken", FAULTS)
    assert whole["ends"] == [("sealed", 0)]
    assert broken["ends"] == [("failed", 1), ("stopped", 75), ("sealed", 0)]
    assert "saved at step 15" in broken["reasons"]
    assert broken["metrics"] == whole["metrics"]
    assert broken["ledger"] == whole["ledger"]
    assert broken["model"].keys() == whole["model"].keys()
    for name, weight in whole["model"].items():
        np.testing.assert_array_equal(broken["model"][name], weight)
