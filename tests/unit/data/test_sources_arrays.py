"""NumPy and HDF5 files: every row once, however they are cut; roles, types and classes; bad rows and files by name."""

import io
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardline.data.sources import arrays as arrays_module
from shardline.data.sources.hdf5 import Hdf5
from shardline.data.sources.numpy import Numpy
from shardline.errors import ConfigError, DataError
from shardline.sources import Source
from tests.support.needs import require
from tests.support.source_cases import load_dataset, make, read
from tests.unit.data.test_claimed_sizes import CLAIMS, npy, refused

KINDS = ("npy", "npz", "packed", "hdf5")
Arrays = dict[str, np.ndarray]


def rows(first: int, number: int) -> Arrays:
    numbers = np.arange(first, first + number)
    return {
        "x": np.stack([numbers + 0.5, -numbers], axis=1).reshape(number, 1, 2).astype(np.float32),
        "y": numbers % 3,
        "key": numbers.astype(np.int32),
        "part": np.array([("train", "val", "test")[n % 3] for n in numbers]),
    }


def save(kind: str, folder: Path, arrays: Arrays) -> None:
    """Save arrays in a folder of their own."""
    folder.mkdir(parents=True)
    if kind == "npy":
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
    elif kind == "hdf5":
        require(find_spec("h5py"), "needs h5py: pip install h5py")
        import h5py

        with h5py.File(folder / "a.h5", "w") as file:
            for name, array in arrays.items():
                is_text = array.dtype.kind in "UO"
                text = h5py.string_dtype() if is_text else None
                file.create_dataset(
                    name, data=array.astype(object) if is_text else array, dtype=text
                )
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(folder / "a.npz", **arrays)


def source_of(kind: str, folder: Path, *tables: Arrays, **options: Any) -> dict[str, Any]:
    for number, table in enumerate(tables):
        save(kind, folder / "data" / str(number), table)
    return {"type": "hdf5" if kind == "hdf5" else "numpy", "files": ["data/*/*"], **options}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("shards", [1, 3, 30])
def test_every_row_once_however_it_is_cut(
    kind: str, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays_module, "_BLOCK_BYTES", 5 * 8)
    source = source_of(kind, tmp_path, rows(0, 20), rows(20, 17), label="y", id_column="key")
    made = make(tmp_path, source, shards=shards, splits={"column": "part"})
    found = read(made)
    expected = rows(0, 37)
    assert (found.ids == expected["key"]).all()
    assert (found.features == expected["x"]).all()
    assert (found.labels == expected["y"]).all()
    assert found.splits == ["train", "validation", "test"] * 12 + ["train"]
    assert made.schema.feature_shape == (1, 2)
    assert made.schema.classes == ("0", "1", "2")
    assert made.inferred == {
        "columns": {"features, the array x": "float32[1,2]"},
        "classes, by the array y": ["0", "1", "2"],
    }


def test_ids_do_not_depend_on_the_cut_or_on_further_files(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path, rows(0, 20), rows(20, 9), label="y", features="x")
    one, seven = (read(make(tmp_path, source, shards=shards)) for shards in (1, 7))
    assert (one.ids == seven.ids).all()
    first = source | {"files": ["data/0/*"]}
    assert load_dataset(tmp_path, first).files != load_dataset(tmp_path, source).files


def test_without_a_label_all_arrays_are_columns(kind: str, tmp_path: Path) -> None:
    source = make(tmp_path, source_of(kind, tmp_path, rows(0, 5)), shards=1)
    assert source.schema.columns == {
        "key": "int32", "part": "text", "x": "float32[1,2]", "y": "int64",
    }  # fmt: skip
    row = list(source.iter_rows(0))[4]
    assert (row["key"], row["part"], row["y"]) == (4, "val", 1)


def test_named_columns_convert_where_values_fit(kind: str, tmp_path: Path) -> None:
    options = {
        "columns": {"image": "float64[1,2]", "n": "int8"}, "rename": {"image": "x", "n": "key"},
        "label": "part", "classes": ["train", "val", "test"],
    }  # fmt: skip
    given = source_of(kind, tmp_path, rows(126, 4), **options)
    with pytest.raises(
        DataError, match=r"row 3: array key is 128, expected finite numbers \(int8\)"
    ):
        list(make(tmp_path, given, shards=1).iter_tables(0))
    source = make(tmp_path, given | {"on_bad": "skip"}, shards=1)
    found = list(source.iter_rows(0))
    assert [row["n"] for row in found] == [126, 127]
    assert [row["labels"] for row in found] == [0, 1]
    assert found[0]["image"].dtype == np.float64
    assert len(source.skipped[0]) == 2


