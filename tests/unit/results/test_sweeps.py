"""What samplers propose, against loops of Optuna, and what commands say of a study."""

import importlib.metadata
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardline.cli import app
from shardline.config import load_sweeps
from shardline.config.layout import add_names
from shardline.config.load import load_project
from shardline.config.settings.sweep_settings import Objective, SweepSettings
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError
from shardline.core.files import read_json, write_json
from shardline.core.seals import seal
from shardline.records.sweeps import Proposal, Seen, TrialResult
from shardline.results.gc import find_garbage
from shardline.results.select import find_run
from shardline.results.sweeps import trials as sealed_trials
from shardline.results.sweeps.describe import best_trial, cell_of, line_of
from shardline.results.sweeps.earlier import all_notes
from shardline.results.sweeps.measured import measured
from shardline.results.sweeps.proposing import next_proposal
from shardline.results.sweeps.samplers import seed_of, worst_of
from shardline.results.sweeps.trials import (
    read_proposal,
    runs_of_studies,
    trials_so_far,
)
from shardline.results.verify import verify_target
from shardline.sources import Schema
from tests.support.command_line import shardline
from tests.support.labelled_rows import Labelled, in_thirds, run_of, sealed, trained
from tests.support.simulated_study import Controller
from tests.support.small_config import CONFIG
from tests.support.studies import TABLE, load, run_of_pasted_row, some_fail, write_config

Function = Callable[[dict[str, Any]], float]


def sphere(at: dict[str, Any]) -> float:
    return float(at["model_args.x"] ** 2 + (at["model_args.y"] - 3) ** 2)


def steps(at: dict[str, Any]) -> float:
    return float(
        abs(math.log10(at["optim.lr"]) + 3)
        + {"relu": 0.0, "gelu": 0.5, "tanh": 1.0}[at["model_args.act"]]
    )


def branches(at: dict[str, Any]) -> float:
    own = at["optim.momentum"] if at["optim.name"] == "sgd" else 0.5
    return float((own - 0.9) ** 2 + (at["optim.lr"] - 0.01) ** 2)


SPACES: dict[Function, dict[str, Any]] = {
    sphere: {"model_args.x": {"uniform": [-5, 5]}, "model_args.y": {"int": [-10, 10]}},
    steps: {"optim.lr": {"log": [1e-5, 1e-1]}, "model_args.act": ["relu", "gelu", "tanh"]},
    branches: {
        "optim.name": ["sgd", "adamw"],
        "optim.momentum": {"uniform": [0, 0.99], "when": {"optim.name": "sgd"}},
        "optim.lr": {"log": [1e-4, 1.0]},
    },
}


def plan_of(space: dict[str, Any], **settings: Any) -> SweepPlan:
    """Return a sweep without a project: the identity does not matter here."""
    from shardline.config.resolved import as_type

    entry = as_type({"base": "b", "space": space, **settings}, SweepSettings)
    return SweepPlan(name="s", base="b", settings=entry, document={}, trials=settings["trials"])


def proposed(plan: SweepPlan, function: Function, every: int = 7) -> list[Proposal]:
    """Return the proposals of a study in which one of `every` trials fails."""
    found: list[Proposal] = []
    for trial in range(plan.trials):
        known = range(plan.visible(trial - 1), plan.visible(trial))
        results = [
            [
                TrialResult(
                    study="",
                    trial=one,
                    value=function(found[one].settings) if one % every != every - 2 else None,
                )
            ]
            for one in known
        ]
        found.append(next_proposal(plan, trial, found[-1] if found else None, results))
    return found


