"""Plans of splits: stratified, by time, and folds of equal size, from a pass over all rows."""

from collections import Counter
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.core.files import read_json, write_json
from shardline.data.dataset import Dataset
from shardline.data.row_keys import RowKeys
from shardline.data.split_plans import make_plan, plan_of, planned_blocks
from shardline.data.splits import uniform
from shardline.errors import DataError
from shardline.pipeline.dataset_jobs import plan_splits
from shardline.records.base import read_record
from shardline.records.datasets import DatasetProvenance, SplitPlan, Stratum
from shardline.sources import Schema, Source, Table
from shardline_io.order.folds import SPLITS
from tests.support.built import build
from tests.support.fake_project import FakeProject

SHARES = st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.6, 0.3, 0.1)])
ROWS = st.integers(30, 200)


def keys_of(
    number: int, classes: int = 1, groups: int = 0, seed: int = 0, times: np.ndarray | None = None
) -> RowKeys:
    random = np.random.default_rng(number)
    ids = random.permutation(10 * number)[:number]
    if groups:
        ids = np.sort(random.integers(0, 2**60, groups))[random.integers(0, groups, number)]
    return RowKeys(
        ids=ids,
        strata=random.integers(0, classes, number) ** 2,
        order=uniform(ids, seed) if times is None else times,
    )


def blocks_of_rows(keys: RowKeys, splits: dict[str, Any]) -> np.ndarray:
    """Return the blocks by a plan that was written and read, whatever the order of the rows."""
    plan = plan_of(keys, splits, "d")
    shuffled = np.random.default_rng(1).permutation(len(keys.ids))
    assert plan_of(keys.only(shuffled), splits, "d") == plan
    return planned_blocks(keys, splits, plan, "here")


@given(ROWS, st.integers(1, 4), SHARES, st.integers(0, 3))
def test_each_class_is_divided_by_the_shares(
    number: int, classes: int, shares: tuple[float, ...], seed: int
) -> None:
    splits = dict(zip(SPLITS, shares, strict=True)) | {"stratify": "c", "seed": seed}
    keys = keys_of(number, classes, seed=seed)
    blocks = blocks_of_rows(keys, splits)
    for key in np.unique(keys.strata):
        of_class = blocks[keys.strata == key]
        found = np.bincount(of_class, minlength=3)
        assert np.abs(found - len(of_class) * np.array(shares)).max() <= 1


