"""Studies in Python: trials as a table, the best as a run, and what a notebook shows of them."""

import json
import shutil

import pytest

from shardline.core.errors import ConfigError, DataError
from shardline.notebook.project import Project
from tests.support.simulated_study import Controller
from tests.support.studies import load, some_fail, write_config

SWEEP = {"trials": 6, "parallel": 2, "sampler": "sobol"}


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Controller(project=load(**SWEEP), fails=some_fail).run()
    write_config(**SWEEP)
    return Project()


def test_a_study_has_its_trials_and_its_best(opened):
    study = opened.studies["s"]
    trials = study.trials
    assert [*trials.index] == [*range(6)]
    assert {"optim.lr", "value", "state", "seconds", "identity", "best"} <= set(trials.columns)
    done = trials[trials["state"] == "done"]
    assert 1 <= len(done) < 6, "some trials of this study fail"
    for number, one in done.iterrows():
        sealed = json.loads(
            (opened.plans.layout.study(study.id) / f"{number}/result-0.json").read_text()
        )
        assert (one["value"], one["seconds"]) == (sealed["value"], sealed["seconds"])
    failed = trials[trials["state"] == "failed"]
    assert failed["value"].isna().all()
    assert failed["failure"].str.len().min() > 0
    best = done["value"].idxmin()
    assert [*trials.index[trials["best"]]] == [best]
    assert study.best.id == trials["identity"][best]
    assert study.best.settings["optim"]["lr"] == trials["optim.lr"][best]
    assert study.run(0).id == trials["identity"][0]
    html = study._repr_html_()
    assert "<svg" in html
    assert trials["identity"][best] in html
    assert repr(study).startswith("<Shardline study s")


def test_a_study_that_has_not_begun_is_shown_and_asked_for_by_name(opened):
    study = opened.studies["s"]
    shutil.rmtree(opened.plans.layout.study(study.id))
    assert list(study.trials["state"]) == ["new"] * 6
    assert "<svg" not in study._repr_html_()
    with pytest.raises(DataError, match="no trial of s has a value"):
        study.best  # noqa: B018
    with pytest.raises(DataError, match="trial 3 of s is not proposed yet"):
        study.run(3)
    with pytest.raises(ConfigError, match="trials 0 to 5, not 6"):
        study.run(6)
