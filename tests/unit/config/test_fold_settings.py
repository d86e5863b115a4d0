"""Folds and groups in a config: grids of all folds, and what counts in an identity."""

from pathlib import Path
from typing import Any

import pytest

from shardline.config.load import load_project
from shardline.config.project import Project

FOLDS = {"folds": 3}
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
PLANNED = {"group": "g", "stratify": "y"}


def load(
    folder: Path, splits: dict[str, Any], *rows: str, head: str = "fold", **config: Any
) -> Project:
    """Load a project of one CSV file; rows are the cells of the columns `head`."""
    (folder / "config").mkdir(exist_ok=True)
    (folder / "a.csv").write_text("x,s,g,y\n1,train,1,0\n2,test,2,1\n")
    lines = [f"r{number}\td\tlinear\t{cells}" for number, cells in enumerate(rows)]
    table = "\n".join([f"name\tdataset\tmodel\t{head}", *lines, ""])
    (folder / "config" / "runs.tsv").write_text(table)
    source = {"type": "csv", "files": ["a.csv"], "label": "y", "num_classes": 2, "features": ["x"]}
    entry = {"source": source, "shards": 2, "splits": splits}
    given = {"runs": "config/runs.tsv", "defaults": {}, "datasets": {"d": entry}}
    return load_project({**given, **config}, workdir=folder)


def dataset_of(folder: Path, splits: dict[str, Any], fold: str = "") -> str:
    (found,) = load(folder, splits, fold).datasets
    return found


def test_all_folds_are_a_grid_also_with_seeds_and_by_default(tmp_path: Path) -> None:
    project = load(tmp_path, FOLDS, "all\t[1, 2]", "1\t", head="fold\tseed")
    names = [f"r0_seed={seed}_fold={fold}" for seed in (1, 2) for fold in range(3)]
    # with the default seed 1, the second row is a run of the grid
    assert sorted(project.named_runs()) == sorted([*names, "r1"])
    assert len(project.runs) == 6
    assert len(project.datasets) == 1
    run = project.named_runs()["r0_seed=2_fold=1"]
    assert (run.settings.fold, run.varied, run.num_folds) == (1, {"seed": 2, "fold": 1}, 3)
    by_default = load(tmp_path, FOLDS, "", "[0, 2]", defaults={"fold": "all"})
    assert sorted(by_default.named_runs()) == [
        *(f"r0_fold={fold}" for fold in range(3)), "r1_fold=0", "r1_fold=2",
    ]  # fmt: skip


def test_a_fixed_test_set_beside_folds_allows_a_run_of_all_rows(tmp_path: Path) -> None:
    project = load(tmp_path, {"column": "s", **FOLDS}, "null", "all", defaults={"fold": "all"})
    assert project.named_runs()["r0"].settings.fold is None
    assert len(project.runs) == 4


def test_a_default_counts_as_if_it_was_written_and_each_key_counts(tmp_path: Path) -> None:
    first = dataset_of(tmp_path, FOLDS, "0")
    assert dataset_of(tmp_path, {**FOLDS, "validation": 0.1, "seed": 0}, "0") == first
    others = [
        {**FOLDS, "validation": 0.2}, {**FOLDS, "seed": 1}, {**FOLDS, "group": "g"}, {**FOLDS, "stratify": "y"},
        {**FOLDS, "balanced": True}, {**FOLDS, **PLANNED}, {"folds": 4}, {"column": "s", **FOLDS},
    ]  # fmt: skip
    assert len({first, *(dataset_of(tmp_path, splits, "0") for splits in others)}) == 9
    shares = [
        SHARES,
        *({**SHARES, **more} for more in ({"group": "g"}, {"time": "x"}, {"seed": 1})),
    ]
    assert len({dataset_of(tmp_path, splits) for splits in shares}) == 4
    runs = load(tmp_path, FOLDS, "0", "1").runs
    assert len(runs) == 2
    plain = load(tmp_path, SHARES, "null").runs
    assert [*plain] == [*load(tmp_path, SHARES, "").runs]


@pytest.mark.parametrize(
    ("splits", "counts"),
    [
        (FOLDS, False),
        ({**FOLDS, "stratify": "y"}, False),
        ({**FOLDS, "group": "g"}, False),
        ({**FOLDS, **PLANNED}, True),
    ],
)
def test_scikit_learn_counts_where_it_assigns_groups(
    tmp_path: Path, splits: dict[str, Any], counts: bool
) -> None:
    (dataset,) = load(tmp_path, splits, "0").datasets.values()
    packages = dataset.document["environment"]["packages"]
    assert ("scikit-learn" in packages) == counts
    assert dataset.has_plan == ("stratify" in splits)


def test_a_prediction_of_all_folds_is_joined_from_each(tmp_path: Path) -> None:
    project = load(tmp_path, FOLDS, "all", predictions={"p": {"run": "r0"}})
    joined = next(one for one in project.predictions.values() if one.folds)
    assert joined.names == ("p",)
    runs = [project.named_runs()[f"r0_fold={fold}"].id for fold in range(3)]
    assert [run for run, _ in joined.folds] == runs
    assert {key for _, key in joined.folds} == project.predictions.keys() - {joined.id}
    assert [project.predictions[key].fold for _, key in joined.folds] == [0, 1, 2]
    assert len(joined.read) == 6
