"""Files that a prediction is about: read as the run's dataset was, with or without labels."""

import gzip
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shardline.config.checked_sources import SHIPPED_SOURCES
from shardline.data.build import build_shards, describe_part, make_source
from shardline.data.predicted import SPLITS, found_features, open_files, seal_files
from shardline.errors import DataError

TABLE = "a,b,c,y\n1,2,3,no\n4,5,6,yes\n7,8,9,no\n"


def opened(kind, trained, files, **options):
    """Open files as another set of files is, and return the source."""
    path, settings = SHIPPED_SOURCES[kind], {"type": kind, **options}
    before = make_source(path, settings, num_shards=1, files=trained)
    schema = before.schema.record()
    features = found_features(path, settings, trained)
    source = open_files(path, settings, files=files, num_shards=1, schema=schema, features=features)
    return source, schema


def rows_of(source):
    return list(source.iter_rows(0))


def written(path, text):
    path.write_text(text)
    return path


def idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))
    return path


CSV = {"label": "y", "classes": ["no", "yes"]}


def test_a_table_is_read_by_the_names_of_its_columns_without_a_label(tmp_path):
    trained = [written(tmp_path / "t.csv", TABLE)]
    new = [written(tmp_path / "n.csv", "c,a,more,b\n3,1,0,2\n6,4,0,5\n")]
    source, schema = opened("csv", trained, new, **CSV)
    assert not source.has_labels
    assert [row["features"].tolist() for row in rows_of(source)] == [[1, 2, 3], [4, 5, 6]]
    assert [row["labels"] for row in rows_of(source)] == [0, 0]
    part = describe_part("d", build_shards(source, [0], SPLITS, tmp_path), {})
    document = {"source": {str(number): one for number, one in enumerate(digests(new))}}
    sealed = seal_files([part], dataset="d", source=source, schema=schema, document=document)
    assert sealed.splits == {"train": 0, "validation": 0, "test": 2}
    assert sealed.has_labels is False
    assert sealed.schema == schema


def digests(files):
    from shardline.data.sources.source import file_digests

    return file_digests(files)


def test_labels_that_are_there_are_read(tmp_path):
    trained = [written(tmp_path / "t.csv", TABLE)]
    source, _ = opened("csv", trained, trained, **CSV)
    assert source.has_labels
    assert [row["labels"] for row in rows_of(source)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,c,y\n1,2,no\n", r"n.csv: no column b, its columns are a, c, y, expected a, b, c as in the data that"),
        ("a,b,c\n1,x,3\n", r"n.csv, line 2: column b is x, expected a finite number"),
        ("a,b,c\n", r"n.csv: ends after line 1, the header, expected rows below the header"),
    ],
)  # fmt: skip
def test_tables_of_other_columns_and_values_are_named(tmp_path, text, said):
    trained = [written(tmp_path / "t.csv", TABLE)]
    with pytest.raises(DataError, match=said):
        rows_of(opened("csv", trained, [written(tmp_path / "n.csv", text)], **CSV)[0])


def test_types_and_sizes_of_a_parquet_file_are_named(tmp_path):
    def parquet(name, **columns):
        pq.write_table(pa.table(columns), tmp_path / name)
        return [tmp_path / name]

    trained = parquet("t.parquet", x=[[1.0, 2.0]], y=[0])
    given = {"label": "y", "num_classes": 2}
    source, _ = opened("parquet", trained, parquet("n.parquet", x=[[3.0, 4.0]]), **given)
    assert rows_of(source)[0]["features"].tolist() == [3, 4]
    longer = parquet("l.parquet", x=[[3.0, 4.0, 5.0]])
    with pytest.raises(
        DataError,
        match=r"l.parquet: column features is float32\[3\], expected float32\[2\] as in the",
    ):
        opened("parquet", trained, longer, **given)
    with pytest.raises(
        DataError, match=r"s.parquet: column x is of type list<.*string>, expected numbers"
    ):
        opened("parquet", trained, parquet("s.parquet", x=[["a", "b"]]), **given)


def test_named_columns_of_json_lines_need_no_label(tmp_path):
    trained = [written(tmp_path / "t.jsonl", '{"x": [1, 2], "y": "a"}\n{"x": [1, 2], "y": "b"}\n')]
    given = {"columns": {"x": "float32[2]"}, "label": "y", "classes": ["a", "b"]}
    new = [written(tmp_path / "n.jsonl", '{"x": [3, 4]}\n')]
    source, _ = opened("jsonl", trained, new, **given)
    assert not source.has_labels
    assert [(row["x"].tolist(), row["labels"]) for row in rows_of(source)] == [([3, 4], 0)]
    assert opened("jsonl", trained, trained, **given)[0].has_labels


def test_images_in_a_folder_of_no_class_are_read(tmp_path):
    def image(place, shade):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), shade, np.uint8)).save(path)
        return path

    trained = [image("dark/a.png", 10), image("light/b.png", 200)]
    given = {"size": [2, 2], "mode": "L", "fit": "crop", "decode": "at_build"}
    source, schema = opened("image_folder", trained, [image("new/c.png", 90)], **given)
    assert not source.has_labels
    (row,) = rows_of(source)
    assert row["features"].tolist() == [[[90, 90], [90, 90]]]
    assert source.schema.record() == schema
    labelled, _ = opened("image_folder", trained, [trained[1]], **given)
    assert labelled.has_labels
    assert [row["labels"] for row in rows_of(labelled)] == [1]


def test_idx_images_need_no_labels(tmp_path):
    images = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    trained = [
        idx(tmp_path / "t-images-idx3-ubyte.gz", images),
        idx(tmp_path / "t-labels-idx1-ubyte.gz", np.array([0, 4], np.uint8)),
    ]
    new = idx(tmp_path / "n-images-idx3-ubyte.gz", images[:1])
    source, schema = opened("idx", trained, [new])
    assert not source.has_labels
    assert source.schema.record() == schema
    assert [row["features"].tolist() for row in rows_of(source)] == [[[0, 1], [2, 3]]]
    wide = idx(tmp_path / "w-images-idx3-ubyte.gz", np.zeros((1, 3, 2), np.uint8))
    with pytest.raises(
        DataError, match=r"w-images.*: column features is uint8\[3,2\], expected uint8\[2,2\]"
    ):
        opened("idx", trained, [wide])
