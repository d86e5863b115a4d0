"""Trials with a storage: what comes back from a job's machine, and what a storage without a row's weights cannot do."""

import json
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from shardline.config.layout import ResultsLayout, names_that_have_been
from shardline.config.load import load_project
from shardline.core.errors import ConfigError
from shardline.pipeline import sweep_jobs
from shardline.pipeline.stored_trials import bring_home, pack, packed, unpack
from shardline.pipeline.stored_trials import check_no_combined_trials as check
from shardline.results.sweeps.trials import read_result, read_study
from tests.support.simulated_study import Controller
from tests.support.small_config import CONFIG
from tests.support.studies import TABLE, load, some_fail
from tests.unit.pipeline.test_simulated_rungs import HALVING, MEDIAN

RUN, OTHER = "0123456789ab", "ba9876543210"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def stored(**sweep: object) -> Controller:
    controller = Controller(
        project=load(**sweep), fails=some_fail, storage=Path("../elsewhere/storage").resolve()
    )
    controller.run()
    return controller


@pytest.mark.parametrize("stop", [None, HALVING, MEDIAN])
def test_runs_of_trials_come_back_with_their_names(stop):
    controller = stored(trials=9, sampler="random", **({"stop": stop} if stop else {}))
    layout, plan = controller.project.layout, controller.plan
    names = names_that_have_been(layout, "run")
    trials = read_study(plan.summary(layout)).trials
    ended = [run for one in trials if one.value is not None for run in one.runs if one.runs]
    assert ended
    for run in ended:
        assert (layout.run(run) / "provenance.json").exists()
        assert names[run][0].startswith("s-")
    lines = layout.names_file.read_text().splitlines()
    unpack(controller.project)
    assert layout.names_file.read_text().splitlines() == lines


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_run_that_another_job_sealed_is_linked_although_its_files_are_elsewhere(
    is_sealed, monkeypatch
):
    ended = [SimpleNamespace(end="sealed" if is_sealed else "killed")]
    monkeypatch.setattr(sweep_jobs, "own_attempts", lambda work: ended)
    controller = stored(trials=4, sampler="random")
    files = Path().glob(f"results/studies/{controller.plan.id}/*/result-0.json")
    found = [one.linked for one in map(read_result, files) if one.value is not None]
    assert found
    assert set(found) == {is_sealed}


def test_only_sealed_files_are_unpacked_and_none_is_replaced(tmp_path: Path):
    controller = stored(trials=2, sampler="random")
    layout = controller.project.layout
    result = controller.plan.results(layout, 0)[0]
    result.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(packed(result), "w") as archive:
        for name in (f"{RUN}/run.json", f"{RUN}/../../../escaped", "/escaped", f"{RUN}/code.py"):
            archive.writestr(name, "{}")
        archive.writestr(f"{OTHER}/run.json", '{"new": true}')
    (layout.run(OTHER)).mkdir(parents=True)
    (layout.run(OTHER) / "run.json").write_text("{}")
    unpack(controller.project)
    assert [path.name for path in layout.run(RUN).iterdir()] == ["run.json"]
    assert (layout.run(OTHER) / "run.json").read_text() == "{}"
    assert not [*tmp_path.rglob("escaped")]


def test_a_trial_without_a_run_packs_nothing(tmp_path: Path):
    layout = ResultsLayout(root=Path())
    pack(layout, ["", RUN], tmp_path / "runs-0.zip")
    with ZipFile(tmp_path / "runs-0.zip") as archive:
        assert archive.namelist() == []


def test_files_of_this_disk_stay_where_they_are(tmp_path: Path):
    layout, copy = ResultsLayout(root=Path()), tmp_path / "copies/results/studies/a/0/result-0.json"
    here = Path("results/studies/a/1/result-0.json")
    for path in (copy, here):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(str(path)))
    before = here.stat().st_ino
    bring_home(layout, [str(copy), str(here)])
    assert Path("results/studies/a/0/result-0.json").read_bytes() == copy.read_bytes()
    assert here.stat().st_ino == before


def test_a_row_that_combines_trials_is_rejected():
    Path("config").mkdir()
    Path("config/runs.tsv").write_text(
        f"{TABLE.replace(chr(10), chr(9) + 'average' + chr(10), 1).rstrip()}\t\n"
    )
    row = "mean\tdigits\tmlp\t1\t{of: s, best: 2}\n"
    with Path("config/runs.tsv").open("a") as table:
        table.write(row)
    sweep = {"base": "mlp", "space": {"optim.lr": [0.1, 0.01]}, "sampler": "grid"}
    project = load_project({**CONFIG, "sweeps": {"s": sweep}})
    with pytest.raises(
        ConfigError, match=r"average=s combines the trials of a sweep.*paste the rows"
    ):
        check(project)
