"""What a job is given of the project: it comes back as it was, and a job refuses what became another result since."""

import ast
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from shardline.config.job_plan import (
    GivenPlan,
    read_plan,
    recheck_dataset,
    recheck_evaluation,
    recheck_prediction,
    recheck_report,
    recheck_training,
    write_plan,
)
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.errors import ConfigError
from shardline.pipeline import hooks
from tests.support.fake_project import FakeProject
from tests.support.mutated_project import NAMES, Place
from tests.support.workspace import REPOSITORY

OLD = "changed while the pipeline ran"


def of_run(project: Project, name: str) -> Project:
    """Return what the jobs of a run are given, as they read it."""
    key = next(key for key, run in project.runs.items() if name in run.names)
    return read_plan(write_plan(project.part(runs=[key])))


def recheck(plan: Project) -> None:
    """Do what the jobs of a run do first."""
    for run in plan.runs.values():
        recheck_training(plan, run)
        recheck_evaluation(plan, run)


def test_every_part_comes_back_as_it_was_and_is_what_it_is_by_what_is_on_disk(place: Place) -> None:
    project = load_project(workdir=place.path)
    assert {name for run in project.runs.values() for name in run.names} == {*NAMES}
    whole = read_plan(write_plan(project))
    assert whole == project
    assert whole.report == project.report
    for key, run in project.runs.items():
        part = read_plan(write_plan(project.part(runs=[key])))
        assert part == project.part(runs=[key])
        assert part.runs == {key: run}
        recheck(part)
    for key, dataset in project.datasets.items():
        part = read_plan(write_plan(project.part(datasets=[key])))
        assert part.built == {key: dataset}
        recheck_dataset(part, dataset)
    recheck_report(whole, project.report.parent.name)


def test_a_plan_is_the_project_where_it_arrives_and_shows_nothing_on_the_way(
    fake: FakeProject,
) -> None:
    fake.config["defaults"]["seed"] = 987654
    part = fake.plan("net")
    given = GivenPlan(part)
    assert pickle.loads(pickle.dumps(given)) == part
    assert "987654" in write_plan(part)
    assert "987654" not in f"{given} {given!r} {[given]}"


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda at: at.edit("mypkg/deep.py", lambda text: text.replace("2", "3")), {"own": "code"}),
        (lambda at: at.edit("mypkg/deep.py", lambda text: f"# a comment\n{text}"), {}),
        (lambda at: at.edit("tools/beside.py", lambda text: "WIDTH = 4\n"), {"program": "code"}),
        (lambda at: at.set("defaults.optim.lr", 0.7), {}),
        (lambda at: at.edit("config/runs.tsv", lambda text: text.partition("\n")[0] + "\n"), {}),
        (lambda at: at.edit("data/rings.csv", lambda text: text + "5,6,1\n"), {}),
        (
            lambda at: at.lock.write_text(at.lock.read_text().replace("torch==", "torch==1!")),
            dict.fromkeys(NAMES[:-1], "the lock"),
        ),
    ],
    ids=["model", "comment", "script", "setting", "table", "source", "lock"],
)
def test_a_job_refuses_what_changed_of_its_own_alone(
    place: Place, change: Callable[[Place], object], refused: dict[str, str]
) -> None:
    project = load_project(workdir=place.path)
    change(place)
    for name in NAMES:
        plan = of_run(project, name)
        if name not in refused:
            recheck(plan)
            continue
        (key,) = plan.runs
        with pytest.raises(ConfigError, match=rf"^{key} .*: {refused[name]} {OLD}"):
            recheck(plan)


def test_shards_are_not_cut_from_a_source_that_changed(fake: FakeProject) -> None:
    dataset = fake.run("net").dataset
    plan = read_plan(write_plan(fake.load().part(datasets=[dataset.id])))
    recheck_dataset(plan, dataset)
    fake.workspace.write("data/a.csv", "1,3\n")
    plan = read_plan(write_plan(plan))  # another process
    with pytest.raises(ConfigError, match=f"^{dataset.id} .*: the source {OLD}"):
        recheck_dataset(plan, dataset)


def test_a_prediction_is_rechecked_with_the_code_of_its_model(fake: FakeProject) -> None:
    fake.config["predictions"] = {"some": {"run": "net", "files": ["data/a.csv"]}}
    project = fake.load()
    ((key, one),) = project.predictions.items()
    plan = read_plan(write_plan(project.part(runs=[one.spec.run], predictions=[key])))
    assert plan.predictions == {key: one}
    recheck_prediction(plan, one)
    recheck_dataset(plan, one.rows)
    fake.workspace.write("mypkg/models.py", Path("mypkg/models.py").read_text() + "\nX = 1\n")
    recheck_prediction(read_plan(write_plan(plan)), one)
    edited = Path("mypkg/models.py").read_text().replace("return x", "return 2 * x")
    fake.workspace.write("mypkg/models.py", edited)
    with pytest.raises(ConfigError, match=f"^{key} .*: code {OLD}"):
        recheck_prediction(read_plan(write_plan(plan)), one)


def test_a_cluster_s_job_resolves_its_own_rows_and_datasets(
    fake: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = fake.load()
    flat, table = fake.run("flat"), fake.run("flat").dataset.id
    own = hooks._load_own(fake.config, [{"run": flat.id}])
    assert (own.runs, own.datasets) == ({flat.id: flat}, {table: flat.dataset})
    built = hooks._load_own(fake.config, [{"dataset": table, "part": "00000-00003"}])
    assert (built.runs, [*built.datasets]) == ({}, [table])
    assert hooks._load_own(fake.config, []).runs == project.runs
    assert hooks._load_own(fake.config, [{"run": "0" * 12}]).runs == project.runs
    fake.rows[1]["name"] = "renamed"  # while the pipeline runs
    fake.workspace.configure(fake.config, fake.rows)
    assert [*hooks._load_own(fake.config, [{"run": flat.id}]).runs] == [*project.runs]


def test_an_executor_s_command_names_its_jobs() -> None:
    command = "snakemake --target-jobs train:run=abc evaluate:run=abc,evaluation=d --cores 2"
    assert hooks._targets(command.split()) == [{"run": "abc"}, {"run": "abc", "evaluation": "d"}]
    assert hooks._targets(["snakemake", "all"]) == []


def test_the_project_is_loaded_by_snakemake_s_own_process_alone() -> None:
    loading = {
        path.name
        for path in [*(REPOSITORY / "scripts").glob("*.py"), *(REPOSITORY / "src/shardline/pipeline").glob("*.py")]
        if any(
            isinstance(node, ast.Name) and node.id == "load_project"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }  # fmt: skip
    assert loading == {"hooks.py", "late_report.py"}  # of which the second is a command's, too
