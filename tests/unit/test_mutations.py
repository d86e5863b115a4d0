"""One change at a time: exactly what depends on it becomes stale, and nothing else.

Each test changes one thing in a project of its own (config, run table, user
code, external data, result versions, and copies of the library, the lock and the report's
template) and compares the identities before and after. What is expected comes
from elsewhere than the code under test: a table, or the installed packages' metadata.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shardline.config import schema
from shardline.config.schema import defaults_of, flatten, load_schema
from shardline.identity import environment, versions
from shardline.identity.versions import ResultVersion
from tests.conftest import REPOSITORY
from tests.unit.mutated import (
    DATASETS,
    EVALUATES,
    REPORT,
    ROWS,
    TRAINS,
    Place,
    of_dataset,
    of_runs,
    stale,
    with_what_follows,
)  # fmt: skip


def test_this_process_and_another_python_agree(place: Place) -> None:
    program = (
        "from pathlib import Path; from shardline.config import load_project; "
        "p = load_project(workdir=Path('.')); "
        "d = p.datasets.values(); r = p.runs.values(); "
        "print(*(x.id for x in (*d, *r)), *(x.evaluation_id for x in r))"
    )
    schemas = place.library / "shardline" / "workflow" / "config" / "schemas"
    shutil.copytree(REPOSITORY / "config" / "schemas", schemas)
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place.path,
        env={**os.environ, "PYTHONPATH": str(place.library)},
        text=True,
        capture_output=True,
        check=True,
    )
    stages = place.stages()
    assert set(found.stdout.split()) == {v for k, v in stages.items() if k != "report"}


CHANGED_SETTINGS = {
    "nodes": 2,
    "devices": 1,
    "accelerator": "cpu",
    "strategy": "fsdp",
    "elastic": True,
    "precision": "bf16-mixed",
    "deterministic": False,
    "seed": 2,
    "global_batch": 32,
    "data.normalize": "none",
    "data.window_bytes": 1 << 20,
    "data.streams": 2,
    "data.epoch": "partition",
    "data.partition_shards": 2,
    "data.last_batch": "pad",
    "model_args": {"hidden": 8},
    "optim.name": "sgd",
    "optim.lr": 0.1,
    "optim.weight_decay": 0.1,
    "optim.momentum": 0.5,
    "optim.scale_lr": True,
    "schedule.name": "cosine",
    "schedule.warmup_steps": 5,
    "trainer.max_epochs": 7,
    "trainer.accumulate": 2,
    "trainer.gradient_clip": 1.0,
    "trainer.validate_every_epochs": 2,
    "early_stopping.monitor": "val_accuracy",
    "early_stopping.mode": "max",
    "early_stopping.patience": 9,
    "early_stopping.min_delta": 0.1,
    "early_stopping.stopping_threshold": 0.5,
    "checkpoint.monitor": "val_accuracy",
    "checkpoint.mode": "max",
    "divergence.policy": "lower",
    "divergence.max_loss": 9.0,
    "divergence.window_steps": 2,
    "divergence.factor": 0.1,
    "divergence.limit": 1,
    "evaluation.split": "validation",
    "evaluation.batch": 64,
}


def test_every_setting_is_tried() -> None:
    assert set(CHANGED_SETTINGS) == set(flatten(defaults_of(load_schema("settings"))))


@pytest.mark.parametrize("key", CHANGED_SETTINGS)
def test_setting(key: str, place: Place) -> None:
    if key == "elastic":  # which no script can be
        place.edit("config/runs.tsv", lambda text: text.partition("program")[0])
    before = place.stages()
    place.set(f"defaults.{key}", CHANGED_SETTINGS[key])
    # a script reads what the evaluation is to be, and its own row has a strategy
    expected = (
        of_runs("program") | EVALUATES if key.startswith("evaluation.") else TRAINS | EVALUATES
    )
    if key == "strategy":
        expected = expected - of_runs("sharded")
    assert stale(before, place.stages()) == (expected | REPORT) & before.keys()


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


# --- Shardline's own code: result versions --------------------------------------------------------

RUNS = {name: model for name, _, model, _ in ROWS}
AddSetting = Callable[[str, dict[str, Any]], None]
Bump = tuple[str, Callable[[Any], bool]]


def _always(_: Any) -> bool:
    return True


def _sharded(found: Any) -> bool:
    return bool(found.get("strategy") == "fsdp")


# The stages that each history is about: a script trains and judges by itself.
BY_HISTORY = {
    "data": DATASETS,
    "training": TRAINS - {"train program"},
    "evaluation": EVALUATES - {"evaluate program"},
    "script": {"train program", "evaluate program"},
    "report": REPORT,
    **{
        model: {
            f"{stage} {n}" for n, m in RUNS.items() if m == model for stage in ("train", "evaluate")
        }
        for model in versions.MODELS
    },
    **{source: {f"dataset {source}"} & DATASETS for source in versions.SOURCES},
}


@pytest.mark.parametrize(
    "change", [lambda text: f"{text}\nMUTATION = 1\n", lambda text: f"import pandas\n{text}"]
)
def test_text_of_shardline_changes_nothing(change: Callable[[str], str], place: Place) -> None:
    before = place.stages()
    place.edit_library(lambda text: text if "from __future__" in text else change(text))
    assert stale(before, place.stages()) == set()


def add_line(patch: pytest.MonkeyPatch, name: str, concerns: Callable[[Any], bool]) -> None:
    """Bump a history."""
    line = ResultVersion(changed="other sums", concerns=concerns)
    patch.setitem(versions.HISTORIES, name, (*versions.HISTORIES[name], line))


def concerned(name: str, concerns: Callable[[Any], bool]) -> set[str]:
    """Return the stages that such a bump is about."""
    settings_of = {"train sharded": {"strategy": "fsdp"}, "evaluate sharded": {"strategy": "fsdp"}}
    return {stage for stage in BY_HISTORY[name] if concerns(settings_of.get(stage, {}))}


@pytest.mark.parametrize("concerns", [_always, lambda _: False, _sharded])
@pytest.mark.parametrize("name", versions.HISTORIES)
def test_bump_of_a_history(
    name: str, concerns: Callable[[Any], bool], shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shared.stages()
    add_line(monkeypatch, name, concerns)
    assert stale(before, shared.stages()) == with_what_follows(concerned(name, concerns))


BUMPS = st.tuples(st.sampled_from(sorted(versions.HISTORIES)), st.sampled_from([_always, _sharded]))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(bumps=st.lists(BUMPS, max_size=4), later=BUMPS)
def test_a_later_line_makes_stale_what_it_concerns_whatever_came_before(
    bumps: list[Bump], later: Bump, shared: Place
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for bump in bumps:
            add_line(patch, *bump)
        before = shared.stages()
        add_line(patch, *later)
        assert stale(before, shared.stages()) == with_what_follows(concerned(*later))


def test_code_of_shardline_that_is_not_public_counts_where_a_user_reaches_it(place: Place) -> None:
    place.edit(
        "mypkg/deep.py", lambda text: f"from shardline.optim import attach_optimizer\n{text}"
    )
    before = place.stages()
    place.edit("lib/shardline/optim.py", lambda text: f"{text}\nMUTATION = 1\n")
    assert stale(before, place.stages()) == of_runs("own")


def test_a_shipped_class_that_a_user_derives_from_counts_by_its_version(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.edit("mypkg/deep.py", lambda text: f"from shardline.models.cnn import CNN\n{text}")
    before = place.stages()
    place.edit_library(lambda text: f"{text}\nMUTATION = 1\n")
    assert stale(before, place.stages()) == set()
    add_line(monkeypatch, "cnn", _always)
    assert stale(before, place.stages()) == of_runs("own")


# --- settings that are newer than the results ---------------------------------------------------


@pytest.fixture
def add_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddSetting]:
    """Have the schema of settings hold one more, by dotted key."""
    shutil.copytree(REPOSITORY / "config" / "schemas", tmp_path / "config" / "schemas")
    path = tmp_path / "config" / "schemas" / "settings.schema.yaml"

    def forget() -> None:
        for cache in (schema.load_schema, schema.subschema, schema._validator):
            cache.cache_clear()

    def add(key: str, part: dict[str, Any]) -> None:
        found = yaml.safe_load(path.read_text())
        *groups, last = key.split(".")
        table = found
        for group in groups:
            below = {"type": "object", "additionalProperties": False, "properties": {}}
            table = table["properties"].setdefault(group, below)
        table["properties"][last] = part
        path.write_text(yaml.safe_dump(found))
        forget()

    monkeypatch.setattr(schema, "workflow_folder", lambda: tmp_path)
    yield add
    forget()


@pytest.mark.parametrize("key", ["smoothing", "data.mix", "loss.smoothing", "evaluation.views"])
def test_a_new_setting_makes_nothing_stale_until_it_is_set(
    key: str, place: Place, add_setting: AddSetting
) -> None:
    before = place.stages()
    add_setting(key, {"type": "number", "default": 0, "before": 0})
    assert place.stages() == before
    place.set(f"defaults.{key}", 0.1)
    is_evaluation = key.startswith("evaluation.")
    expected = of_runs("program") | EVALUATES if is_evaluation else TRAINS | EVALUATES
    assert stale(before, place.stages()) == expected | REPORT
    place.set(f"defaults.{key}", 0)
    assert place.stages() == before


# --- the user's files and packages ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("mypkg/__init__.py", of_dataset("rings")),
        ("mypkg/models.py", of_runs("own")),
        ("mypkg/helpers.py", of_runs("own")),
        ("mypkg/deep.py", of_runs("own")),  # two imports away from the model
        ("mypkg/sources.py", of_dataset("rings")),
        ("mypkg/unused.py", set()),
        ("tools/train.py", of_runs("program")),
        ("tools/beside.py", of_runs("program")),
        ("report/page.html.j2", REPORT),
        ("report/page.js", REPORT),
        ("report/page.css", REPORT),
    ],
)
def test_edit_of_a_users_file(file: str, expected: set[str], place: Place) -> None:
    before = place.stages()
    place.edit(file, lambda text: f"{text}\nMUTATION = 1\n")
    assert stale(before, place.stages()) == expected


def test_edit_inside_a_method_two_imports_away(place: Place) -> None:
    before = place.stages()
    place.edit("mypkg/helpers.py", lambda text: text.replace("x * FACTOR", "x + FACTOR"))
    assert stale(before, place.stages()) == of_runs("own")


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
    "report": {"altair", "detect-secrets", "jinja2", "pysocks", "vl-convert-python"},
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


def test_every_entry_of_the_lock(shared: Place) -> None:
    before, text = shared.stages(), shared.lock.read_text()
    versions = environment.load_lock(shared.lock).versions
    behind = {stage: needed(packages, set(versions)) for stage, packages in DIRECT.items()}
    expected, found = {}, {}
    for name, version in versions.items():
        pin = next(p for p in text.splitlines() if canonicalize_name(p.partition("==")[0]) == name)
        shared.lock.write_text(text.replace(f"{pin}\n", f"{pin.partition('==')[0]}==1!{version}\n"))
        stages = {stage for stage, packages in behind.items() if name in packages}
        expected[name] = with_what_follows(stages)
        found[name] = stale(before, shared.stages())
    assert found == expected
    assert found["torch"] == (TRAINS | EVALUATES | REPORT) - BY_HISTORY["script"]
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
