"""Torch datasets and data modules in a config: what counts in the identity, and which jobs there are."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardline.config.job_plan import read_plan, write_plan
from shardline.config.load import load_project
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.predictions import files_as_dataset
from shardline.config.project import Project
from shardline.config.resolved import PythonObject
from shardline.errors import ConfigError
from shardline.pipeline.jobs import Jobs
from tests.support.small_config import CONFIG

DATA = """
from pytorch_lightning import LightningDataModule
from torch.utils.data import Dataset
from mypkg.helpers import augment

def read(row):
    return row

class Rows(Dataset):
    transform = augment
    def __getitem__(self, row):
        return read(row)

class Module(LightningDataModule):
    def setup(self, stage):
        self.rows = Rows()

def function():
    return Rows()
"""
HELPERS = "def augment(image):\n    return image\n\ndef unused():\n    return 1\n"
ROW = "name\tdataset\tmodel\na\trows\tlinear\n"
Load = Callable[..., tuple[Project, DatasetPlan, RunPlan]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def make(
        kind: str = "Module",
        files: dict[str, str] | None = None,
        data: dict[str, Any] | None = None,
        **source: Any,
    ) -> tuple[Project, DatasetPlan, RunPlan]:
        texts = {
            "mypkg/__init__.py": "",
            "mypkg/data.py": DATA,
            "mypkg/helpers.py": HELPERS,
            "config/runs.tsv": ROW,
        }
        for name, text in {**texts, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        datasets = {
            "rows": {
                "source": {"type": f"mypkg.data:{kind}", **source},
                "shards": 3,
                "shards_per_job": 2,
            }
        }
        defaults = {**CONFIG["defaults"], "data": data or {}}
        project = load_project(
            {**CONFIG, "datasets": datasets, "defaults": defaults}, workdir=tmp_path
        )
        (run,) = project.runs.values()
        return project, run.dataset, run

    return make


def test_code_of_class_and_helpers_options_and_columns_count(load: Load) -> None:
    first = load()[1].id
    changed = [
        load(files={"mypkg/data.py": DATA.replace("return row", "return row + 1")}),
        load(files={"mypkg/helpers.py": HELPERS.replace("return image", "return -image")}),
        load(options={"size": 3}),
        load(columns={"x": "int64"}),
        load(columns={"x": "int64", "y": "int64"}),
        load(columns={"y": "int64", "x": "int64"}),
        load(classes=["a", "b"]),
        load(num_classes=2),
        load("Rows"),
        load("function"),
    ]
    assert len({first, *(one[1].id for one in changed)}) == len(changed) + 1
    same = [
        load(workers=3),
        load(options={}),
        load(files={"mypkg/helpers.py": HELPERS.replace("return 1", "return 2")}),
        load(files={"mypkg/data.py": DATA.replace("def read", "# a comment\ndef read")}),
    ]
    assert {one[1].id for one in same} == {first}


def test_rows_of_python_have_a_history(load: Load) -> None:
    for kind in ("Module", "Rows", "function"):
        assert load(kind)[1].document["versions"] == {"data": 1, "python": 1}


def test_only_a_data_module_has_a_job_that_prepares_it(load: Load) -> None:
    for kind in ("Module", "Rows", "function"):
        project, dataset, _ = load(kind)
        assert dataset.kind == {"Module": "module", "Rows": "dataset", "function": "function"}[kind]
        jobs = Jobs(project, None, is_main=True, cores=1)

        wildcards = SimpleNamespace(dataset=dataset.id)
        expected = [f"store/datasets/{dataset.id}/prepared.json"] if kind == "Module" else []
        assert jobs.prepared_of_dataset(wildcards) == expected


@pytest.mark.parametrize(
    ("kind", "workers", "cores", "threads"),
    [("Rows", None, 8, 8), ("Rows", 3, 8, 3), ("Rows", 0, 8, 1), ("Rows", None, None, 1), ("Rows", 4, None, 4)],
)  # fmt: skip
def test_a_job_has_a_thread_for_each_process(
    load: Load, kind: str, workers: int | None, cores: int | None, threads: int
) -> None:
    project, dataset, _ = load(kind, **({} if workers is None else {"workers": workers}))
    jobs = Jobs(project, None, is_main=True, cores=cores)
    assert jobs.threads_of_building(SimpleNamespace(dataset=dataset.id)) == threads


def test_a_job_gets_the_kind_and_the_object(load: Load) -> None:
    project, dataset, _ = load(options={"size": 3})
    there = read_plan(write_plan(project)).datasets[dataset.id]
    assert there.kind == "module"
    assert there.python == PythonObject(path="mypkg.data:Module", options={"size": 3})


def test_what_a_transform_calls_counts_by_its_code_and_not_its_name(load: Load) -> None:
    called = {"transform": {"type": "callable", "of": "mypkg.helpers:augment"}}
    first = load(data=called)[2].id
    moved = {"transform": {"type": "callable", "of": "mypkg.moved:augment"}}
    assert load(data=moved, files={"mypkg/moved.py": HELPERS})[2].id == first
    other = HELPERS.replace("return image", "return -image")
    assert load(data=moved, files={"mypkg/moved.py": other})[2].id != first
    assert load(data={"transform": {**called["transform"], "column": "x"}})[2].id != first
    installed = {"transform": {"type": "callable", "of": "numpy:flip", "given": "array"}}
    run = load(data=installed)[2]
    assert run.document["sample_code"] == {"transform of": "numpy:flip"}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"type": "callable"}, "data.transform.of is missing, expected an import path"),
        ({"type": "callable", "of": "mypkg.helpers:augmen"}, 'did you mean "augment"?'),
        ({"type": "callable", "of": "flip"}, "is neither one of"),
    ],
)
def test_a_wrong_path_of_a_callable_is_named(
    load: Load, written: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(data={"transform": written})
    assert words in str(raised.value)


def test_settings_that_exclude_each_other_are_named(load: Load) -> None:
    with pytest.raises(ConfigError, match="classes and num_classes are both given; drop one"):
        load(classes=["a", "b"], num_classes=2)


def test_files_to_predict_need_a_source(load: Load) -> None:
    project, dataset, _ = load("Rows")
    with pytest.raises(
        ConfigError, match="is no Source and cannot read other files; add a dataset"
    ):
        files_as_dataset(project, ["a.csv"], dataset, "predict --files")
