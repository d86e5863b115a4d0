"""One change at a time: exactly what depends on it becomes stale, and nothing else.

Each test changes one thing in a project of its own (config, run table, user
code, external data, and copies of the library, the lock and the report's
template) and compares the identities before and after. What is expected comes
from elsewhere than the code under test: a table, or the installed packages' metadata.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shardline.config.settings import defaults_of, schema_at
from shardline.config.settings.run_settings import RunSettings
from shardline.core.nested import flatten
from shardline.errors import ConfigError
from shardline.identity import load_lock
from tests.support.mutated_project import (
    DATASETS,
    EVALUATES,
    REPORT,
    TRAINS,
    Place,
    of_dataset,
    of_runs,
    stale,
    with_what_follows,
)
from tests.support.workspace import REPOSITORY


@pytest.mark.parametrize("seed", ["1", "2"])
def test_this_process_and_another_python_agree(place: Place, seed: str) -> None:
    """Python's sets have an order of their own in each process."""
    program = (
        "from pathlib import Path; from shardline.config.load import load_project; "
        "p = load_project(workdir=Path('.')); "
        "d = p.datasets.values(); r = p.runs.values(); "
        "print(*(x.id for x in (*d, *r)), *(x.evaluation_id for x in r))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place.path,
        env={**os.environ, "PYTHONPATH": str(place.library), "PYTHONHASHSEED": seed},
        text=True,
        capture_output=True,
        check=True,
    )
    stages = place.stages()
    assert set(found.stdout.split()) == {v for k, v in stages.items() if k != "report"}


# without those that name other runs, whose identities count: test_combined.py
SETTINGS = {
    key: value
    for key, value in flatten(defaults_of(RunSettings)).items()
    if key not in ("average", "ensemble")
}


# of settings that are off, and that no script takes
OF_SAMPLES: dict[str, Any] = {
    "data.transform": [{"type": "resize", "size": 8}, "flip"],
    "data.eval_transform": "normalize",
    "data.collate": "nested",
    "data.pack": {"column": "tokens", "length": 8},
    "data.class_weights": "balanced",
    "data.epoch_samples": 640,
    "data.workers": "threads:3",
}
# of schedules by import path, of parameters of a model, and callbacks, which no script takes
OF_MODELS: dict[str, Any] = {
    "optim.groups": [{"match": "layer.*", "lr": 0.5}],
    "freeze": ["layer.*"],
    "schedule.args": {"step_size": 3},
    "schedule.interval": "epoch",
    "schedule.monitor": "val_loss",
    "schedule.epochs": 30,
    "schedule.steps": 900,
    "schedule.decay_steps": 12,
    "schedule.decay": "sqrt",
    "callbacks": ["LearningRateMonitor"],
    "init_from": "file:base.safetensors",
    "init.rename": {"a.": "b."},
    "init.ignore": ["a.*"],
    "init.strict": False,
    "init.part": "model_ema",
    "checkpoint.milestones": [2, 5],
}
# settings that others need beside them
WSD = ("defaults.schedule", {"name": "wsd", "decay_steps": 9})
BESIDE: dict[str, tuple[str, Any]] = {
    "schedule.epochs": ("defaults.schedule.name", "cosine"),
    "schedule.steps": ("defaults.schedule.name", "cosine"),
    "schedule.decay_steps": WSD,
    "schedule.decay": WSD,
    "trainer.gradient_clip_algorithm": ("defaults.trainer.gradient_clip", 0.5),
    "trainer.benchmark": ("defaults.deterministic", False),
    **dict.fromkeys(
        ("init.rename", "init.ignore", "init.strict", "init.part"),
        ("defaults.init_from", "file:base.safetensors"),
    ),
}
UNCOUNTED = ("data.workers", "uncounted_args", "checkpoint.milestones", "checkpoint.keep_last")
OF_SCRIPTS = {"environment": {"venv": "own.lock"}, "fold": 1}


OF_EVALUATION: dict[str, Any] = {
    "evaluation.headline": {"metric": "loss", "mode": "min"},
    "evaluation.metrics": [{"type": "torchmetrics.classification:MulticlassF1Score", "num_classes": 10}],
}  # fmt: skip


def others(key: str) -> list[Any]:
    """Return other values of a setting than the default; the first that fits the rest is taken."""
    if given := {**OF_SAMPLES, **OF_EVALUATION, **OF_SCRIPTS, **OF_MODELS}.get(key):
        return [given]
    form, default = schema_at(RunSettings, key), SETTINGS[key]
    if form.choices:
        return [value for value in reversed(form.choices) if value != default]
    if {"integer", "number"} <= set(form.kinds):  # a number, where the default is a share
        return [1]
    by_type = {
        "boolean": [not default],
        "integer": [2 * (default or 1), 1],
        "number": [0.5, 0.25],
        "string": [f"{default}_of_another_kind", "config/runs.tsv"],  # a file, where it names one
        "object": [{"hidden": 8}],
    }
    return [value for value in by_type[form.kinds[0]] if value != default]


