"""Folds: each row is tested on once, no group is in two splits, and no statistic sees a held-out row."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from shardline.core.files import write_json
from shardline.data import statistics_file
from shardline.data.block_units import BlockUnits
from shardline.data.classes import rows_of_classes
from shardline.data.dataset import Dataset, read_manifest
from shardline.data.pack_plans import problems_of_plans
from shardline.data.packs import PackUnits
from shardline.data.prediction_file import join_predictions
from shardline.data.shard_map import ShardMap
from shardline.data.splits import assign_folds, assign_splits
from shardline.data.statistics_file import set_aside
from shardline.data.windowmap import WindowMap
from shardline.errors import DataError
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline.results.verify_store import check_statistics
from shardline.sources import Schema, Source, Table
from shardline_io.order.folds import SPLITS, blocks_of, of_fold, split_of
from shardline_io.order.pieces import num_rows, split_pieces
from shardline_io.order.sampling import TrainOrder
from tests.support import built
from tests.support.columns import manifest_of
from tests.support.fake_project import FakeProject


@dataclass(frozen=True)
class Rows:
    """A table of rows in groups, and the splits of its dataset."""

    features: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    splits: dict[str, Any]
    fixed: np.ndarray | None = None

    @property
    def folds(self) -> int:
        return int(self.splits["folds"])


class Grouped(Source):
    """Rows in two shards, with the group of each row as `groups` of its tables."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(num_shards=2)
        self.rows = rows

    @property
    def schema(self) -> Schema:
        shape = self.rows.features.shape[1:]
        return Schema(feature_shape=shape, feature_dtype="float64", classes=("a", "b"))

    def iter_tables(self, shard: int) -> Iterator[Table]:
        for part in np.array_split(np.arange(shard, len(self.rows.labels), 2), 2):
            fixed = self.rows.fixed
            yield Table(
                ids=part,
                features=self.rows.features[part],
                labels=self.rows.labels[part],
                groups=self.rows.groups[part],
                splits=None if fixed is None else np.where(fixed[part], 2, 0),
            )


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    number = draw(st.integers(80, 160))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    of_groups = {"group": "patient"} if draw(st.booleans()) else {}
    return Rows(
        features=random.normal(draw(st.sampled_from([0, 1e3])), 1, (number, 3)),
        labels=random.integers(0, 2, number),
        groups=random.integers(0, 40, number),
        splits={
            "folds": draw(st.integers(2, 4)),
            "validation": 0.3,
            "seed": draw(st.integers(0, 5)),
            **of_groups,
        },
        fixed=random.random(number) < 0.2 if draw(st.booleans()) else None,
    )


@contextmanager
def sealed(rows: Rows) -> Iterator[Path]:
    """Yield the folder of a sealed dataset; the rare one without rows in some split is passed over."""
    with TemporaryDirectory() as name:
        splits = rows.splits if rows.fixed is None else {**rows.splits, "column": "split"}
        try:
            manifest_of(Grouped(rows), Path(name), splits)
        except DataError as error:
            if "no row fell into" not in str(error):
                raise
            reject()
        yield Path(name)


def ids_of(folder: Path, fold: int | None) -> dict[str, np.ndarray]:
    shards = Dataset(folder / "manifest.json", folder, fold=fold).shards
    return {
        split: np.sort(shards.ids(pieces))
        if num_rows(pieces := shards.pieces(split))
        else np.zeros(0, int)
        for split in SPLITS
    }


