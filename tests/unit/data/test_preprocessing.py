"""Preprocessed tables: what arrives equals pandas and scikit-learn, and no held-out row decides a value."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from shardline.data.dataset import Dataset
from shardline.data.first_rows import (
    build_first_rows,
    rows_of_dataset,
    rows_of_source,
    schema_of,
)
from shardline.data.preprocessing import fit, needs_sample, sampled_numbers
from shardline.data.sample_index import RowUnits
from shardline.data.sources.prepared_columns import bits_of
from shardline.data.table_summary import TableSummary, merge_tables
from shardline.data.windowmap import WindowMap
from shardline.errors import DataError
from shardline.records.base import encode
from shardline.records.preprocessing import (
    CODES,
    GAPS,
    NUMBERS,
    PreparedCategory,
    PreparedNumber,
    Preprocessing,
)
from shardline.results.verify_store import check_statistics
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.preprocessing import Preprocessor
from shardline_io.shards import Shards
from shardline_io.streams import RowStream
from tests.support.prepared_tables import (
    CATEGORY,
    NUMBER,
    SPLITS,
    by_sklearn,
    is_exact,
    rows_of,
    sealed,
    source_of,
    tables,
    treatments,
)

QUICK = settings(max_examples=15, deadline=None)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@QUICK
@given(table=tables(), preprocess=treatments())
def test_what_arrives_equals_pandas_and_scikit_learn(
    kind: str, table: pd.DataFrame, preprocess: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = sealed(Path(folder), table, preprocess, kind)
        check_rows(dataset, table, preprocess)


@QUICK
@given(table=tables(40, 60), preprocess=treatments(), folds=st.integers(2, 3))
def test_each_fold_is_preprocessed_by_its_own_train_rows(
    table: pd.DataFrame, preprocess: dict[str, Any], folds: int
) -> None:
    by = {"folds": folds, "validation": 0.3, "seed": 0}
    with tempfile.TemporaryDirectory() as folder:
        sealed(Path(folder), table, preprocess, by=by)
        for fold in range(folds):
            dataset = Dataset(Path(folder) / "manifest.json", Path(folder), fold=fold)
            for split in SPLITS:
                table.loc[
                    table["key"].isin(dataset.shards.ids(dataset.shards.pieces(split))), "part"
                ] = split
            check_rows(dataset, table, preprocess)


def check_rows(dataset: Dataset, table: pd.DataFrame, preprocess: dict[str, Any]) -> None:
    """Check the rows that a model gets against pandas and scikit-learn, fitted where `part` is train."""
    found, fitted = rows_of(dataset), dataset.manifest.preprocessing
    expected = by_sklearn(table, preprocess)
    indices = expected.pop("categories", None)
    assert fitted.features == list(expected)
    for place, (name, values) in enumerate(expected.items()):
        arrived = np.array([found[row]["features"][place] for row in table["key"]])
        column = name.partition(".")[0].partition("=")[0].removesuffix(" is missing")
        own = preprocess["columns"][column]
        if "encode" in own or name.endswith(" is missing") or is_exact(own):
            assert np.array_equal(arrived, values.astype(np.float32)), name
        else:
            assert np.allclose(arrived, values, rtol=1e-6, atol=1e-6), name
    if indices is not None:
        assert np.array_equal([found[row]["categories"] for row in table["key"]], indices)


@QUICK
@given(table=tables(), preprocess=treatments(), data=st.data())
def test_a_held_out_value_changes_nothing_in_training(
    table: pd.DataFrame, preprocess: dict[str, Any], data: st.DataObject
) -> None:
    poisoned, is_held_out = table.copy(), table["part"] != "train"
    for name, values in {
        "a": NUMBER.map(lambda n: n * 1e6),
        "b": st.none(),
        "colour": CATEGORY,
    }.items():
        known = sorted(set(table[name])) if name == "colour" else None
        for row in np.flatnonzero(is_held_out):
            poisoned.loc[row, name] = data.draw(st.sampled_from(known) if known else values)
    poisoned = poisoned.astype({"a": float, "b": float})
    # the categories of the whole dataset fix the widths
    poisoned.loc[len(poisoned)] = {**table.loc[0], "key": len(table), "part": "test"}
    before, after = table.copy(), poisoned
    before.loc[len(before)] = poisoned.loc[len(table)]
    for one in (before, after):
        for text in sorted(set(table["colour"])):
            one.loc[len(one)] = {**table.loc[0], "key": len(one), "part": "test", "colour": text}
    with tempfile.TemporaryDirectory() as folder:
        datasets = [
            # not CSV, where longer numbers move rows to another shard, and sums get another order
            sealed(Path(folder) / str(place), one, preprocess, "parquet")
            for place, one in enumerate((before, after))
        ]
        assert datasets[0].manifest.preprocessing == datasets[1].manifest.preprocessing
        rows = [rows_of(dataset) for dataset in datasets]
    for row in table["key"][~is_held_out]:
        for name, values in rows[0][row].items():
            assert np.array_equal(values, rows[1][row][name])


def test_a_category_that_only_held_out_rows_have_is_unknown(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "key": range(6), "part": ["train"] * 4 + ["test"] * 2, "a": [1.0, 2, 3, np.nan, 5, 6],
            "b": 0.5, "c": 1.0, "flag": True, "colour": ["x", "y", "", "x", "new", "y"],
            "place": ["2", "10", "2", "2", "30", "10"], "day": pd.Timestamp("2024-01-01"), "y": 0.0,
        }
    )  # fmt: skip
    columns = {"colour": {"encode": "index"}, "place": {"encode": "onehot"}}
    dataset = sealed(tmp_path, table, {"columns": columns})
    colour, place = dataset.manifest.preprocessing.categories
    assert (colour.values, colour.train_rows) == (["", "new", "x", "y"], [1, 0, 2, 1])
    assert place.values == ["2", "10", "30"]  # whole numbers by their size
    assert dataset.manifest.schema.categories == {"colour": 5}
    rows = rows_of(dataset)
    assert [int(rows[row]["categories"][0]) for row in range(6)] == [3, 4, 1, 3, 0, 4]
    first = dataset.manifest.preprocessing.features.index("place=2")
    one_hot = [rows[row]["features"][first : first + 3].tolist() for row in (0, 1, 4)]
    assert one_hot == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


PLAN = Preprocessing(
    numbers=[
        PreparedNumber(column="a", impute="mean", scale="standard"),
        PreparedNumber(column="b", impute="median", scale="minmax", clip=(-50.0, 50.0)),
        PreparedNumber(column="c", impute="constant", fill=1.0, scale="quantile"),
    ],
    categories=[PreparedCategory(column="k")],
)


@st.composite
def stored_blocks(draw: st.DrawFn) -> list[dict[str, np.ndarray]]:
    """Stored columns of several blocks of rows, such as the blocks of folds."""
    number = st.integers(2, 5)
    blocks = []
    for rows in [*draw(st.lists(st.integers(0, 9), min_size=2, max_size=5)), draw(number)]:
        values = draw(st.lists(st.tuples(*3 * [st.none() | NUMBER]), min_size=rows, max_size=rows))
        array = np.array(values, float).reshape(rows, 3)
        codes = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
        blocks.append(
            {
                NUMBERS: np.nan_to_num(array),
                GAPS: bits_of(np.isnan(array)),
                CODES: np.array(codes, np.int64).reshape(rows, 1),
            }
        )
    return blocks


@QUICK
@given(blocks=stored_blocks(), data=st.data())
def test_any_union_of_blocks_is_fitted_as_its_rows_are(
    blocks: list[dict[str, np.ndarray]], data: st.DataObject
) -> None:
    texts = {"k": {code: f"text {code}" for code in range(4)}}
    others = data.draw(st.sets(st.sampled_from(range(len(blocks) - 1))))
    chosen = [*sorted(others), len(blocks) - 1]
    summaries = [TableSummary.of(PLAN, block, texts) for block in blocks]
    recorded = [TableSummary.of_record(one.to_record()) for one in summaries]
    whole = {name: np.concatenate([blocks[n][name] for n in chosen]) for name in blocks[0]}
    is_gap = np.unpackbits(whole[GAPS], axis=1, count=3, bitorder="little").astype(bool)
    sample = np.where(is_gap, np.nan, whole[NUMBERS])
    everyone = merge_tables(recorded)
    merged = fit(PLAN, merge_tables([recorded[n] for n in chosen]), everyone, sample)
    at_once = fit(PLAN, TableSummary.of(PLAN, whole, texts), everyone, sample)
    assert needs_sample(PLAN)
    for one, other in zip(merged.numbers, at_once.numbers, strict=True):
        sums = ("fill", "shift", "divisor")
        for key in sums:
            assert np.isclose(getattr(one, key), getattr(other, key), rtol=1e-9, atol=1e-9)
        exact = [structs.replace(of, **dict.fromkeys(sums, 1.0)) for of in (one, other)]
        assert exact[0] == exact[1]
    assert merged.categories == at_once.categories
    with np.errstate(invalid="ignore"):
        mean = 0.0 if is_gap[:, 0].all() else np.nanmean(sample[:, 0])
    assert np.isclose(merged.numbers[0].fill, mean, rtol=1e-9, atol=1e-9)
    filled = np.where(is_gap[:, 0], mean, sample[:, 0])
    assert (
        np.isclose(merged.numbers[0].divisor, filled.std() or 1.0, rtol=1e-6, atol=1e-9)
        or np.ptp(filled) < 1e-9
    )


@pytest.mark.parametrize("number", [1, 3, 40, 5000])
def test_codes_are_found_and_others_are_unknown(number: int) -> None:
    draw = np.random.default_rng(number)
    codes = np.unique(draw.integers(-(2**63), 2**63 - 1, number, dtype=np.int64))
    draw.shuffle(codes)
    rows = np.concatenate([codes, codes + 1, draw.choice(codes, 50)])
    seen = np.ones(len(codes), int)
    seen[0] = 0  # only in held-out rows
    category = {
        "column": "k", "encode": "index", "codes": codes.tolist(), "values": [], "train_rows": seen.tolist(),
    }  # fmt: skip
    found = Preprocessor({"numbers": [], "categories": [category]})({CODES: rows[:, None]})
    place = {code: index for index, code in enumerate(codes.tolist(), 1)}
    expected = [0 if code == codes[0] else place.get(code, 0) for code in rows.tolist()]
    assert found["categories"][:, 0].tolist() == expected


@QUICK
@given(blocks=stored_blocks())
def test_a_row_does_not_depend_on_its_block(blocks: list[dict[str, np.ndarray]]) -> None:
    texts: dict[str, Any] = {"k": {}}
    block = blocks[-1]
    summary = TableSummary.of(PLAN, block, texts)
    is_gap = np.unpackbits(block[GAPS], axis=1, count=3, bitorder="little").astype(bool)
    fitted = fit(PLAN, summary, summary, np.where(is_gap, np.nan, block[NUMBERS]))
    prepare = Preprocessor(encode(fitted))
    whole = prepare(block)["features"]
    for row in range(len(whole)):
        alone = prepare({name: of[row : row + 1] for name, of in block.items()})["features"]
        assert np.array_equal(alone[0], whole[row])


SMALL = pd.DataFrame(
    {
        "key": range(12), "part": ["train"] * 8 + ["validation", "test"] * 2,
        "a": [1.0, np.nan, 3, 4, 5, np.nan, 7, 8, 9, 10, np.nan, 12], "b": 0.5, "c": range(12),
        "flag": [True, False] * 6, "colour": ["x", "y", "z"] * 4, "place": ["1", "2"] * 6,
        "day": pd.Timestamp("2024-01-01"), "y": np.arange(12.0),
    }
)  # fmt: skip
INDEXED = {"columns": {"colour": {"encode": "index"}, "a": {"impute": "median"}}}


@pytest.mark.parametrize("preprocess", [INDEXED, {}], ids=["indexed", "one-hot"])
def test_a_script_reads_the_same_rows_with_numpy_alone(preprocess, tmp_path: Path) -> None:
    dataset = sealed(tmp_path, SMALL, preprocess)
    manifest = encode(dataset.manifest)
    order = HeldOutOrder(dataset.shards.pieces("train"), 3, 1000, 0, 1)
    prepare = Preprocessor(manifest["preprocessing"], is_own=True)
    stream = RowStream(Shards(manifest, tmp_path), {}, order, preprocessor=prepare)
    expected, rows = rows_of(dataset), 0
    for _, _, batch in stream.batches([(0, 0)]):
        assert list(batch) == list(expected[0])
        for place, row in enumerate(batch.ids.tolist()):
            rows += 1
            for name, values in expected[row].items():
                assert np.array_equal(batch[name][place], values)
    assert rows == 8


def test_samples_for_transforms_and_drawn_by_class_are_the_same_rows(tmp_path: Path) -> None:
    dataset = sealed(tmp_path, SMALL, INDEXED)
    pieces = [piece for piece in dataset.shards.pieces("train") if piece.first < piece.last]
    units = RowUnits(shards=dataset.shards, pieces=tuple(pieces))
    loaded, expected = units.load(WindowMap(dataset.shards, pieces), pieces), rows_of(dataset)
    whole = loaded.batch(np.arange(8))
    for place, row in enumerate(loaded.ids.tolist()):
        sample = loaded.sample(place)
        for name, values in expected[row].items():
            assert np.array_equal(sample[name], values)
            assert np.array_equal(whole[name][place], values)


def test_a_model_is_checked_on_first_rows_before_and_after_the_seal(tmp_path: Path) -> None:
    dataset = sealed(tmp_path, SMALL, INDEXED)
    source = source_of(tmp_path / "table.csv", INDEXED)
    before = rows_of_source(source, 3)
    after = rows_of_dataset(tmp_path / "manifest.json", tmp_path, 3)
    for place, (rows, schema) in enumerate(
        [(before, source.schema), (after, schema_of(dataset.manifest.schema))]
    ):
        made = build_first_rows(rows, schema, tmp_path / f"check{place}", name="d", source="Csv")
        first = Dataset(made.manifest, made.shards)
        (batch,) = list(rows_of(first).values())[:1]
        assert batch["features"].dtype == np.float32
        assert batch["categories"].shape == (1,)
        assert list(first.manifest.schema.categories) == ["colour"]
    assert first.manifest.schema.categories == {"colour": 4}


def test_a_large_train_split_is_sampled_by_its_ids(tmp_path: Path) -> None:
    dataset = sealed(tmp_path, SMALL, INDEXED)
    pieces = dataset.shards.pieces("train")
    everything = sampled_numbers(dataset.shards, pieces)
    assert everything.shape == (8, 8)
    assert int(np.isnan(everything).sum()) == 2
    some = sampled_numbers(dataset.shards, pieces, most=5)
    assert len(some) == 5
    assert {tuple(np.nan_to_num(row)) for row in some} <= {
        tuple(np.nan_to_num(row)) for row in everything
    }
    assert np.array_equal(some, sampled_numbers(dataset.shards, pieces, most=5), equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "preprocess", "told"),
    [
        ({"a": ["x1", "y2"] * 6}, {"columns": {"a": {"impute": "mean"}}}, "column a is x1, expected a finite number"),
        ({"a": [1, np.inf] * 6}, {}, "column a is inf, expected a finite number"),
        ({"day": ["2024-01-01", "soon"] * 6}, {"columns": {"day": {"date": ["year"]}}}, "expected a date such as"),
        ({}, {"columns": {"colr": {"encode": "index"}}}, "colr is not a feature"),
        ({}, {"columns": {"a": {"encode": "onehot"}}}, "column a is 1.5, expected a whole number or text"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_feature_is_named(changes, preprocess, told: str, tmp_path: Path) -> None:
    table = SMALL.assign(**changes)
    kind = "parquet" if preprocess == {"columns": {"a": {"encode": "onehot"}}} else "csv"
    table = table.assign(a=[1.5] * 12) if kind == "parquet" else table
    with pytest.raises(DataError) as error:
        sealed(tmp_path, table, preprocess, kind)
    assert told in str(error.value)


def test_columns_that_are_no_features_are_left_out_with_the_reason(tmp_path: Path) -> None:
    table = SMALL.assign(name=[f"person {n}" for n in range(12)], empty=np.nan)
    sealed(tmp_path, table, {})
    source = source_of(tmp_path / "table.csv", {}, features=())
    found = source.inferred
    assert found["columns left out"] == {
        "name": "most of its first texts differ",
        "empty": "its first values are empty",
    }
    assert found["features"]["colour"] == "category, encode onehot"
    assert found["features"]["a"] == "number, impute mean, scale standard"


def test_verify_finds_a_fitted_value_that_is_not_of_the_rows(tmp_path: Path) -> None:
    dataset = sealed(tmp_path, SMALL, INDEXED)
    manifest = dataset.manifest
    assert check_statistics(tmp_path, manifest) is None
    fitted = manifest.preprocessing
    numbers = [structs.replace(fitted.numbers[0], fill=3.0), *fitted.numbers[1:]]
    colour = structs.replace(fitted.categories[0], train_rows=[3, 3, 3])
    altered = structs.replace(fitted, numbers=numbers, categories=[colour])
    found = check_statistics(tmp_path, structs.replace(manifest, preprocessing=altered))
    assert "differ in preprocessing of a, preprocessing of colour" in found


def test_numbers_that_are_scaled_where_they_were_gathered_are_the_same(tmp_path: Path) -> None:
    columns = {"a": {"impute": "median", "clip": [2.0, 9.0]}, "c": {"scale": "quantile"}}
    dataset = sealed(
        tmp_path, SMALL, {"columns": columns}, features=["a", "c", "b"], dtype="float32"
    )
    assert dataset.shards.columns[NUMBERS] == dataset.shards.made["features"]
    pieces = [piece for piece in dataset.shards.pieces("train") if piece.first < piece.last]
    units = RowUnits(shards=dataset.shards, pieces=tuple(pieces))
    loaded, rows = units.load(WindowMap(dataset.shards, pieces), pieces), rows_of(dataset)
    for place, row in enumerate(loaded.ids.tolist()):
        assert np.array_equal(loaded.sample(place)["features"], rows[row]["features"])
