"""`shardline preflight`: the ranks meet and nothing is trained."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.cli.new_project import init_project
from tests.support.workspace import REPOSITORY

ROW = {"dataset": "table", "model": "mlp"}


def preflight(workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("shardline")
    profile = REPOSITORY / "profiles" / "local"
    return subprocess.run(
        [command, "preflight", "--profile", profile, *arguments],
        cwd=workspace.path, text=True, capture_output=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_one_run_of_each_geometry_meets_and_nothing_is_trained(workspace, tiny):
    rows = [("a", 1), ("b", 2), ("c", 2)]
    init_project(workspace.path)  # has a Snakefile of its own, which uses ours
    tiny(
        *(
            {**ROW, "name": name, "devices": devices, "seed": seed}
            for seed, (name, devices) in enumerate(rows)
        )
    )
    done = preflight(workspace)
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.rindex("\nb (") :]
    assert "preflight check: nodes=1 x devices=2 by torchrun, backend=gloo" in table
    # the sentence above the table may wrap, by the seconds in it
    assert re.findall(r"^ +(\d+) +\S+ +", table, re.MULTILINE) == ["0", "1"]
    assert "\nc (" not in done.stdout
    assert not (workspace.path / "store" / "datasets").exists()
    assert not list(workspace.path.glob("results/runs/*"))


@pytest.mark.rotating
@pytest.mark.slow
def test_what_is_wrong_is_named_and_a_second_check_starts_again(tiny):
    workspace = tiny({**ROW, "name": "a", "devices": 2}, runtime={"threads_per_rank": 9})
    done = preflight(workspace)
    assert done.returncode == 4
    assert " threads on " in done.stderr, done.stderr
    assert "the preflight check failed" in done.stderr
    workspace = tiny({**ROW, "name": "a", "devices": 2})
    again = preflight(workspace, "a", "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    (found,) = document.values()
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
