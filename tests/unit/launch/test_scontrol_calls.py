"""How often a launch asks Slurm's controller: once, though three parts of it read the answer."""

from pathlib import Path

from shardline.launch import start
from shardline.launch.slurm.allocation import find_allocation
from shardline.pipeline import training
from tests.unit.launch.test_launch_start import JOB


def test_a_launch_asks_scontrol_once_and_a_deadline_asks_again(tmp_path: Path, monkeypatch):
    calls, answer = tmp_path / "calls", tmp_path / "answer"
    answer.write_text(JOB)
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\necho $@ >> '{calls}'\ncat '{answer}'\n")
    program.chmod(0o755)
    env = {"SLURM_JOB_ID": "17", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    monkeypatch.setenv("PATH", env["PATH"])
    assert training._scheduled(env).job == "17"
    assert (
        start.allocation_of_launch(env) == start.allocation_of_launch(env) == find_allocation(env)
    )
    assert len(calls.read_text().splitlines()) == 2, "find_allocation itself asks each time"