def by_optuna(
    plan: SweepPlan, function: Function, parallel: int, sampler: str = "TPESampler", every: int = 7
) -> list[dict[str, Any]]:
    """Ask and tell as a user of Optuna does, with as many trials in flight, and a sampler seeded for each trial."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    flying: list[tuple[Any, dict[str, Any]]] = []
    asked = []
    for number in range(plan.trials):
        if len(flying) == parallel:
            trial, settings = flying.pop(0)
            if trial.number % every == every - 2:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, function(settings))
        study.sampler = getattr(optuna.samplers, sampler)(seed=seed_of(0, number))
        trial = study.ask()
        settings = suggested(trial, function)
        flying.append((trial, settings))
        asked.append(settings)
    return asked


def suggested(trial: Any, function: Function) -> dict[str, Any]:
    if isinstance(function, Trainings):
        return {
            "model_args.hidden": trial.suggest_categorical("model_args.hidden", [4, 16]),
            "optim.lr": trial.suggest_float("optim.lr", 1e-4, 1.0, log=True),
        }
    if function is sphere:
        return {
            "model_args.x": trial.suggest_float("model_args.x", -5, 5),
            "model_args.y": trial.suggest_int("model_args.y", -10, 10),
        }
    if function is steps:
        act = trial.suggest_categorical("model_args.act", ["relu", "gelu", "tanh"])
        return {
            "model_args.act": act,
            "optim.lr": trial.suggest_float("optim.lr", 1e-5, 1e-1, log=True),
        }
    found = {"optim.lr": trial.suggest_float("optim.lr", 1e-4, 1.0, log=True)}
    found["optim.name"] = trial.suggest_categorical("optim.name", ["sgd", "adamw"])
    if found["optim.name"] == "sgd":
        found["optim.momentum"] = trial.suggest_float("optim.momentum", 0, 0.99)
    return found


@pytest.mark.parametrize("parallel", [1, 8])
@pytest.mark.parametrize("function", SPACES)
def test_tpe_proposes_what_a_loop_of_optuna_does_with_as_many_trials_in_flight(function, parallel):
    plan = plan_of(SPACES[function], sampler="tpe", trials=30, parallel=parallel)
    assert [one.settings for one in proposed(plan, function)] == by_optuna(plan, function, parallel)


class Trainings:
    """The lowest validation loss of real trainings in this process, a new one for each call."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        features = random.normal(size=(160, 4)).astype(np.float32)
        labels = features[:, 0] * features[:, 1]
        source = Labelled(
            Schema(feature_shape=(4,), task="regression"), in_thirds(160), features=features, labels=labels
        )  # fmt: skip
        self._folder, self._place, self.number = folder, sealed(folder / "data", source), 0

    def __call__(self, settings: dict[str, Any]) -> float:
        self.number += 1
        folder = self._folder / str(self.number)
        trained(folder, self._place, run_of("mlp", **settings))
        (metrics,) = folder.rglob("metrics.jsonl")
        found = measured(TrialResult(study="", trial=0), metrics.parent, Objective())
        assert found.value is not None
        return found.value


@pytest.mark.rotating
@pytest.mark.parametrize(("parallel", "trials"), [(1, 13), (8, 20)])
def test_trainings_are_proposed_as_by_a_loop_of_optuna_that_trains(parallel, trials, tmp_path):
    pytest.importorskip("optuna")
    space = {"optim.lr": {"log": [1e-4, 1.0]}, "model_args.hidden": [4, 16]}
    plan = plan_of(space, sampler="tpe", trials=trials, parallel=parallel)
    train = Trainings(tmp_path)
    found = [one.settings for one in proposed(plan, train)]
    assert train.number >= trials - parallel - 2
    assert found == by_optuna(plan, train, parallel)
    by_random = plan_of(space, sampler="random", trials=trials, parallel=parallel)
    assert found != [one.settings for one in proposed(by_random, lambda _: 0.0)]


@pytest.mark.parametrize("parallel", [1, 3])
def test_gp_proposes_what_a_loop_of_optuna_does_and_repeats_itself(parallel):
    plan = plan_of(SPACES[branches], sampler="gp", trials=14, parallel=parallel)
    found = [one.settings for one in proposed(plan, branches, every=100)]
    assert found == by_optuna(plan, branches, parallel, "GPSampler", every=100)
    # a failed trial is told as the worst
    found = proposed(plan, branches)
    assert found == proposed(plan, branches)
    assert len({str(one.settings) for one in found}) == 14


