"""Scaling studies in the config: the runs that they add, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.errors import ConfigError
from tests.support.small_config import CONFIG

TABLE = "name\tdataset\tmodel\tdevices\tglobal_batch\tseed\na\tdigits\tmlp\t1\t32\t\nb\tdigits\tmlp\t2\t32\t[2, 3]\n"

Load = Callable[..., Project]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a project with one study, `s`."""

    def make(table: str = TABLE, **study: Any) -> Project:
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "runs.tsv").write_text(table)
        return load_project({**CONFIG, "scaling": {"s": study}}, workdir=tmp_path)

    return make


def geometry(project: Project) -> list[tuple[str, int, int, int]]:
    """The runs of the study: name, nodes, devices, global batch."""
    (study,) = project.scaling
    runs = [project.runs[size.run] for size in study.sizes]
    return [
        (run.name, run.settings.nodes, run.settings.devices, run.settings.global_batch)
        for run in runs
    ]


def test_strong_scaling_keeps_the_batch_and_uses_the_run_where_the_size_is_its_own(load):
    project = load(run="a", sizes=["1x1", "1x2", "2x4"])
    assert geometry(project) == [
        ("a", 1, 1, 32),
        ("a_nodes=1_devices=2", 1, 2, 32),
        ("a_nodes=2_devices=4", 2, 4, 32),
    ]
    assert [run.row.in_table for run in project.runs.values()] == [True] * 3 + [False] * 2
    assert project.scaling[0].mode == "strong"
    assert set(project.measured.values()) == {4}
    derived = [run for run in project.runs.values() if not run.row.in_table]
    assert all(run.settings.optim == derived[0].settings.optim for run in derived)


def test_weak_scaling_has_the_batch_grow_from_the_first_size_on(load):
    assert geometry(load(run="b_seed=2", sizes=["1x1", "1x2", "2x2"], mode="weak")) == [
        ("b_seed=2_nodes=1_devices=1", 1, 1, 32),
        ("b_seed=2_nodes=1_devices=2_global_batch=64", 1, 2, 64),
        ("b_seed=2_nodes=2_devices=2_global_batch=128", 2, 2, 128),
    ]


def test_studies_share_what_is_the_same_training(tmp_path, load):
    load(run="a", sizes=["1x1", "1x2"])
    studies = {
        "strong": {"run": "a", "sizes": ["1x2", "1x4"]},
        "weak": {"run": "a", "sizes": ["1x2", "1x4"], "mode": "weak"},
    }
    project = load_project({**CONFIG, "scaling": studies}, workdir=tmp_path)
    strong, weak = project.scaling
    assert strong.sizes[0] == weak.sizes[0]
    assert strong.sizes[1] != weak.sizes[1]
    assert len(project.runs) == 3 + 3


def test_a_run_of_the_table_that_is_the_same_training_is_not_trained_twice(load):
    table = "name\tdataset\tmodel\tdevices\na\tdigits\tmlp\t1\nb\tdigits\tmlp\t2\n"
    project = load(table, run="a", sizes=["1x1", "1x2"])
    assert [run.name for run in project.runs.values()] == ["a", "b"]
    assert [name for name, *_ in geometry(project)] == ["a", "b"]


CANNOT = "global_batch=32 cannot be split over"
REFUSED = [
    ("1x1 1x0", {}, "sizes[1]=1x0 is not nodes x devices; write it as 2x4"),
    ("1x1 2x3", {}, f"sizes[1]=2x3: {CANNOT} 6 ranks (nodes=2 x devices=3); use 30 or 36,"),
    ("1x3 1x4", {"mode": "weak"}, f"sizes[0]=1x3: {CANNOT} 3 ranks (nodes=1 x devices=3); use 30"),
]


@pytest.mark.parametrize(("sizes", "changes", "message"), REFUSED)
def test_what_is_refused(sizes, changes, message, load):
    with pytest.raises(ConfigError) as error:
        load(**{"run": "a", "sizes": sizes.split(), **changes})
    assert str(error.value).startswith(f"config/config.yaml: scaling.s.{message}")


def test_a_size_that_this_machine_lacks_is_named_before_anything_runs(load):
    project = load(run="a", sizes=["1x1", "2x1"])
    with pytest.raises(ConfigError, match=r"scaling\.s\.sizes\[1\]=2x1: nodes=2, but this profile"):
        project.check_devices()