@pytest.mark.parametrize("key", SETTINGS)
def test_setting(key: str, place: Place) -> None:
    # which the script of this project cannot have
    if key in {"elastic", "evaluation.metrics", "fold", *OF_SAMPLES, *OF_MODELS}:
        place.edit("config/runs.tsv", lambda text: text.partition("program")[0])
    if key == "environment":  # which a script alone takes
        (place.path / "own.lock").write_text("numpy==2.0\n")
        place.edit("config/runs.tsv", lambda text: "".join(scripts_of(text)))
    if key == "fold":  # which datasets with folds take
        config = place.config()
        folded = {n: {**of, "splits": {"folds": 3}} for n, of in config["datasets"].items()}
        place.write_config({**config, "datasets": folded})
        place.set("defaults.fold", 0)
    if key.startswith("schedule.") and key in OF_MODELS and key not in BESIDE:
        place.set("defaults.schedule.name", "torch.optim.lr_scheduler:StepLR")
    if key == "data.epoch_samples":  # which needs a mix or weights
        place.set("defaults.data.class_weights", "balanced")
    if key.startswith("init"):
        place.write("base.safetensors", "weights")
    if key in BESIDE:
        place.set(*BESIDE[key])
    if key in ("trainer.compile", "trainer.sync_batchnorm"):  # which no sharded model has
        place.edit("config/runs.tsv", lambda text: re.sub(r"(?m)^sharded.*\n", "", text))
    assert documented_stage(key) == (
        "nothing" if key in UNCOUNTED else "evaluate" if key.startswith("evaluation.") else "train"
    )
    before = place.stages()
    # a script reads what the evaluation is to be, and one row has its own strategy
    expected = (
        (of_runs("program") & before.keys()) | EVALUATES
        if key.startswith("evaluation.")
        else TRAINS | EVALUATES
    )
    if key == "strategy":
        expected = expected - of_runs("sharded")
    if key in UNCOUNTED:
        expected = set()
    assert stale(before, with_other(place, key)) == (
        (expected | REPORT) & before.keys() if expected else set()
    )


def documented_stage(key: str) -> str:
    """Return the stage that the reference of the config names for a key of `defaults`."""
    reference = (REPOSITORY / "config" / "README.md").read_text()
    defaults = reference.partition("\n## `defaults`\n")[2].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| `{re.escape(key)}` \|.*\| ([^|]+) \|$", defaults, re.MULTILINE)
    return row.partition(",")[0]


def scripts_of(table: str) -> Iterator[str]:
    """Yield the head of a run table, and the rows of scripts."""
    for number, line in enumerate(table.splitlines(keepends=True)):
        if number == 0 or line.startswith("program"):
            yield line


def with_other(place: Place, key: str) -> dict[str, str]:
    """Return the stages with a setting at the first of its other values that is not refused."""
    for value in others(key):
        place.set(f"defaults.{key}", value)
        with suppress(ConfigError):
            return place.stages()
    raise AssertionError(f"{key} has no other value")


def test_setting_of_one_row(place: Place) -> None:
    before = place.stages()
    place.edit("config/runs.tsv", lambda text: text.replace("strategy\n", "strategy\tseed\n"))
    assert stale(before, place.stages()) == set()
    place.edit("config/runs.tsv", lambda text: text.replace("\tmlp\t\n", "\tmlp\t\t7\n"))
    assert stale(before, place.stages()) == of_runs("mlp")


def test_swapped_values_are_another_run_and_going_back_is_the_old_one(place: Place) -> None:
    place.set("defaults.optim.lr", 0.1)
    place.set("defaults.optim.weight_decay", 0.2)
    before = place.stages()
    place.set("defaults.optim.lr", 0.2)
    place.set("defaults.optim.weight_decay", 0.1)
    assert stale(before, place.stages()) == TRAINS | EVALUATES | REPORT
    place.set("defaults.optim.lr", 0.1)
    place.set("defaults.optim.weight_decay", 0.2)
    assert place.stages() == before


@pytest.mark.parametrize(
    ("key", "value", "dataset"),
    [
        ("digits.shards", 5, "digits"),
        ("digits.splits.train", 0.7, "digits"),
        ("digits.splits.seed", 1, "digits"),
        ("synthetic.source.rows_per_shard", 10, "synthetic"),
        ("synthetic.source.features", 10, "synthetic"),
        ("synthetic.source.seed", 10, "synthetic"),
        ("synthetic.source.signal", 10.0, "synthetic"),
        ("rings.source.options.width", 2, "rings"),
        ("rings.shards", 3, "rings"),
    ],
)
def test_setting_of_a_dataset(key: str, value: Any, dataset: str, place: Place) -> None:
    before = place.stages()
    place.set(f"datasets.{key}", value)
    if key.endswith("splits.train"):
        place.set("datasets.digits.splits.test", 0.2)
    assert stale(before, place.stages()) == of_dataset(dataset)


