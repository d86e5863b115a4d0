"""Averages and ensembles of a sweep's trials: their identity, their edge in the DAG, and their members."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from shardline.config.combined import with_members
from shardline.config.job_plan import read_plan, recheck_training, write_plan
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.core.digests import file_sha256
from shardline.core.files import read_object, write_json
from shardline.errors import ConfigError
from shardline.pipeline.bases import read_bases
from shardline.pipeline.members import members_of
from shardline.records.base import encode, sealed
from shardline.records.sweeps import StudyResult, Trial
from shardline.results.dependents import tell_dependents
from shardline.results.outcomes import base_without_model
from shardline.results.staleness import explain
from shardline.results.sweeps.combined_trials import choose_trials
from shardline.results.verify_runs import verify_run
from tests.support.fake_project import FakeProject

SWEEP = {"base": "a", "space": {"optim.lr": [0.1, 0.01, 1.0, 0.5]}, "sampler": "grid"}
ROW = {"dataset": "table", "model": "linear"}
MEAN = {**ROW, "name": "mean", "average": "{of: lr, greedy: validation}"}
BOTH = {**ROW, "name": "both", "ensemble": "{of: lr, best: 2}"}
VALUES = (0.3, None, 0.1, 0.3)


def load(fake: FakeProject, *rows: dict[str, Any], **sweep: Any) -> Project:
    base = {**ROW, "name": "a", "seed": 1, **sweep.pop("row", {})}
    fake.config["sweeps"] = {sweep.pop("name", "lr"): {**SWEEP, **sweep}}
    fake.rows = [*rows, base]
    return fake.load()


def finish(project: Project, values: tuple[float | None, ...] = VALUES) -> list[str]:
    """Seal the study of a project as its jobs would, and return the ids of the trials' runs."""
    (plan,) = project.sweeps.values()
    runs = [f"{number:012x}" for number in range(len(values))]
    for number, run in enumerate(runs):
        folder = project.layout.run(run)
        write_json(folder / "identity.json", {"settings": {"seed": number}})
        save_file({"w": np.full(2, number, np.float32)}, folder / "model.safetensors")
    trials = [
        Trial(
            trial=number, settings={"optim.lr": 0.1}, row=[number], runs=[runs[number]], value=value,
            failure="" if value is not None else "rank 0: diverged",
        )
        for number, value in enumerate(values)
    ]  # fmt: skip
    document = StudyResult(
        study=plan.id, metric="val_loss", mode="min", keys=["optim.lr"], trials=trials,
        identity=plan.document,
    )  # fmt: skip
    write_json(plan.summary(project.layout), sealed(document))
    return runs


def test_the_study_counts_and_not_its_name_and_the_finished_study_is_the_input(fake: FakeProject):
    project = load(fake, MEAN, BOTH)
    (plan,) = project.sweeps.values()
    mean, both = (project.named_runs()[name] for name in ("mean", "both"))
    (base,) = mean.bases
    assert base.path == plan.summary(project.layout)
    assert base.is_made
    assert base.identity.startswith(plan.id)
    counted = {"kind": "average", "sweep": base.identity, "trials": "4"}
    assert mean.document["inputs"]["bases"] == [counted]
    assert mean.document["settings"]["average"] == {"greedy": "validation"}
    assert both.document["settings"]["ensemble"] == {"best": 2}
    assert mean.settings.combined.of == f"sweep:{plan.id}"
    assert both.members_of_ensemble == [both.folder / "provenance.json"]
    # before and after the study has ended, the same run
    finish(project)
    assert load_project().named_runs()["mean"].id == mean.id
    renamed = load(fake, {**MEAN, "average": "{of: other, greedy: validation}"}, name="other")
    assert renamed.named_runs()["mean"].id == mean.id
    for changed in ({"trials": 3}, {"space": {"optim.lr": [0.1, 0.2]}}, {"row": {"seed": 2}}):
        assert load(fake, MEAN, **changed).named_runs()["mean"].id != mean.id
    # a job loads its row and the base run of the sweep alone, and its part is whole
    load(fake, MEAN, BOTH)
    only = load_project(only=["mean"])
    assert {*only.named_runs()} == {"mean", "a"}
    assert only.named_runs()["mean"].id == mean.id
    part = read_plan(write_plan(project.part(runs=[mean.id])))
    recheck_training(part, part.runs[mean.id])
    assert part.runs[mean.id].bases == mean.bases


