"""Tables with several labels and weights: what arrives equals the files, and bad values are named."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.code_paths import SHIPPED_MODELS
from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import RunSettings
from shardline.core.digests import file_sha256
from shardline.data.build import build_shards, describe_part
from shardline.data.columns import features_of
from shardline.data.predicted import open_files, seal_files
from shardline.errors import ShardlineError
from shardline.training.rank_task import CheckedDataset
from tests.support.rank_tasks import checked
from tests.support.source_cases import load_dataset, make

COLUMNS: dict[str, Any] = {
    "x": [0.5, 1.5, 2.5, 3.5], "a": [1.5, -2.0, 0.0, 4.0], "b": [10, 20, 30, 40],
    "cat": [0, 1, 1, 0], "dog": [True, False, True, False], "w": [1.0, 0.0, 2.5, 3.0],
}  # fmt: skip
FILES = {"csv": "data.csv", "parquet": "data.parquet"}


def write(kind: str, folder: Path, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, folder / FILES[kind])
        return
    names, rows = list(columns), zip(*table.to_pydict().values(), strict=True)
    lines = [",".join(names), *(",".join(str(value) for value in row) for row in rows)]
    (folder / FILES[kind]).write_text("\n".join(lines) + "\n")


def source_of(kind: str, folder: Path, table: dict[str, Any], /, **options: Any) -> dict[str, Any]:
    write(kind, folder, table)
    return {"type": kind, "files": [FILES[kind]], **options}


def columns_of_rows(source: Any) -> dict[str, np.ndarray]:
    tables = [table for shard in range(source.num_shards) for table in source.iter_tables(shard)]
    return {name: np.concatenate([t.given[name] for t in tables]) for name in tables[0].given}


@pytest.mark.parametrize("kind", FILES)
def test_several_numbers_and_weights_arrive(kind: str, tmp_path: Path) -> None:
    options = {"label": ["a", "b"], "task": "regression", "features": ["x"], "weight": "w"}
    source = make(tmp_path, source_of(kind, tmp_path, COLUMNS, **options))
    record, found = source.schema.record(), columns_of_rows(source)
    assert (record.task, record.targets, record.weighted) == ("regression", ["a", "b"], True)
    assert record.columns == {"features": "float32[1]", "labels": "float32[2]", "weight": "float32"}
    assert features_of(record) is not None
    assert found["labels"].T.tolist() == [COLUMNS["a"], COLUMNS["b"]]
    assert found["weight"].tolist() == COLUMNS["w"]


@pytest.mark.parametrize("kind", FILES)
def test_flags_arrive_and_no_other_column_becomes_a_feature(kind: str, tmp_path: Path) -> None:
    options = {"label": ["cat", "dog"], "task": "multilabel", "weight": "w"}
    source = make(tmp_path, source_of(kind, tmp_path, COLUMNS, **options))
    assert source.features == ("x", "a", "b")
    assert columns_of_rows(source)["labels"].tolist() == [[0, 1], [1, 0], [1, 1], [0, 0]]


def test_a_column_of_lists_is_several_labels(tmp_path: Path) -> None:
    flags = pa.array([[0, 1], [1, 1], [1, 0], [0, 0]], pa.list_(pa.int8()))
    options = {"label": "tags", "task": "multilabel", "features": ["x"], "classes": ["cat", "dog"]}
    source = make(tmp_path, source_of("parquet", tmp_path, {**COLUMNS, "tags": flags}, **options))
    assert source.schema.targets == ("cat", "dog")
    assert columns_of_rows(source)["labels"].tolist() == flags.to_pylist()


@pytest.mark.parametrize("kind", FILES)
def test_one_number_and_no_weight_are_a_table_as_ever(kind: str, tmp_path: Path) -> None:
    options = {"label": "a", "task": "regression", "features": ["x"]}
    source = make(tmp_path, source_of(kind, tmp_path, COLUMNS, **options))
    assert not source.schema.record().columns
    assert columns_of_rows(source).keys() == {"features", "labels"}


BAD = {
    "a negative weight": ({"w": [1, -0.5, 1, 1]}, {}, r"column w .*-0.5.*, expected a weight of at least 0"),
    "no weight": ({"w": [1.0, None, 1.0, 1.0]}, {}, r"column w is .*, expected a weight of at least 0"),
    "a weight that is NaN": ({"w": [1.0, float("nan"), 1, 1]}, {}, "column w is .*, expected a weight"),
    "a flag of 2": ({"cat": [0, 2, 1, 1]}, {"task": "multilabel"}, "column cat .*2.*, expected 0 or 1"),
    "a missing number": ({"b": [1.0, None, 1.0, 1.0]}, {"label": ["a", "b"]}, "column b is .*, expected a finite"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("change", "options", "found"), BAD.values(), ids=[*BAD])
def test_a_bad_value_names_its_row(kind, change, options, found, tmp_path):
    options = {"label": ["cat"], "task": "regression", "features": ["x"], "weight": "w", **options}
    source = source_of(kind, tmp_path, {**COLUMNS, **change}, **options)
    with pytest.raises(ShardlineError, match=found) as error:
        columns_of_rows(make(tmp_path, source))
    assert re.search(r"row 2|line 3", str(error.value))
    assert len(columns_of_rows(make(tmp_path, source | {"on_bad": "skip"}))["labels"]) == 3


@given(
    rows=st.lists(
        st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 3, st.floats(0, 100, width=32)), min_size=1, max_size=20
    )
)  # fmt: skip
@settings(deadline=None, max_examples=15)
def test_generated_labels_and_weights_arrive_bit_by_bit(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    values = dict(zip(("x", "a", "b", "w"), map(list, zip(*rows, strict=True)), strict=True))
    options = {"label": ["a", "b"], "task": "regression", "features": ["x"], "weight": "w"}
    for kind in FILES:
        found = columns_of_rows(make(folder, source_of(kind, folder, values, **options), shards=1))
        expected = np.array([values["a"], values["b"]], np.float32).T
        assert found["labels"].tobytes() == expected.tobytes()
        assert found["weight"].tobytes() == np.array(values["w"], np.float32).tobytes()


@pytest.mark.parametrize("label", [["cat", "dog"], "tags"], ids=["columns", "list"])
def test_files_to_predict_need_neither_labels_nor_weights(label, tmp_path: Path) -> None:
    flags = pa.array([[0, 1]] * 4, pa.list_(pa.int8()))
    columns = {**COLUMNS, "tags": flags}
    options = {"label": label, "task": "multilabel", "features": ["x"], "weight": "w"}
    dataset = load_dataset(tmp_path, source_of("parquet", tmp_path, columns, **options))
    schema = make(tmp_path, source_of("parquet", tmp_path, columns, **options)).schema.record()
    other = tmp_path / "new.parquet"
    pq.write_table(pa.table({"x": [9.5, 8.5]}), other)
    source = open_files(
        dataset.source_class, dict(dataset.source) | {"names": ["new.parquet"]}, files=[other], num_shards=1,
        schema=schema,
    )  # fmt: skip
    found = columns_of_rows(source)
    assert found["labels"].tolist() == [[0, 0], [0, 0]]
    assert found["weight"].tolist() == [1, 1]
    shards = tmp_path / "shards"
    shards.mkdir()
    splits = {"train": 0, "validation": 0, "test": 1}
    part = describe_part("d", build_shards(source, [0], splits, shards), {})
    document = {"source": {"0": file_sha256(other)}}
    manifest = seal_files([part], dataset="d", source=source, schema=schema, document=document)
    assert manifest.has_labels is False


REFUSED = {
    "several labels of classes": ({"label": ["cat", "dog"], "num_classes": 2}, "lists columns for task=classification"),
    "classes of flags": ({"label": ["cat", "dog"], "task": "multilabel", "classes": ["p", "q"]}, "classes is given"),
    "weight and label": ({"label": "a", "task": "regression", "weight": "a"}, "weight=a is also the label"),
    "weight and feature": (
        {"label": "a", "task": "regression", "features": ["w"], "weight": "w"}, "features contains w, which is weight",
    ),
    "label and feature": (
        {"label": ["a", "b"], "task": "regression", "features": ["b"]}, "features contains b, which is label",
    ),
    "two columns named weight": (
        {"label": "a", "task": "regression", "columns": {"weight": "float32"}, "weight": "w"},
        "columns.weight conflicts",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=[*REFUSED])
def test_options_that_exclude_each_other_are_refused(options, message, tmp_path):
    with pytest.raises(ShardlineError, match=message):
        load_dataset(tmp_path, source_of("csv", tmp_path, COLUMNS, **options))


OF_TASKS = {
    "one number": {"label": "a", "task": "regression"},
    "weighted numbers": {"label": ["a", "b"], "task": "regression", "weight": "w"},
    "flags": {"label": ["cat", "dog"], "task": "multilabel"},
    "weighted classes": {"label": "cat", "num_classes": 2, "weight": "w"},
}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mlp", OF_TASKS["one number"]),
        ("linear", OF_TASKS["flags"]),
        ("tabular", OF_TASKS["weighted numbers"]),
        ("mlp", OF_TASKS["weighted classes"]),
    ],
    ids=str,
)
def test_a_shipped_model_predicts_what_the_dataset_says(model, options, tmp_path: Path) -> None:
    """Two steps, a resume, the sealed weights and their evaluation, on the first rows."""
    options = {**options, "features": ["x", "b"] if "b" not in options["label"] else ["x"]}
    dataset = load_dataset(tmp_path, source_of("csv", tmp_path, COLUMNS, **options), shards=1)
    rows = CheckedDataset(
        id="0123456789ab", name="d", manifest=tmp_path / "none", shards=tmp_path / "none",
        source_class=dataset.source_class, source=dict(dataset.source), num_shards=1, files=list(dataset.files),
    )  # fmt: skip
    spec = RunSpec(run="r", model_class=SHIPPED_MODELS[model], settings=RunSettings(global_batch=2))
    folder = tmp_path / "check"
    folder.mkdir()
    found = checked(spec, rows, folder)
    assert (found.problems, found.not_checked) == ([], [])


def test_a_new_key_changes_no_identity(tmp_path: Path) -> None:
    """A dataset without the new keys has the settings of before in its identity."""
    options = {"label": "a", "task": "regression", "features": ["x"]}
    dataset = load_dataset(tmp_path, source_of("csv", tmp_path, COLUMNS, **options))
    counted = dataset.document["settings"]["source"]
    assert not counted.keys() & {"weight"}
    assert {name: counted[name] for name in options} == options