@settings(max_examples=25, deadline=None)
@given(tables())
def test_each_row_is_tested_on_once_and_statistics_are_those_of_the_train_rows(rows: Rows) -> None:
    everything = np.arange(len(rows.labels))
    with sealed(rows) as folder:
        tested: Counter[int] = Counter()
        for fold in range(rows.folds):
            ids = ids_of(folder, fold)
            tested.update(ids["test"].tolist())
            in_folds = everything if rows.fixed is None else everything[~rows.fixed]
            assert np.array_equal(np.sort(np.concatenate([*ids.values()])), in_folds)
            if "group" in rows.splits:
                groups = [set(rows.groups[of_split]) for of_split in ids.values()]
                assert sum(map(len, groups)) == len(set().union(*groups))
            dataset = Dataset(folder / "manifest.json", folder, fold=fold)
            assert dataset.manifest.splits == {split: len(of) for split, of in ids.items()}
            train, found = rows.features[ids["train"]], dataset.statistics["features"]
            assert found.count == len(train)
            np.testing.assert_allclose(found.mean, train.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(found.std, train.std(axis=0), rtol=1e-9)
            assert np.array_equal(found.min, train.min(axis=0))
            assert np.array_equal(found.max, train.max(axis=0))
            counted = {
                split: np.bincount(rows.labels[of], minlength=2).tolist()
                for split, of in ids.items()
            }
            assert dataset.manifest.statistics.class_counts == counted
            document = json.loads((folder / "manifest.json").read_text())
            view = of_fold(document, fold)
            assert view["splits"] == dataset.manifest.splits
            kept = encode(dataset.manifest)["statistics"]
            assert view["statistics"] == kept
        assert set(tested.values()) == {1}
        assert sorted(tested) == in_folds.tolist()
        whole = ids_of(folder, None)
        fixed = everything[:0] if rows.fixed is None else everything[rows.fixed]
        assert np.array_equal(whole["test"], fixed)
        assert check_statistics(folder, manifest_at(folder)) is None


def manifest_at(folder: Path) -> Manifest:
    from shardline.records.base import read_record

    return read_record(folder / "manifest.json", Manifest, remedy="")


@settings(max_examples=15, deadline=None)
@given(tables(), st.data())
def test_a_poisoned_held_out_value_changes_no_statistic(rows: Rows, data: st.DataObject) -> None:
    fold = data.draw(st.integers(0, rows.folds - 1))
    with sealed(rows) as folder:
        ids = ids_of(folder, fold)
        poisoned = np.setdiff1d(np.arange(len(rows.labels)), ids["train"])
        before = read_manifest(folder / "manifest.json", fold).statistics
    features = rows.features.copy()
    features[poisoned] = 1e300
    with sealed(replace(rows, features=features)) as folder:
        after = read_manifest(folder / "manifest.json", fold).statistics
    assert after == before


def test_shards_without_folds_have_the_bytes_of_before_and_seeds_give_other_splits() -> None:
    ids = np.arange(10_000)
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
    plain = assign_splits(ids, shares)
    # counted before there were folds
    assert np.bincount(plain).tolist() == [8012, 982, 1006]
    assert (assign_splits(ids, shares, seed=1) != plain).mean() > 0.2
    folds = {
        seed: assign_folds(ids, ids < 0, {"folds": 5, "validation": 0.1, "seed": seed})
        for seed in (0, 1)
    }
    assert np.bincount(folds[0]).min() > 140
    assert (folds[0] // 2 == folds[1] // 2).mean() == pytest.approx(0.2, abs=0.02)
    validates, fold = folds[0] % 2, folds[0] // 2
    assert abs(np.corrcoef(validates, fold)[0, 1]) < 0.03


def test_a_fold_that_lacks_rows_is_refused_and_so_is_one_that_does_not_exist(
    tmp_path: Path,
) -> None:
    few = Rows(
        np.ones((40, 1)),
        np.zeros(40, int),
        np.zeros(40, int),
        {"folds": 3, "validation": 0.3, "group": "g"},
    )
    with pytest.raises(
        DataError, match=r"no row fell into the \w+ split with fold=0.*splits.folds to less than 3"
    ):
        manifest_of(Grouped(few), tmp_path / "few", few.splits)
    rows = replace(few, groups=np.arange(40))
    (tmp_path / "d").mkdir()
    manifest_of(Grouped(rows), tmp_path / "d", rows.splits)
    with pytest.raises(DataError, match="has folds 0 to 2, expected fold 3"):
        read_manifest(tmp_path / "d/manifest.json", 3)
    one_label = replace(rows, labels=(np.arange(40) == 7).astype(int))
    with pytest.raises(DataError, match='with fold=.: class "b" .* has no train row'):
        manifest_of(Grouped(one_label), tmp_path / "e", rows.splits)
    plain = Rows(
        np.ones((40, 1)),
        np.zeros(40, int),
        np.arange(40),
        {"train": 0.8, "validation": 0.1, "test": 0.1},
    )
    (tmp_path / "f").mkdir()
    manifest_of(Grouped(plain), tmp_path / "f", plain.splits)
    with pytest.raises(DataError, match="has no folds, expected fold 1"):
        read_manifest(tmp_path / "f/manifest.json", 1)


def test_statistics_of_many_features_lie_in_a_file_for_each_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_file, "MOST_INSIDE", 1)
    random = np.random.default_rng(1)
    rows = Rows(
        random.normal(size=(100, 2)),
        random.integers(0, 2, 100),
        np.arange(100),
        {"folds": 3, "validation": 0.2},
    )
    inside = manifest_of(Grouped(rows), tmp_path, rows.splits)
    wanted = [
        Dataset(tmp_path / "manifest.json", tmp_path, fold=fold).statistics
        for fold in (None, 0, 1, 2)
    ]
    outside = set_aside(inside, tmp_path)
    write_json(tmp_path / "manifest.json", encode(outside))
    for fold, expected in zip((None, 0, 1, 2), wanted, strict=True):
        found = Dataset(tmp_path / "manifest.json", tmp_path, fold=fold).statistics
        assert str(found) == str(expected)
    assert check_statistics(tmp_path, outside) is None


class Texts(Source):
    """Rows of tokens that are all different."""

    def __init__(self) -> None:
        super().__init__(num_shards=2)

    @property
    def schema(self) -> Schema:
        return Schema(columns={"tokens": "int32[*]", "labels": "int64"}, classes=("a", "b", "c"))

    def iter_tables(self, shard: int) -> Iterator[Table]:
        ids = np.arange(shard * 60, shard * 60 + 60)
        tokens = [np.arange(row * 10, row * 10 + row % 5, dtype=np.int32) for row in ids]
        yield Table(ids=ids, columns={"tokens": tokens, "labels": ids % 3})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    manifest_of(Texts(), folder, {"folds": 3, "validation": 0.2})
    return folder


@pytest.mark.parametrize("fold", [None, 0, 1, 2])
@pytest.mark.parametrize("kind", ["concat", "best_fit"])
def test_packs_of_a_fold_have_the_values_of_its_rows_alone(
    texts: Path, fold: int | None, kind: str
) -> None:
    shards = Dataset(texts / "manifest.json", texts, fold=fold).shards
    pieces = shards.pieces("train")
    common = {"shards": shards, "split": pieces, "column": "tokens", "length": 4}
    units: Any = (
        BlockUnits(**common)
        if kind == "concat"
        else PackUnits(**common, name=f"train_fold{fold}" if fold is not None else "train")
    )
    assert len({(p.shard, p.first) for p in units.pieces if p.first < p.last}) > 2
    # each unit alone, as a window may cut them
    found = []
    for whole in units.pieces:
        for number in range(whole.first, whole.last):
            piece = [type(whole)(whole.shard, number, number + 1)]
            loaded = units.load(WindowMap(shards, units.rows(piece)), piece)
            sample = loaded.sample(0)
            ends = sample["tokens.cu_seqlens"][-1] if kind == "best_fit" else 4
            found += sample["tokens"][:ends].tolist()
    ids = shards.ids(pieces)
    expected = [value for row in ids.tolist() for value in range(row * 10, row * 10 + row % 5)]
    assert len(found) == len(set(found))
    if kind == "best_fit":
        assert sorted(found) == sorted(expected)
        assert [*problems_of_plans(ShardMap(shards.manifest, texts), deep=True)] == []
    else:  # a rest of each piece is in no block
        assert set(found) <= set(expected)
        assert len(found) > len(expected) - 4 * len(pieces)


@pytest.mark.parametrize("fold", [None, 1])
def test_classes_of_a_fold_have_all_its_rows(texts: Path, fold: int | None) -> None:
    shards = Dataset(texts / "manifest.json", texts, fold=fold).shards
    pieces = shards.pieces("train")
    units = rows_of_classes(shards, pieces, 3)
    ids = shards.ids(pieces)
    for label, of_class in enumerate(units):
        found = of_class.load(WindowMap(shards, of_class.rows(of_class.pieces)), of_class.pieces)
        assert sorted(found.ids.tolist()) == sorted(ids[ids % 3 == label].tolist())


def test_an_epoch_of_a_fold_visits_its_train_rows_once_and_shards_as_a_whole(texts: Path) -> None:
    shards = Dataset(texts / "manifest.json", texts, fold=0).shards
    pieces = shards.pieces("train")
    order = TrainOrder("d", pieces, global_batch=1, seed=1, window_rows=16, partition_shards=1)
    rows = [
        (piece.shard, row)
        for epoch in range(order.num_parts)
        for index in range(-(-order.steps(epoch) // order.batches_per_window()))
        for piece in order.window(epoch, index).pieces
        for row in range(piece.first, piece.last)
    ]
    assert order.num_parts == 2
    assert sorted(rows) == [(p.shard, row) for p in pieces for row in range(p.first, p.last)]


@given(st.integers(2, 6), st.data())
def test_pieces_are_the_blocks_of_a_split_in_order(folds: int, data: st.DataObject) -> None:
    names = blocks_of(folds)
    shard = st.fixed_dictionaries({name: st.integers(0, 3) for name in names})
    shards = data.draw(st.lists(shard, min_size=1, max_size=3))
    fold = data.draw(st.none() | st.integers(0, folds - 1))
    for split in SPLITS:
        found = [
            (piece.shard, row)
            for piece in split_pieces(shards, split, fold)
            for row in range(piece.first, piece.last)
        ]
        blocks = [[name for name, n in rows.items() for _ in range(n)] for rows in shards]
        assert found == [
            (number, row)
            for number, of_shard in enumerate(blocks)
            for row, name in enumerate(of_shard)
            if split_of(name, fold) == split
        ]


def predicted(path: Path, ids: list[int]) -> Path:
    pq.write_table(pa.table({"id": ids, "prediction": [0.5] * len(ids)}), path, row_group_size=2)
    return path


def test_predictions_of_all_folds_are_one_file(tmp_path: Path) -> None:
    files = [
        predicted(tmp_path / f"{fold}.parquet", ids) for fold, ids in enumerate([[4, 1, 9], [2]])
    ]
    assert join_predictions(tmp_path / "all.parquet", files, about={"rows": "d"}) == 4
    joined = pq.read_table(tmp_path / "all.parquet")
    assert joined.select(["id", "fold"]).to_pydict() == {"id": [4, 1, 9, 2], "fold": [0, 0, 0, 1]}
    assert json.loads(joined.schema.metadata[b"shardline"]) == {"rows": "d"}
    again = predicted(tmp_path / "again.parquet", [2, 9])
    with pytest.raises(DataError, match="predict a row twice"):
        join_predictions(tmp_path / "twice.parquet", [files[0], again], about={})
    assert not (tmp_path / "twice.parquet").exists()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be joined"):
        join_predictions(tmp_path / "none.parquet", [tmp_path / "bad.parquet"], about={})


@pytest.mark.parametrize("by", ["column", "files"])
@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("stratify", [False, True])
def test_no_group_of_a_fixed_test_set_is_in_a_fold(
    by: str, shared: int, stratify: bool, fake: FakeProject
) -> None:
    """Two parts; groups 0 to 39 are in folds, and 40 - `shared` to 49 in the test set."""
    rows = [(n / 7, n % 40, "train", n % 2) for n in range(200)]
    rows += [(n / 7, 40 - shared + n % (10 + shared), "test", n % 2) for n in range(60)]
    for name in ("train", "test"):
        lines = [f"{x},{g},{split},{y}" for x, g, split, y in rows if split == name]
        fake.workspace.write(f"tables/{name}.csv", "x,g,split,y\n" + "\n".join(lines) + "\n")
    source = {
        "type": "csv",
        "files": ["tables/*"],
        "label": "y",
        "num_classes": 2,
        "features": ["x"],
    }
    files = {"train": ["train.csv"], "validation": 0.2, "test": ["test.csv"]}
    splits: dict[str, Any] = {"folds": 3, "group": "g"}
    splits |= {"column": "split"} if by == "column" else {"files": files}
    splits |= {"stratify": "y"} if stratify else {}
    fake.config["datasets"]["table"] = {
        "source": source,
        "shards": 4,
        "shards_per_job": 2,
        "splits": splits,
    }
    project = fake.load()
    dataset = fake.run("flat").parts[0].dataset
    if not shared:
        built.build(project, dataset)
        assert read_manifest(dataset.manifest).splits["test"] == 60
        return
    with pytest.raises(
        DataError, match="2 of 12 groups of g in the fixed test set have rows in folds too"
    ):
        built.build(project, dataset)
    assert not dataset.manifest.exists()