OWN = """
from optuna.samplers import RandomSampler


class Mine(RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        return super().sample_independent(study, trial, name, distribution)


def two(seed):
    return seed


def none():
    return None
"""


def test_a_sampler_is_named_by_its_import_path_and_its_code_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_samplers.py").write_text(OWN)
    project = load(sampler="own_samplers:Mine", trials=4)
    controller = Controller(project=project)
    controller.run()
    optuna = pytest.importorskip("optuna")
    rates = [one[0]["optim.lr"] for one in controller.outcome()[0]]
    assert len(set(rates)) == 4
    assert controller.plan.document["versions"]["optuna"] == optuna.__version__
    plain = load(sampler="optuna.samplers:RandomSampler", trials=4)
    other = Controller(project=plain)
    other.run()
    assert [one[0]["optim.lr"] for one in other.outcome()[0]] == rates
    Path("own_samplers.py").write_text(OWN.replace("return super()", "return 0.5 * super()"))
    assert load(sampler="own_samplers:Mine", trials=4).sweeps.keys() != project.sweeps.keys()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("own_samplers:two", "made a int, expected a sampler of Optuna"),
        ("own_samplers:none", "name a class or function that accepts seed"),
        ("optuna.samplers:GridSampler", "cannot be made with seed="),
        ("optuna.samplers:CmaEsSampler", "each trial has a study of its own; set sampler: cmaes"),
    ],
)
def test_what_is_no_sampler_is_named(path, sentence, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_samplers.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_samplers", raising=False)
    plan = plan_of(SPACES[sphere], sampler=path, trials=1)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        proposed(plan, sphere)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "sobol", "random"])
def test_every_sampler_repeats_itself_and_the_adaptive_ones_come_closer(sampler):
    pytest.importorskip("cmaes")
    plan = plan_of(SPACES[sphere], sampler=sampler, trials=40, parallel=3)
    found = proposed(plan, sphere)
    assert found == proposed(plan, sphere)
    values = [sphere(one.settings) for one in found]
    if sampler in ("tpe", "cmaes"):
        assert sum(values[-10:]) < 0.5 * sum(values[:10])
    assert all(-5 <= one.settings["model_args.x"] <= 5 for one in found)
    assert {type(one.settings["model_args.y"]) for one in found} == {int}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 0.2, 0.3], (0.2, 1, "")),
        ([None, 0.4], (0.4, 1, "")),
        ([None, None], (None, None, "val_loss is NaN or infinite in every validation")),
    ],
)
def test_a_value_is_the_best_validation_and_nan_is_none(values, expected, tmp_path):
    lines = [{"step": step, "epoch": 0, "val_loss": value} for step, value in enumerate(values)]
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    found = measured(TrialResult(study="", trial=0), tmp_path, Objective())
    assert (found.value, found.step, found.failure) == expected


@pytest.mark.parametrize(("mode", "worst"), [("min", 0.9), ("max", 0.1)])
def test_a_failed_trial_counts_as_the_worst_value_before_it(mode, worst):
    told = [Seen(row=[0.1], value=value) for value in (0.5, None, 0.9, 0.1)]
    assert worst_of(told, mode) == worst
    assert worst_of(told[1:2], mode) is None


def test_a_sampler_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs the package optuna.*shardline\[sweeps\]"):
        proposed(plan_of(SPACES[sphere], sampler="tpe", trials=1), sphere)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    unlocked: Any = SimpleNamespace(lock=SimpleNamespace(versions={}))
    with pytest.raises(ConfigError, match=r"sweeps\.s\.sampler needs the package cmaes.*grid"):
        load_sweeps._version("cmaes", unlocked, "sweeps.s")


def missing(package: str) -> str:
    raise PackageNotFoundError(package)