# --- the user's files and packages ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("mypkg/__init__.py", "", "print('imported')\n", of_dataset("rings")),
        ("mypkg/models.py", "scale(x)", "scale(2 * x)", of_runs("own")),
        ("mypkg/helpers.py", "x * FACTOR", "x + FACTOR", of_runs("own")),
        ("mypkg/deep.py", "2", "3", of_runs("own")),  # two imports away from the model
        ("mypkg/sources.py", "pass", "VALUE = 1", of_dataset("rings")),
        ("mypkg/unused.py", "1", "2", set()),
        ("tools/train.py", "beside.WIDTH", "beside.WIDTH + 1", of_runs("program")),
        ("tools/beside.py", "3", "4", of_runs("program")),
        ("report/page.html.j2", "", "<!-- -->", REPORT),
        ("report/page.js", "", "// \n", REPORT),
        ("report/page.css", "", "/* */", REPORT),
    ],
)
def test_edit_of_a_users_file(
    file: str, old: str, new: str, expected: set[str], place: Place
) -> None:
    before = place.stages()
    place.edit(file, lambda text: text.replace(old, new, 1))
    assert stale(before, place.stages()) == expected


def test_source_byte(place: Place) -> None:
    before = place.stages()
    place.edit("data/rings.csv", lambda text: text.replace("4", "5"))
    assert stale(before, place.stages()) == of_dataset("rings")
    place.edit("data/rings.csv", lambda text: text.replace("5", "4"))
    assert place.stages() == before


def test_source_file_renamed(place: Place) -> None:
    before = place.stages()
    (place.path / "data" / "rings.csv").rename(place.path / "data" / "circles.csv")
    assert stale(before, place.stages()) == of_dataset("rings")


# What decides a value of each stage; the packages' own metadata decides the rest.
TORCH = {"numpy", "safetensors", "torch", "pytorch-lightning"}
DIRECT = {
    "dataset digits": {"numpy", "scikit-learn"},
    "dataset synthetic": {"numpy"},
    "dataset rings": {"numpy"},
    # what is masked is part of the page; the lock names pysocks behind urllib3, whatever extra asks for it
    "report": {"altair", "detect-secrets", "jinja2", "pysocks"},
    **dict.fromkeys((TRAINS | EVALUATES) - {"train program", "evaluate program"}, TORCH),
}


def needed(packages: set[str], known: set[str]) -> set[str]:
    """These packages and all that they need, by the metadata of what is installed."""
    found: set[tuple[str, str]] = set()
    pending = [(package, "") for package in packages]
    while pending:
        package, extra = pending.pop()
        if package not in known or (package, extra) in found:
            continue
        found.add((package, extra))
        for line in importlib.metadata.requires(package) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                pending += [(canonicalize_name(need.name), e) for e in ("", *need.extras)]
    return {package for package, _ in found}


@pytest.mark.rotating
def test_every_entry_of_the_lock(shared: Place) -> None:
    before, text = shared.stages(), shared.lock.read_text()
    versions = load_lock(shared.lock).versions
    behind = {stage: needed(packages, set(versions)) for stage, packages in DIRECT.items()}
    expected, found = {}, {}
    for name, version in versions.items():
        pin = next(p for p in text.splitlines() if canonicalize_name(p.partition("==")[0]) == name)
        other = f"\n{pin.partition('==')[0]}==1!{version}\n"
        shared.lock.write_text(text.replace(f"\n{pin}\n", other))
        stages = {stage for stage, packages in behind.items() if name in packages}
        expected[name] = with_what_follows(stages)
        found[name] = stale(before, shared.stages())
    assert found == expected
    assert found["torch"] == (TRAINS | EVALUATES | REPORT) - {"train program", "evaluate program"}
    assert found["scikit-learn"] == of_dataset("digits")
    assert found["numpy"] >= DATASETS | TRAINS | EVALUATES  # those of the script follow its dataset
    assert found["altair"] == REPORT
    for tool in ("ruff", "snakemake", "typer", "pytest"):
        assert found[tool] == set(), tool


def test_a_scaling_study_adds_runs_and_makes_no_other_stale(place: Place) -> None:
    before = place.stages()
    place.set("scaling.ranks", {"run": "linear", "sizes": ["1x1", "1x2", "1x4"]})
    strong = place.stages()
    assert strong.keys() - before.keys() == {
        f"{stage} linear_nodes=1_devices={devices}"
        for stage in ("train", "evaluate")
        for devices in (1, 4)
    }
    assert stale(before, {key: strong[key] for key in before}) == REPORT
    place.set("scaling.ranks.mode", "weak")
    weak = place.stages()
    assert weak.keys() - strong.keys() == {
        f"{stage} linear_nodes=1_devices={devices}_global_batch={batch}"
        for stage in ("train", "evaluate")
        for devices, batch in ((2, 128), (4, 256))
    }
    assert stale(before, {key: weak[key] for key in before}) == REPORT
