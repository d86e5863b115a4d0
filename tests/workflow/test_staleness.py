"""What Snakemake would run: nothing for what changes no result, else exactly what is stale.

Nothing is trained here: the declared files of every job are made by hand, and
`snakemake --dry-run` says what it would make again.
"""

import base64
import json
import os
import re
import shutil

import pytest
import yaml

from shardline.config.load import load_project
from tests.support.workspace import REPOSITORY, TINY_CONFIG, Workspace

_JOB = re.compile(r"^Job \d+: (.*)$", re.MULTILINE)
_DIGEST = re.compile(r" \([0-9a-f]{12}\)")
REPORT = {"Writing the report"}
MODEL = """\
import pytorch_lightning
from helpers import scale


class Net(pytorch_lightning.LightningModule):
    def forward(self, x):
        return scale(x)
"""


def write_results(workspace: Workspace) -> None:
    """Make the declared files of every job of the present config."""
    project = load_project(workdir=workspace.path)
    for dataset in project.datasets.values():
        parts = [
            project.store / "datasets" / dataset.id / "parts" / f"{p}.json" for p in dataset.parts
        ]
        for path in (*parts, dataset.manifest, dataset.provenance):
            workspace.write(str(path), "{}")
    for run in project.runs.values():
        names = (
            "run.json",
            "identity.json",
            "model.safetensors",
            "metrics.jsonl",
            "provenance.json",
        )
        for path in (*(run.folder / name for name in names), run.evaluation):
            workspace.write(str(path), "{}")
        workspace.write(str(run.folder / "identity.json"), json.dumps(run.document))
    workspace.write(str(project.report), "")
    workspace.write("results/layout.json", '{"layout": 2}')
    lines = [
        json.dumps({"kind": "run", "name": run.name, "id": run.id}) for run in project.runs.values()
    ]
    workspace.write("results/names.jsonl", "\n".join(lines) + "\n")


def jobs(workspace: Workspace, *arguments: str) -> set[str]:
    """The jobs that Snakemake would run, in its words, names without their digests."""
    done = workspace.snakemake("--dry-run", *arguments)
    assert done.returncode == 0, done.stdout
    found = {_DIGEST.sub("", message) for message in _JOB.findall(done.stdout)}
    assert bool(found) != ("Nothing to be done" in done.stdout), done.stdout
    return found


def of_run(name: str) -> set[str]:
    return {f"Resolving {name}", f"Training {name}", f"Evaluating {name}"} | REPORT


def configure(workspace: Workspace, **optim: float) -> None:
    rows = [
        {"name": "a", "dataset": "digits", "model": "mlp", **optim},
        {"name": "b", "dataset": "table", "model": "linear"},
        {"name": "own", "dataset": "table", "model": "mymodels:Net"},
    ]
    workspace.configure(TINY_CONFIG, rows)


@pytest.fixture
def finished(workspace: Workspace) -> Workspace:
    """A project of three runs with all results there."""
    workspace.write("mymodels.py", MODEL)
    workspace.write(
        "helpers.py", "from deep import FACTOR\n\n\ndef scale(x):\n    return x * FACTOR\n"
    )
    workspace.write("deep.py", "FACTOR = 2\n")
    configure(workspace, **{"optim.lr": 0.1, "optim.weight_decay": 0.2})
    write_results(workspace)
    return workspace


def touch_oldest_results_newest_inputs(workspace: Workspace) -> None:
    """Date results before what they were made from, as a fresh checkout may."""
    for number, path in enumerate(sorted(workspace.path.rglob("*"), reverse=True)):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path, ns=(number, 10**18 + number))


def add_comments(workspace: Workspace) -> None:
    for path in workspace.path.glob("*.py"):
        path.write_text(f'"""Why."""\n# a comment\n{path.read_text()}')


def set_runtime(workspace: Workspace) -> None:
    runtime = {"launcher": "torchrun", "verify": "always", "threads_per_rank": 1, "check": False}
    path = workspace.path / "config" / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "runtime": runtime}))


def test_nothing_to_do(finished: Workspace) -> None:
    assert jobs(finished) == set()


def test_dates_comments_runtime_and_another_profile_change_nothing(finished: Workspace) -> None:
    add_comments(finished)
    set_runtime(finished)
    touch_oldest_results_newest_inputs(finished)
    profile = finished.path / "profiles" / "local"
    shutil.copytree(REPOSITORY / "profiles" / "local", profile)
    with (profile / "profile.yaml").open("a") as file:
        file.write("default-resources:\n  slurm_partition: renamed\n")
    assert jobs(finished, "--profile", str(profile)) == set()


def test_swapped_settings_are_stale_and_going_back_is_not(finished: Workspace) -> None:
    configure(finished, **{"optim.lr": 0.2, "optim.weight_decay": 0.1})
    assert jobs(finished) == of_run("a")
    configure(finished, **{"optim.lr": 0.1, "optim.weight_decay": 0.2})
    assert jobs(finished) == set()