def test_a_grid_has_each_combination_once_where_a_condition_applies():
    space = {
        "optim.name": ["sgd", "adamw"],
        "optim.momentum": {"choices": [0.0, 0.9], "when": {"optim.name": ["sgd"]}},
    }
    plan = plan_of(space, sampler="grid", trials=3)
    assert [one.settings for one in proposed(plan, lambda _: 0.0)] == [
        {"optim.name": "sgd", "optim.momentum": 0.0},
        {"optim.name": "sgd", "optim.momentum": 0.9},
        {"optim.name": "adamw"},
    ]


def test_the_rows_of_a_sobol_sequence_do_not_depend_on_where_a_study_began():
    plan = plan_of(SPACES[sphere], sampler="sobol", trials=16, seed=3)
    values: Sequence[float] = sorted(one.settings["model_args.x"] for one in proposed(plan, sphere))
    # 16 points of a scrambled sequence are in 16 equal parts of the range
    assert [math.floor((value + 5) / 10 * 16) for value in values] == [*range(16)]


# --- a study in a project -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sweep",
    [
        {"parallel": 3, "seeds": 2},
        {"sampler": "grid", "space": {"global_batch": [32, 50], "trainer.accumulate": [1, 4]}, "trials": 4},
        {"stop": {"halving": {"rungs": [1, 3], "keep": 3}}, "parallel": 2},
        {"stop": {"median": {"rungs": [1, 3], "startup_trials": 1}}, "sampler": "random"},
    ],
    ids=["plain", "impossible", "halving", "median"],
)  # fmt: skip
def test_trials_are_those_of_their_own_proposals_which_are_not_read(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = load(**{"trials": 7, **sweep})
    controller = Controller(project=project, fails=lambda at: some_fail({"optim.lr": 0.01, **at}))
    controller.run()
    plan, layout = controller.plan, project.layout
    whole = {slot: read_proposal(plan.proposal(layout, slot)) for slot in plan.slots}
    read: list[Path] = []
    monkeypatch.setattr(
        sealed_trials, "read_proposal", lambda path: read.append(path) or read_proposal(path)
    )
    trials = trials_so_far(plan, layout)
    assert read == [plan.proposal(layout, plan.trials - 1)]
    assert [one.trial for one in trials] == [*range(plan.trials)]
    for one in trials:
        own = whole[one.trial]
        assert (one.settings, one.row) == (own.settings, own.row)
        if not plan.rungs:
            assert one.runs == own.runs
            assert one.failure == own.excluded or not own.excluded
    runs = {run for own in whole.values() for run in own.runs}
    assert runs_of_studies(project) == dict.fromkeys(runs, "s")
    assert len(read) == (1 + plan.trials if plan.median else 1)
    # a trial without its result has not ended, but its runs are in use
    for path in plan.results(layout, plan.trials - 1):
        path.unlink()
    assert [one.trial for one in trials_so_far(plan, layout)] == [*range(plan.trials - 1)]
    assert runs_of_studies(project) == dict.fromkeys(runs, "s")


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    controller = Controller(project=load(trials=8, parallel=2), fails=some_fail)
    controller.run()
    return controller


def test_the_row_of_the_best_trial_is_the_trial_again(study):
    best, ended = best_trial(study.project, study.plan)
    assert ended == 8
    run = run_of_pasted_row(study, best.trial)
    assert (run.name, run.id) == ("s-best", best.runs[0])


def test_the_row_has_the_order_of_the_table_and_names_columns_that_it_lacks(study, capsys):
    write_config(trials=8, parallel=2)
    table = Path("config/runs.tsv")
    table.write_text("optim.lr\tname\tseed\tdataset\tmodel\tdevices\n\tmlp\t\tdigits\tmlp\t1\n")
    app(["best", "s"], standalone_mode=False)
    shown = capsys.readouterr()
    header, row = shown.out.splitlines()
    assert header.split("\t")[:6] == table.read_text().splitlines()[0].split("\t")
    assert row.split("\t")[1:6] == ["s-best", "", "digits", "mlp", "1"]
    assert "lacks model_args.hidden, optim.weight_decay; add the columns to its header" in " ".join(
        shown.err.split()
    )
    _, first, *_ = table.read_text().splitlines()
    table.write_text(f"{header}\n{first}\t\t\n{row}\n")
    best, _ = best_trial(study.project, study.plan)
    assert best.runs[0] in load_project().runs


@pytest.mark.parametrize(
    "value", ["relu", "true", "[a]", "", "#x", 0.1, 1e-05, 3, True, None, [64, 64], {"a": 1}]
)
def test_a_cell_is_read_as_the_value_it_was_written_from(value, tmp_path):
    Path(tmp_path / "config").mkdir()
    Path(tmp_path / "config/runs.tsv").write_text(
        f"name\tdataset\tmodel\tmodel_args.a\n{line_of(['r', 'digits', 'mlp', cell_of(value)])}\n"
    )
    (run,) = load_project(CONFIG, workdir=tmp_path).runs.values()
    assert run.settings.model_args == {"a": value}


def test_commands_list_the_trials_and_the_best(study, capsys):
    write_config(trials=8, parallel=2)
    app(["ls", "--study", "s"], standalone_mode=False)
    text = capsys.readouterr().out
    assert "8 trials: " in text
    assert "diverged" in text
    app(["best", "s", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["row"]["name"] == "s-best"
    assert found["ended"] == 8


def test_verify_computes_the_proposals_again_and_names_what_was_changed(study):
    # the simulated runs themselves have no sealed files
    Path("results/runs").rename("elsewhere")
    assert verify_target(study.project, "study", study.plan.id, deep=True).problems == []
    path = study.plan.proposal(study.project.layout, 5)
    write_json(path, seal({**read_json(path, remedy=""), "settings": {"optim.lr": 0.5}}))
    problems = verify_target(study.project, "study", study.plan.id, deep=True).problems
    assert any("trial 5: settings computed again" in one for one in problems)
    path.write_text(path.read_text().replace('"trial": 5', '"trial": 6'))
    assert verify_target(study.project, "study", study.plan.id).problems


def test_garbage_is_a_study_that_the_config_no_longer_describes_with_its_runs(study):
    assert find_garbage(study.project, ["digits"]) == []
    Path("config/runs.tsv").write_text(TABLE)
    other = load(trials=8, parallel=2, seed=5)
    items = {one.path.name for one in find_garbage(other, ["digits"])}
    assert study.plan.id in items
    assert {*study.trained} <= items


def test_a_changed_sweep_names_the_study_that_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    controller = Controller(project=load(trials=3), seed=0, fails=some_fail)
    controller.run()
    add_names(controller.project.layout, [("run", "s-0", read_proposal_of(controller, 0).runs[0])])
    assert all_notes(controller.project, controller.plan) == []
    assert all_notes(load(trials=4), controller.plan) == []
    project = load(trials=3, seed=1)
    (plan,) = project.sweeps.values()
    sentence = f"sweeps.s is another study than results/studies/{controller.plan.id} with 3 proposed trials"
    (note,) = all_notes(project, plan)
    assert note.startswith(
        f"{sentence} (seed 0 -> 1); trials with the settings of an earlier run are linked"
    )


def test_the_name_of_a_sweep_or_trial_where_a_run_is_asked_for_leads_to_its_trials(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = load(trials=3)
    for name, what in (
        ("s", "the sweep s"),
        ("s-2", "a trial of the sweep s"),
        ("s-2.1-e3", "a trial of"),
    ):
        with pytest.raises(
            ConfigError, match=f'names no run "{name}", which is {what}.*ls --study s'
        ):
            find_run(project, name)


def test_the_best_of_several_seeds_says_that_its_value_is_a_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seeds, said in ((1, False), (2, True)):
        sweep = {"trials": 3, "seeds": seeds, "sampler": "random"}
        Controller(project=load(**sweep), seed=0).run()
        write_config(**sweep)
        shown = shardline("best", "s").output
        assert ("the mean of 2 seeds, of which the row has the first" in shown) == said


def read_proposal_of(controller: Controller, trial: int) -> Proposal:
    return read_proposal(controller.plan.proposal(controller.project.layout, trial))
