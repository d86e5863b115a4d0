"""`shardline find`: the ranks of a run try settings through the real pipeline, and keep nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workspace import REPOSITORY

ROW = {"name": "a", "dataset": "table", "model": "mlp", "devices": 2}


@pytest.mark.rotating
@pytest.mark.slow
def test_a_rate_and_a_batch_are_found_by_two_ranks_and_nothing_is_kept(tiny):
    workspace = tiny(ROW)
    command = [Path(sys.executable).with_name("shardline"), "find"]
    profile = ["--profile", REPOSITORY / "profiles" / "local"]
    for setting, last in (("lr", r"optim\.lr: [\d.e-]+\n$"), ("batch", r"global_batch: \d+\n$")):
        done = subprocess.run(
            [*command, setting, "a", *profile],
            cwd=workspace.path, text=True, capture_output=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(last, done.stdout), done.stdout
    assert "an epoch has no more rows" in done.stdout
    assert not (workspace.path / "results/found").exists()
    assert not list(workspace.path.glob("store/work/*"))
    assert not list(workspace.path.glob("results/runs/*"))
