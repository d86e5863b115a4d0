"""Paths of results, logs and store: spelled in one module, and the same from whatever folder they are asked for."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.config.load import load_project
from shardline.results.gc import find_garbage
from shardline.results.staleness import explain
from shardline.results.states import describe_runs
from shardline.results.verify import verify_target
from tests.support.fake_project import FakeProject
from tests.support.workspace import REPOSITORY

SOURCES = REPOSITORY / "src" / "shardline"
FOLDERS = {
    "results", "runs", "datasets", "reports", "certificates", "latest", "latest-datasets",
    "first-steps", "found", "reruns", "store", "work", "downloads", "tensorboard", "mlflow", "wandb", "logs",
    "benchmarks",
}  # fmt: skip


def spelled(tree: ast.AST) -> Iterator[str]:
    """Yield the folders of the layout that a module's code makes paths of."""
    for node in ast.walk(tree):
        words: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            words = [node.left, node.right]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            words = node.args if name in ("Path", "joinpath", "glob", "rglob") else []
        for word in words:
            first = word.values[0] if isinstance(word, ast.JoinedStr) and word.values else word
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield from FOLDERS.intersection(first.value.split("/"))


def test_one_module_alone_spells_the_paths_of_results_logs_and_store():
    modules = {str(path.relative_to(SOURCES)): path for path in SOURCES.rglob("*.py")}
    found = {name: {*spelled(ast.parse(path.read_text()))} for name, path in modules.items()}
    layout = found.pop("config/layout.py")
    assert found.pop("config/source_files.py") == {"datasets"}, "the folder of scikit-learn"
    assert {"results", "store", "work", "downloads", "logs"} <= layout
    trackers = {
        f"tracking/backends/{name}.py": {name} for name in ("mlflow", "tensorboard", "wandb")
    }
    # each tracker knows its own folder in the store, of which the pipeline gives it the root
    assert {name: words for name, words in found.items() if words} == trackers


@pytest.mark.parametrize(
    "code",
    [
        'Path("results/runs")', 'root / "store"', 'root / f"work/{run}"', 'Path() / "logs" / rule',
        'folder.glob("datasets/*")', 'root.joinpath("latest", name)',
    ],
)  # fmt: skip
def test_a_path_that_is_spelled_elsewhere_is_found(code: str):
    assert [*spelled(ast.parse(code))]


def answers(workdir: Path, names: list[str]) -> object:
    """Return what `ls`, `why`, `verify` and `gc` find of a project."""
    project = load_project(workdir=workdir)
    targets = [
        *(("run", run.id) for run in project.runs.values()),
        *(("dataset", dataset.id) for dataset in project.datasets.values()),
    ]
    return (
        describe_runs(project),
        [explain(project, run) for run in project.runs.values()],
        [verify_target(project, kind, item, deep=True) for kind, item in targets],
        find_garbage(project, names),
    )


def test_answers_are_about_the_projects_folder_and_not_the_present_one(
    fake: FakeProject, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    fake.seal_all()
    fake.begin_training(fake.run("net"), steps=1)
    fake.rows[1]["optim.lr"] = 0.7  # `flat` is stale, and what it was is garbage
    workdir, names = fake.load().workdir, [*fake.config["datasets"]]
    here = answers(workdir, names)
    states, _, verdicts, garbage = here
    assert [state["state"] for state in states] == ["done", "stale"]
    assert len(verdicts) == 4
    assert [item.path.parent.name for item in garbage] == ["runs"]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert answers(workdir, names) == here
