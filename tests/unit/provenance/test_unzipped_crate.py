"""A crate that was unzipped elsewhere: the commands that check results work in its folder."""

import shutil
from pathlib import Path

import pytest

from shardline.pipeline import late_report
from tests.support.command_line import shardline
from tests.support.fake_project import FakeProject


def test_lineage_and_verify_work_in_an_unzipped_crate(
    fake: FakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = fake.seal_all()
    late_report.render(project)
    packed = shardline("crate", "--zip", "packed.zip", "--with-data")
    assert packed.exit_code == 0, packed.output
    shutil.unpack_archive("packed.zip", tmp_path / "unzipped")
    for name in ("mypkg", "data"):  # what a crate does not contain
        shutil.copytree(name, tmp_path / "unzipped" / name)
    monkeypatch.chdir(tmp_path / "unzipped")

    verified = shardline("verify")
    assert verified.exit_code == 0, verified.output
    run = project.named_runs()["net"].id
    traced = shardline("lineage", f"results/runs/{run}/model.safetensors")
    assert (traced.exit_code, f"train/{run}" in traced.stdout) == (0, True), traced.output