def test_missing_numbers_and_unknown_labels_are_bad_rows(kind: str, tmp_path: Path) -> None:
    table = rows(0, 6)
    table["x"][1, 0, 1] = np.nan
    given = source_of(kind, tmp_path, table, label="y", features="x", num_classes=2, on_bad="skip")
    source = make(tmp_path, given, shards=1)
    assert len(read(source).ids) == 3
    sentences = [sentence.partition(", ")[2] for sentence in source.skipped[0]]
    assert "row 2: array x has a bad value, expected finite numbers (float32[1,2])" in sentences
    assert "row 6: array y is 2, expected one of source.classes (0, 1)" in sentences


def test_regression_and_labels_of_text(kind: str, tmp_path: Path) -> None:
    table = rows(0, 6) | {"z": np.arange(6) / 4}
    given = source_of(kind, tmp_path, table, label="z", features="x", task="regression")
    source = make(tmp_path, given)
    assert source.schema.task == "regression"
    assert read(source).labels.tolist() == (np.arange(6) / 4).tolist()
    source = make(tmp_path, given | {"label": "part", "task": "classification"})
    assert source.schema.classes == ("test", "train", "val")
    assert read(source).labels.tolist() == [1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("arrays", "options", "expected"),
    [
        ({}, {"label": "yy"}, r'no array named yy; did you mean "y"\?'),
        ({"w": np.zeros(6)}, {"label": "y"}, r"4 arrays besides label, id and split \(.*\), expected one of features"),
        ({"x": np.zeros((5, 2))}, {"label": "y"}, r"arrays have different lengths: .*x \(5 rows\).*put the arrays of"),
        ({"y": np.eye(6)}, {"label": "y", "features": "x"}, r"rows of y have the shape \[6\].*as by argmax\(axis=1\)"),
        ({"y": np.arange(6) / 2}, {"label": "y", "features": "x"}, "labels of y are float64 .*set source.task: regres"),
        ({"c": np.zeros(6, complex)}, {}, r"array c is of type complex128, .*list the arrays to keep in"),
        ({}, {"label": "y", "features": "part"}, "array part contains text, expected numbers; list source.columns"),
        ({}, {"columns": {"x": "float32[3]"}}, r"rows of x are float32\[1, 2\], expected float32\[3\]; correct its"),
        ({"s": np.float64(3)}, {"label": "y"}, r"arrays have different lengths: .*s \(a single value\)"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(
    kind: str, arrays: Arrays, options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    source = make(tmp_path, source_of(kind, tmp_path, rows(0, 6) | arrays, **options), shards=1)
    with pytest.raises(DataError, match=expected):
        _ = source.schema, list(source.iter_tables(0))


def test_files_that_differ(kind: str, tmp_path: Path) -> None:
    other = rows(6, 4) | {"x": np.zeros((4, 3))}
    source = source_of(kind, tmp_path, rows(0, 6), other, label="y", features="x")
    with pytest.raises(DataError, match=r"rows of x are float64\[3\], expected float32\[1, 2\]"):
        read(make(tmp_path, source))
    del other["x"]
    source = source_of(kind, tmp_path / "b", rows(0, 6), other, label="y", features="x")
    with pytest.raises(DataError, match="no array x, unlike"):
        read(make(tmp_path / "b", source))


def test_splits_by_folder(kind: str, tmp_path: Path) -> None:
    tables = [rows(first, 5) for first in (0, 5, 10)]
    source = source_of(kind, tmp_path, *tables, label="y", features="x", id_column="key")
    names = {name: [f"{n}/*"] for n, name in enumerate(("train", "validation", "test"))}
    found = read(make(tmp_path, source, splits={"files": names}))
    assert found.splits == ["train"] * 5 + ["validation"] * 5 + ["test"] * 5
    if kind == "npy":
        mixed = {"train": ["*/x.npy", "*/y.npy"], "validation": ["*/key.npy"], "test": ["*/part.npy"]}  # fmt: skip
        with pytest.raises(DataError, match="put each split into a folder of its own"):
            read(make(tmp_path, source, splits={"files": mixed}))


def test_settings_that_exclude_each_other(tmp_path: Path) -> None:
    source = source_of("npy", tmp_path, rows(0, 3))
    for more, expected in (
        ({"features": "x"}, "features=x is given without a label"),
        ({"label": "y", "features": "x", "columns": {"x": "float32[1,2]"}}, "features=x is given beside columns"),
        ({"label": "y", "num_classes": 3, "classes": ["a"]}, "classes and num_classes are both given"),
        ({"num_classes": 3}, "num_classes is given without a label"),
        ({"label": "y", "task": "regression", "num_classes": 3}, "num_classes is given for task=regression"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=expected):
            load_dataset(tmp_path, source | more)


def test_what_is_not_compressed_is_mapped(tmp_path: Path) -> None:
    table = {"x": np.asfortranarray(np.arange(12.0).reshape(4, 3)), "e": np.zeros((4, 0))}
    for kind in ("npy", "npz"):
        save(kind, tmp_path / kind, table)
        source = Numpy(files=sorted((tmp_path / kind).iterdir()), num_shards=1)
        (found,) = source.tables
        assert isinstance(found.arrays["x"], np.memmap)
        assert (found.arrays["x"][:] == table["x"]).all()


class Trap:
    """What pickles to a call."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_pickled_objects_are_rejected(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    array = np.array([Trap()] * 3, dtype=object)
    (np.save if suffix == "npy" else np.savez_compressed)(path, array, allow_pickle=True)
    with pytest.raises(
        DataError, match=rf"a\.{suffix}: cannot be read as {suffix} \(it contains pickled objects"
    ):
        _ = Numpy(files=[path], num_shards=1).schema


def zipped(content: bytes, *, is_packed: bool) -> bytes:
    file = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", how) as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


@pytest.mark.parametrize("form", ["npy", "npz", "packed"])
def test_headers_that_claim_more_than_the_file_holds(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{'npy' if form == 'npy' else 'npz'}"
    shapes: list[object] = [(claim,) for claim in CLAIMS if claim > 4]
    shapes += [(claim, claim) for claim in CLAIMS] + [(-1,), (-2, -2), (0, 2**62, 2**62), 3, "a"]
    for content in (*map(npy, shapes), b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr'", b"", b"abc"):
        path.write_bytes(content if form == "npy" else zipped(content, is_packed=form == "packed"))
        refused(Numpy, [path], content)


def test_damaged_hdf5(tmp_path: Path) -> None:
    save("hdf5", tmp_path / "d", rows(0, 50) | {"v": np.zeros((50, 40))})
    path = tmp_path / "d" / "a.h5"
    whole = path.read_bytes()
    for content in (b"", b"abc", whole[:100], whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert "cannot be read as HDF5" in refused(Hdf5, [path], content)


def test_hdf5_groups_text_and_rows_of_any_length(tmp_path: Path) -> None:
    require(find_spec("h5py"), "needs h5py: pip install h5py")
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        tokens = file.create_dataset("train/tokens", (3,), dtype=h5py.vlen_dtype("int32"))
        for row in range(3):
            tokens[row] = np.arange(row)
        file["train/name"] = ["a", "ä", ""]
        file["fixed"] = np.array([b"ab", b"c", b"\xc3\xa4"])
        file["none"] = h5py.Empty("f4")
    source: Source = Hdf5(
        files=[tmp_path / "a.h5"], num_shards=1, columns={"tokens": "int32[*]", "name": "text", "f": "text"},
        rename={"tokens": "train/tokens", "name": "train/name", "f": "fixed"},
    )  # fmt: skip
    found = list(source.iter_rows(0))
    assert [row["tokens"].tolist() for row in found] == [[], [0], [0, 1]]
    assert [row["name"] for row in found] == ["a", "ä", ""]
    assert [row["f"] for row in found] == ["ab", "c", "ä"]
    names = {"a.b": "train/tokens", "n": "train/name"}
    everything = Hdf5(files=[tmp_path / "a.h5"], num_shards=1, rename=names)
    assert everything.schema.columns == {"a.b": "int32[*]", "fixed": "text", "n": "text"}