@given(ROWS, st.integers(1, 4), st.integers(2, 6), st.booleans())
def test_folds_are_balanced_in_size_and_classes(
    number: int, classes: int, folds: int, stratified: bool
) -> None:
    splits = {"folds": folds, "validation": 0.25, "seed": 0}
    splits |= {"stratify": "c"} if stratified else {"balanced": True}
    keys = keys_of(number, classes if stratified else 1)
    blocks = blocks_of_rows(keys, splits)
    for key in np.unique(keys.strata):
        sizes = np.bincount(blocks[keys.strata == key] // 2, minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    assert np.ptp(np.bincount(blocks // 2, minlength=folds)) <= classes
    validates = np.bincount(blocks[blocks % 2 == 1] // 2, minlength=folds).sum()
    assert abs(validates - number / 4) <= 0.5 * folds * classes + 1


@settings(deadline=None, max_examples=12)
@given(ROWS, st.integers(8, 20), st.integers(2, 4), st.booleans())
def test_groups_are_whole_and_their_folds_balanced(
    number: int, groups: int, folds: int, stratified: bool
) -> None:
    splits = {"folds": folds, "validation": 0.2, "seed": 3, "group": "g", "balanced": True}
    splits |= {"stratify": "c"} if stratified else {}
    keys = keys_of(number, 2 if stratified else 1, groups)
    blocks = blocks_of_rows(keys, splits)
    assert all(len({*blocks[keys.ids == group]}) == 1 for group in keys.ids)
    sizes, largest = (
        np.bincount(blocks // 2, minlength=folds),
        max(Counter(keys.ids.tolist()).values()),
    )
    assert np.ptp(sizes) <= (3 if stratified else 2) * largest


@given(st.lists(st.integers(0, 30), min_size=20, max_size=100), SHARES)
def test_the_last_rows_in_time_are_held_out(times: list[int], shares: tuple[float, ...]) -> None:
    splits = dict(zip(SPLITS, shares, strict=True)) | {"time": "t"}
    keys = keys_of(len(times), times=np.array(times, np.float64))
    blocks = blocks_of_rows(keys, splits)
    by_time = {time: {*blocks[keys.order == time].tolist()} for time in times}
    assert all(len(found) == 1 for found in by_time.values())
    assert (np.diff([by_time[time].copy().pop() for time in sorted(by_time)]) >= 0).all()
    most = max(Counter(times).values())
    assert abs((blocks == 2).sum() - shares[2] * len(times)) <= most + 1


def test_a_row_that_the_pass_did_not_see_is_refused() -> None:
    plan = SplitPlan(dataset="d", rows=1, strata=[Stratum(key=4, edges=[], blocks=[0])])
    keys = RowKeys(ids=np.arange(1), strata=np.array([5]), order=np.zeros(1))
    with pytest.raises(DataError, match="a class that the plan of the splits lacks"):
        planned_blocks(keys, {}, plan, "here")
    grouped = SplitPlan(dataset="d", rows=1, groups=[3], folds=[0])
    with pytest.raises(DataError, match="a group that the plan of the splits lacks"):
        planned_blocks(keys, {"folds": 2, "validation": 0.1}, grouped, "here")
    few = keys_of(30, groups=2)
    with pytest.raises(DataError, match=r"2 groups in g, expected at least splits.folds=3"):
        plan_of(few, {"folds": 3, "validation": 0.1, "group": "g", "balanced": True}, "d")
    unique = RowKeys(ids=np.arange(9), strata=np.arange(9), order=np.zeros(9))
    with pytest.raises(DataError, match="a column of classes with several rows each"):
        plan_of(unique, {"folds": 3, "validation": 0.1, "group": "g", "stratify": "c"}, "d")


class Own(Source):
    """Rows of a source without files: labels, a column of times, and a fixed test set."""

    def __init__(self, **given: Any) -> None:
        super().__init__(num_shards=2)
        self.given = given

    @property
    def schema(self) -> Schema:
        return Schema(columns={"when": "float32", "labels": "int64"}, classes=("a", "b"))

    def iter_tables(self, shard: int) -> Any:
        ids = np.arange(shard, 40, 2)
        columns = {"when": ids.astype(np.float32), "labels": (ids % 4 == 0).astype(np.int64)}
        yield Table(ids=ids, columns=columns, **{key: of[ids] for key, of in self.given.items()})


def test_columns_of_an_own_source_decide_and_a_fixed_test_set_is_left_out() -> None:
    plan = make_plan(
        Own(), dict(zip(SPLITS, (0.5, 0.25, 0.25), strict=True)) | {"time": "when"}, "d"
    )
    assert [(one.edges, one.blocks) for one in plan.strata] == [([20.0, 30.0], [0, 1, 2])]
    fixed = np.where(np.arange(40) < 10, 2, 0)
    splits = {"folds": 3, "validation": 0.1, "stratify": "labels", "column": "s"}
    assert make_plan(Own(splits=fixed), splits, "d").rows == 30
    with pytest.raises(DataError, match="without a value for splits.stratify=kind"):
        make_plan(Own(), {**splits, "stratify": "kind"}, "d")
    short = Own()
    short.iter_tables = lambda shard: [Table(ids=np.arange(20), times=np.arange(10.0))]  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"times of shape \(10,\) with 20 ids"):
        make_plan(short, {"time": "when"}, "d")


@pytest.mark.parametrize(
    "splits",
    [
        {"train": 0.6, "validation": 0.2, "test": 0.2, "stratify": "kind"},
        {"train": 0.6, "validation": 0.2, "test": 0.2, "time": "day"},
        {"folds": 3, "validation": 0.2, "group": "who", "stratify": "y"},
        {"folds": 3, "validation": 0.2, "balanced": True},
    ],
    ids=["stratify", "time", "groups", "balanced"],
)
def test_a_planned_dataset_is_built_and_sealed_by_the_jobs(
    fake: FakeProject, splits: dict[str, Any]
) -> None:
    days = [date(2023, 12, 1) + timedelta(days=row % 60) for row in range(120)]
    lines = [
        f"{row},{row},{row % 2},{'ab'[row % 3 == 0]},p{row % 17},{day}"
        for row, day in enumerate(days)
    ]
    fake.workspace.write("t.csv", "\n".join(["row,x,y,kind,who,day", *lines, ""]))
    source = {"type": "csv", "files": ["t.csv"], "label": "y", "num_classes": 2}
    source |= {"features": ["x"], "id_column": "row"}
    fake.config["datasets"]["table"] = {"source": source, "shards": 3, "splits": splits}
    fake.config["runtime"] = {"strict_env": "warn"}
    fake.rows = [fake.rows[1] | ({"fold": 0} if "folds" in splits else {})]
    project = fake.load()
    dataset = fake.run("flat").dataset
    path = project.layout.split_plan(dataset.id)
    plan_splits(project.part(datasets=[dataset.id]), str(path))
    folder = build(project, dataset)
    assert read_record(dataset.provenance, DatasetProvenance, remedy="").plan
    shards = Dataset(dataset.manifest, folder, fold=0 if "folds" in splits else None).shards
    rows = {split: shards.ids(shards.pieces(split)) for split in SPLITS}
    assert sorted(np.concatenate([*rows.values()]).tolist()) == [*range(120)]
    if "time" in splits:
        assert max(rows["train"] % 60) < min(rows["validation"] % 60)
        assert max(rows["validation"] % 60) < min(rows["test"] % 60)
    if splits.get("stratify") == "kind":
        assert [int((of % 3 == 0).sum()) for of in rows.values()] == [24, 8, 8]
    if "group" in splits:
        groups = [{*(of % 17)} for of in rows.values()]
        assert sum(map(len, groups)) == 17
    if "balanced" in splits:
        assert len(rows["test"]) == 40
    altered = read_json(path, remedy="")
    write_json(path, {**altered, "rows": 7})
    with pytest.raises(DataError, match="run the pipeline again"):
        build(project, dataset)
