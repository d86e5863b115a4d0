"""What Snakemake tells Apptainer to run. Apptainer cannot be had here: a stand-in writes down what it is told."""

import json
import os
import sys
from pathlib import Path

import pytest

ROW = {"name": "linear", "dataset": "digits", "model": "linear"}
DIGEST = f"sha256:{'d' * 64}"
BUILT = {
    "id": "", "digest": DIGEST, "reference": None, "archive": None, "base": "debian:12", "tool": "podman",
    "commit": "", "version": "0", "lock": "0" * 64, "code": "",
}  # fmt: skip
# Snakemake asks for the version, then runs a job's command in the image; it stands last.
STAND_IN = """#!/bin/sh
echo "$@" >>"$APPTAINER_LOG"
[ "$1" = --version ] && exec echo apptainer version 1.3.4
for last; do :; done
exec bash -c "$last"
"""


@pytest.fixture
def apptainer(tmp_path, monkeypatch):
    """Return what the stand-in was told, a line for each call."""
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    python = Path(sys.executable).parent  # inside, it is the image's
    monkeypatch.setenv("PATH", f"{program.parent}:{python}:{os.environ['PATH']}")
    monkeypatch.setenv("APPTAINER_LOG", str(tmp_path / "told"))
    return lambda: (tmp_path / "told").read_text().splitlines()


def in_apptainer(project, *arguments):
    return project.snakemake("--software-deployment-method", "apptainer", *arguments)


def test_a_missing_image_is_named(tiny):
    done = in_apptainer(tiny(ROW), "--dry-run")
    assert done.returncode != 0
    assert (
        "image.container is empty, and no image was pushed (results/envs/image.json)" in done.stdout
    )


def test_the_image_that_was_pushed_is_pulled_by_its_digest(tiny, apptainer):
    project = tiny(ROW)
    reference = f"registry.example/shardline@{DIGEST}"
    project.write("results/envs/image.json", json.dumps({**BUILT, "reference": reference}))
    done = in_apptainer(project, "--dry-run")
    assert f"Singularity image docker://{reference} will be pulled" in done.stdout


@pytest.mark.slow
def test_jobs_run_in_the_image_but_not_a_training_whose_ranks_have_their_own(tiny, apptainer):
    sif = "/shared/shardline.sif"
    project = tiny(ROW, image={"container": sif}, runtime={"environment": "image"})
    project.write("results/envs/image.json", json.dumps(BUILT))
    done = in_apptainer(project, "--until", "train")
    assert "the image was built from lock 000000000000" in done.stdout, "the training's own check"
    jobs = [line for line in apptainer() if " exec " in f" {line}"]
    assert jobs
    assert all(f" {sif} " in line for line in jobs)
    assert {rule for rule in ("build_shards", "resolve_run", "train") if f".{rule}.py" in str(jobs)} == {
        "build_shards", "resolve_run",
    }  # fmt: skip

    told = len(apptainer())
    assert project.snakemake("--until", "resolve_run").returncode == 0
    assert len(apptainer()) == told, "without the option nothing of it is asked"