def test_the_job_reads_the_finished_trials_and_records_them(fake: FakeProject):
    project = load(fake, MEAN, BOTH)
    mean, both = (project.named_runs()[name] for name in ("mean", "both"))
    runs = finish(project)
    members = members_of(mean, {})
    assert [one.run for one in members] == [runs[0], runs[2], runs[3]]
    assert members[1].title == "trial 2 of lr"
    assert [one.run for one in members_of(both, {})] == [
        runs[0],
        runs[2],
    ]  # of equal ones the first
    listed = {"bases": [str(one.path) for one in mean.bases]}  # as Snakemake passes it
    assert members_of(mean, listed) == members
    study, *records = read_bases(mean, listed, None)
    assert [study, *records] == [*read_bases(mean, {}, None)]
    assert study.left_out == {"1": "rank 0: diverged"}
    assert study.counted == mean.bases[0].counted
    assert [one.run for one in records] == [runs[0], runs[2], runs[3]]
    assert records[0].sha256 == file_sha256(project.layout.model(runs[0]))
    # a study that was made again, with another trial without a result
    fake.seal_run(mean)
    path = mean.folder / "provenance.json"
    own = [encode(one) for one in (study, *records)]
    write_json(path, {**read_object(path, remedy=""), "bases": own})
    assert not [one for one in verify_run(project.layout, mean.id).problems if "trials" in one]
    finish(project, (None, 0.2, 0.1, 0.3))
    (problem,) = (one for one in verify_run(project.layout, mean.id).problems if "trials" in one)
    assert re.search(f"trials of .*/study-4.json.*expected.*{runs[1]}", problem)
    finish(project)
    # from the sealed record, once the study itself is gone
    (plan,) = project.sweeps.values()
    plan.summary(project.layout).unlink()
    training = {
        "combined": {
            "kind": "ensemble", "how": "probabilities",
            "members": [{"run": runs[2], "sha256": "0" * 64}],
        }
    }  # fmt: skip
    fake.seal_run(both)
    path = both.folder / "provenance.json"
    write_json(path, {**read_object(path, remedy=""), "training": training})
    assert [one.run for one in with_members(both.spec, project.layout).members] == [runs[2]]


def test_a_study_without_a_result_is_an_error(fake: FakeProject):
    project = load(fake, MEAN)
    finish(project, (None, None, None, None))
    with pytest.raises(
        ConfigError, match=r"mean.*none of its 4 trials has a result \(trial 0: rank 0: diverged\)"
    ):
        members_of(project.named_runs()["mean"], {})


