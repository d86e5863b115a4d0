"""Commands that read real results or start ranks print with `--json` what their schemas describe."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.json_output import checked
from tests.support.workspace import REPOSITORY

ROW = {"name": "a", "dataset": "table", "model": "linear", "devices": 1, "trainer.max_epochs": 1}
COMMANDS = {
    "diff": ("diff", "a_seed=1", "a_seed=2"),
    "table": ("table",),
    "report": ("report",),
    "predict": ("predict", "a_seed=1", "table"),
    "export": ("export", "a_seed=1", "--to", "safetensors"),
    "replay": ("replay", "a_seed=1"),
    "find lr": ("find", "lr", "a_seed=1"),
    "find batch": ("find", "batch", "a_seed=1"),
    "preflight": ("preflight", "a_seed=1"),
    "rerun": ("rerun", "a_seed=1"),
}
ON_PROFILE = ("find", "preflight", "rerun")


@pytest.mark.rotating
@pytest.mark.slow
def test_results_are_printed_as_the_schemas_describe(tiny):
    workspace = tiny({**ROW, "seed": [1, 2]})
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    evaluation = workspace.matching("results/runs/*/evaluations/*.json")[0]
    commands = COMMANDS | {"lineage": ("lineage", str(evaluation))}
    program = Path(sys.executable).with_name("shardline")
    for name, words in commands.items():
        profile = ["--profile", REPOSITORY / "profiles/local"] if words[0] in ON_PROFILE else []
        command = [program, *words, "--json", *profile]
        done = subprocess.run(
            command, cwd=workspace.path, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        checked(name, done.stdout)