def test_helper_two_imports_away(finished: Workspace) -> None:
    finished.write("deep.py", "FACTOR = 3\n")
    assert jobs(finished) == of_run("own")


def test_dataset_and_evaluation(finished: Workspace) -> None:
    batch = ("--config", "defaults={evaluation: {batch: 8}}")
    evaluations = {f"Evaluating {name}" for name in ("a", "b", "own")}
    assert jobs(finished, *batch) == evaluations | REPORT
    seed = ("--config", "datasets={table: {source: {seed: 4}}}")
    built = {f"Cutting shards {part} of table" for part in ("00000-00001", "00002-00003")}
    built.add("Sealing the manifest of table")
    assert jobs(finished, *seed) == built | of_run("b") | of_run("own")


def test_lost_result_is_made_again(finished: Workspace) -> None:
    finished.the("results/runs/<b>/evaluations/*.json").unlink()
    assert jobs(finished) == {"Evaluating b"} | REPORT


@pytest.mark.parametrize(
    "lost", ["results/datasets", "store", "results/runs/*/run.json", "results/runs/*/identity.json"]
)
def test_a_sealed_model_is_not_trained_again_because_something_before_it_is_lost(
    finished: Workspace, lost: str
) -> None:
    for path in finished.path.glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in finished.path.glob("results/runs/*/evaluations/*"):
        path.unlink()
    assert not {job for job in jobs(finished) if job.startswith("Training")}


def test_a_model_that_is_lost_is_trained_again(finished: Workspace) -> None:
    finished.the("results/runs/<a>/model.safetensors").unlink()
    assert jobs(finished) == {"Training a"}


def test_a_job_that_was_cut_off_after_it_wrote_its_file_does_not_hide_what_follows(tiny):
    """Snakemake marks such a job as incomplete; to run it again alone would end with nothing trained."""
    workspace = tiny({"name": "run", "dataset": "table", "model": "linear"})
    assert workspace.snakemake("--until", "build_shards").returncode == 0
    part = sorted(workspace.path.glob("store/datasets/*/parts/*.json"))[0]
    relative = str(part.relative_to(workspace.path))
    mark = base64.urlsafe_b64encode(relative.encode()).decode()
    workspace.write(f".snakemake/incomplete/{mark}", '{"external_jobid": null}')
    dry = workspace.snakemake("--dry-run")
    assert dry.returncode == 0, dry.stdout
    assert re.search(r"^train +1$", dry.stdout, re.MULTILINE), dry.stdout
    assert "build_shards" not in dry.stdout


def test_another_name_a_twin_and_a_longer_list_train_nothing_known(finished: Workspace) -> None:
    rows = [
        {"name": "renamed", "dataset": "digits", "model": "mlp", "optim.lr": "[0.1, 0.3]", "optim.weight_decay": 0.2},
        {"name": "b", "dataset": "again", "model": "linear"},
        {"name": "twin", "dataset": "table", "model": "linear"},
        {"name": "own", "dataset": "table", "model": "mymodels:Net"},
    ]  # fmt: skip
    datasets = {**TINY_CONFIG["datasets"], "again": TINY_CONFIG["datasets"]["table"]}
    finished.configure({**TINY_CONFIG, "datasets": datasets}, rows)
    assert jobs(finished) == of_run("renamed_lr=0.3")


def test_a_refactoring_of_the_model_trains_nothing(finished: Workspace) -> None:
    finished.write("nets/__init__.py", "")
    moved = MODEL.replace("scale(x)", "scaled").replace(
        "        return", '        """Scale."""\n        scaled = scale(x)\n        return'
    )
    finished.write("nets/own.py", MODEL + "\n\nclass Another(Net):\n    width = 3\n")
    finished.write("mymodels.py", "from nets.own import Net as Net\n")
    assert jobs(finished) == of_run("own"), "a subclass may be registered somewhere: it counts"
    finished.write("nets/own.py", MODEL + "\n\ndef unused(x):\n    return x\n")
    assert jobs(finished) == set()
    finished.write("nets/own.py", moved)
    assert jobs(finished) == of_run("own"), "another statement"


def test_a_class_that_is_added_to_the_librarys_errors_makes_nothing_stale(
    finished: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("library")
    for path in REPOSITORY.iterdir():
        if path.name != "src" and not path.name.startswith("."):
            (root / path.name).symlink_to(path)
    shutil.copytree(REPOSITORY / "src" / "shardline", root / "src" / "shardline")
    environment = {"PYTHONPATH": str(root / "src")}
    assert "Nothing to be done" in finished.snakemake("--dry-run", env=environment).stdout
    errors = root / "src" / "shardline" / "errors.py"
    errors.write_text(errors.read_text() + "\n\nclass Novel(DataError):\n    exit_code = 9\n")
    assert "Nothing to be done" in finished.snakemake("--dry-run", env=environment).stdout