@pytest.mark.parametrize(
    ("row", "sweep", "text"),
    [
        ({"average": "{of: lrs}"}, {}, 'average.of=lrs is no sweep of the config; did you mean "lr"'),
        ({"average": "{of: a}"}, {}, "average.of=a is no sweep of the config; write [run:a] for a run"),
        ({"average": "{of: lr, best: 5}"}, {}, "average.best=5, expected at most the 4 trials"),
        ({"average": "{of: [run:a], best: 1}"}, {}, "average.best=1 is given for a list of runs"),
        (
            {"model": "mlp", "average": "{of: lr}"},
            {"row": {"model": "mlp"}, "space": {"model_args.hidden": [8, 16], "optim.lr": [0.1]}},
            "average names the sweep lr, whose trials differ in model_args.hidden, expected",
        ),
        ({"model": "mlp", "average": "{of: lr}"}, {}, "average names lr, but its model is linear"),
        (
            {"average": "{of: lr}"},
            {"space": {"data.normalize": ["none", "standard"]}},
            "whose trials differ in data.normalize",
        ),
    ],
)  # fmt: skip
def test_sweeps_that_cannot_be_combined_are_rejected(fake: FakeProject, row, sweep, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        load(fake, {**ROW, "name": "mean", **row}, **sweep)


def test_a_sweep_of_the_row_itself_is_a_cycle(fake: FakeProject):
    fake.config["sweeps"] = {"lr": {**SWEEP, "base": "mean"}}
    fake.rows = [MEAN]
    with pytest.raises(ConfigError, match=r"average.of=lr names the row itself"):
        fake.load()


def test_an_argument_that_the_row_sets_may_vary(fake: FakeProject):
    row = {"row": {"model": "mlp"}, "space": {"model_args.dropout": [0.0, 0.5]}}
    mean = {**MEAN, "model": "mlp", "model_args.dropout": 0.0}
    assert load(fake, mean, **row).named_runs()["mean"].bases[0].trials == 2


@given(st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=8), st.data())
def test_the_best_trials_are_those_of_a_sort(values: list[float | None], data: st.DataObject):
    mode = data.draw(st.sampled_from(["min", "max"]))
    best = data.draw(st.none() | st.integers(1, 8))
    trials = [
        Trial(trial=at, settings={}, row=[], runs=[f"{at:012x}"], value=value)
        for at, value in enumerate(values)
    ]
    study = StudyResult(study="0" * 12, metric="val_loss", mode=mode, keys=[], trials=trials)
    found = choose_trials(study, best)
    sign = 1 if mode == "min" else -1
    finished = [at for at, value in enumerate(values) if value is not None]
    ranked = sorted(finished, key=lambda at: sign * (values[at] or 0))  # a stable sort
    assert [one.trial for one in found.trials] == sorted(ranked[:best])
    assert [int(at) for at in found.left_out] == [
        at for at, value in enumerate(values) if value is None
    ]


def test_of_trials_at_rungs_those_at_the_longest_are_members() -> None:
    trials = [
        Trial(trial=n, settings={}, row=[n], runs=[f"{n}"], value=0.1 * n, rung=rung, failure="")
        for n, rung in enumerate((0, 1, 0, 1))
    ]
    study = StudyResult(
        study="s", metric="val_loss", mode="min", keys=[], trials=trials, rungs=[1, 3]
    )
    found = choose_trials(study, None)
    assert found.runs == ["1", "3"]
    assert found.left_out == {"0": "stopped after 1 epoch", "2": "stopped after 1 epoch"}
    assert choose_trials(study, 1).runs == ["1"]


def test_commands_name_the_study(fake: FakeProject):
    project = load(fake, MEAN)
    runs = finish(project)
    mean = project.named_runs()["mean"]
    assert base_without_model(mean, project.runs) is None
    assert tell_dependents(project, {runs[0]})[0].startswith(
        f"mean ({mean.id}) begins from {runs[0]}"
    )
    assert tell_dependents(project, {runs[1]}) == []  # it failed
    fake.seal_run(mean)
    fake.remember("run", "mean", mean.id)
    edited = load(fake, MEAN, row={"optim.momentum": 0.5}, trials=3)
    now = edited.named_runs()["mean"]
    assert base_without_model(now, edited.runs) == (
        "it combines the trials of sweep lr, which has not ended"
    )
    causes = [one.text for one in explain(edited, now).causes]
    assert causes == [
        "through sweep lr: its base run: optim.momentum 0.9 -> 0.5",
        "through sweep lr: trials 4 -> 3",
    ]
    widened = load(fake, MEAN, space={"optim.lr": [0.1, 0.2, 0.3, 0.4]})
    causes = [one.text for one in explain(widened, widened.named_runs()["mean"]).causes]
    assert len(causes) == 1
    assert causes[0].startswith("through sweep lr: space")
