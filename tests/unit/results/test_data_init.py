"""The guessed entry of a dataset: it is valid, reads the rows, and states what is a guess."""

import csv
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shardline.errors import ConfigError
from shardline.results.data_init import Entry, add_entry, guess_entry
from tests.support.needs import require
from tests.support.source_cases import make
from tests.unit.data.test_sources_images import idx
from tests.unit.data.test_sources_remedies import png, write

TABLE = {
    "id": range(40),
    "x": [n / 2 for n in range(40)],
    "t": ["a b"] * 40,
    "y": ["no", "yes"] * 20,
}


def table_text(columns: dict[str, Any], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue()


def saved(kind: str, folder: Path) -> list[str]:
    """Save data of a kind, and return what the command is called with."""
    (folder / "d").mkdir()
    path = folder / "d" / "data"
    match kind:
        case "csv":
            path.with_suffix(".csv").write_text(table_text(TABLE))
            return ["d/*.csv"]
        case "parquet":
            pq.write_table(
                pa.table({k: list(of) for k, of in TABLE.items()}), folder / "d/a.parquet"
            )
            return ["d"]
        case "delta":
            write_deltalake(folder / "d" / "t", pa.table({k: list(of) for k, of in TABLE.items()}))
            return ["d/t"]
        case "npy":
            np.save(folder / "d/x.npy", np.ones((40, 3, 4, 4), np.uint8))
            np.save(folder / "d/labels.npy", np.arange(40) % 2)
            return ["d"]
        case "npz":
            np.savez(folder / "d/a.npz", image=np.ones((40, 4)), target=np.arange(40) / 3)
            return ["d/a.npz"]
        case "hdf5":
            require(find_spec("h5py"), "needs h5py: pip install h5py")
            import h5py

            with h5py.File(folder / "d/a.h5", "w") as file:
                file["x"], file["y"] = np.ones((40, 2)), np.arange(40) % 2
            return ["d/a.h5"]
        case "image_folder":
            write(
                folder, {f"d/{name}/{n}.png": png() for name in ("cat", "dog") for n in range(20)}
            )
            return ["d"]
        case "images":
            write(
                folder, {f"d/{name}/{n}.png": png() for name in ("cat", "dog") for n in range(20)}
            )
            return ["d/*/*.png"]
        case "idx":
            write(folder, {"d/a-images-idx3-ubyte": idx(np.zeros((40, 3, 3), np.uint8))})
            write(folder, {"d/a-labels-idx1-ubyte": idx(np.arange(40, dtype=np.uint8) % 2)})
            return ["d/*"]
        case "jsonl":
            rows = [{"text": f"row {n}", "score": n / 2, "n": n, "tags": []} for n in range(40)]
            (folder / "d/a.jsonl").write_text("\n".join(map(json.dumps, rows)))
            return ["d/a.jsonl"]
        case _:
            (folder / "d/a.txt").write_text("a line\n" * 40)
            return ["d/a.txt"]


EXPECTED: dict[str, dict[str, Any]] = {
    "csv": {"type": "csv", "label": "y", "classes": ["no", "yes"], "id_column": "id"},
    "parquet": {"type": "parquet", "files": ["d/*.parquet"], "label": "y", "id_column": "id"},
    "delta": {"type": "delta", "table": "d/t", "version": 0, "label": "y"},
    "npy": {"type": "numpy", "files": ["d/*.npy"], "label": "labels"},
    "npz": {"type": "numpy", "label": "target", "task": "regression"},
    "hdf5": {"type": "hdf5", "label": "y"},
    "image_folder": {"type": "image_folder", "files": ["d"], "decode": "at_read"},
    "images": {"type": "image_folder", "files": ["d"], "decode": "at_read"},
    "idx": {"type": "idx", "files": ["d/*"]},
    "jsonl": {"type": "jsonl", "tokenize": {"tokens": "text"}, "columns": {"score": "float64", "n": "int64"}},
    "text": {"type": "text"},
}  # fmt: skip


def rows_of(entry: Entry, folder: Path) -> int:
    """Load the printed text as a config does, and read all rows."""
    settings = yaml.safe_load(entry.text)["datasets"][entry.name]
    assert settings == entry.settings
    source = make(folder, settings["source"], shards=1)
    return sum(len(table.ids) for table in source.iter_tables(0))


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_entry_reads_all_rows(kind: str, tmp_path: Path) -> None:
    entry = guess_entry(saved(kind, tmp_path), tmp_path)
    assert entry.source == entry.source | EXPECTED[kind]
    assert rows_of(entry, tmp_path) == 40
    assert entry.read["rows"] == 40
    assert not [note for note in entry.notes if note.startswith("it is not readable")]


NUMBERS = st.floats(-1e5, 1e5).map(lambda x: round(x, 2))


@settings(deadline=None, max_examples=15, phases=[Phase.generate])
@given(
    cells=st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from(["low", "high"])), min_size=8, max_size=30),
    form=st.sampled_from([(",", ".", ""), (";", ",", "."), (";", ",", ""), (",", ".", ","), ("\t", ".", "")]),
    gap=st.sampled_from(["", "-", "NA"]),
    has_breaks=st.booleans(),
)  # fmt: skip
def test_tables_in_any_notation_are_read_without_a_change(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[float, float, str]],
    form: tuple[str, str, str], gap: str, has_breaks: bool,
) -> None:  # fmt: skip
    delimiter, decimal, thousands = form
    folder = tmp_path_factory.mktemp("t")
    marks = str.maketrans({",": thousands, ".": decimal})
    columns = {
        "a": [gap if n == 3 else f"{a:,.2f}".translate(marks) for n, (a, _, _) in enumerate(cells)],
        "b": [f"{abs(b):.1f}%".replace(".", decimal) for _, b, _ in cells],
        "note": [f"row{n}\nof two" if has_breaks else "row" for n in range(len(cells))],
        "grade": [["low", "high"][n % 2] for n in range(len(cells))],
    }
    (folder / "a.csv").write_text(table_text(columns, delimiter))
    entry = guess_entry(["a.csv"], folder)
    assert entry.source["label"] == "grade", entry.text
    assert entry.source["percent"] == ["b"]
    source = make(folder, entry.source, shards=1)
    (table,) = source.iter_tables(0)
    expected = [[round(a, 2), abs(round(b, 1)) / 100] for a, b, _ in cells]
    expected[3][0] = 0  # and the gap is marked
    np.testing.assert_allclose(table.columns["numbers"], expected, rtol=1e-5, atol=1e-3)
    assert table.columns["gaps"][:, 0].tolist() == [int(n == 3) for n in range(len(cells))]


class Points:
    """Stands for a class of the user."""

    def __init__(self, size: int, noise: float = 0.1, *, num_shards: int = 1) -> None:
        raise AssertionError("it is not called")


def test_a_python_path(tmp_path: Path) -> None:
    entry = guess_entry([f"{__name__}:Points"], tmp_path)
    assert (entry.name, entry.shards) == ("points", 8)
    assert entry.source["options"] == {"size": None}
    assert "set size" in entry.comments["options"]
    assert "further options, with their defaults: noise: 0.1" in entry.notes
    for path in ("no.such:Class", f"{__name__}:Nothing"):
        with pytest.raises(ConfigError, match=f"{path}: cannot be imported"):
            guess_entry([path], tmp_path)


@pytest.mark.parametrize(
    ("files", "places", "expected"),
    [
        ({}, ["a.csv"], "a.csv: not found, expected a file, a folder, a pattern or a Python path"),
        ({}, ["*.csv"], r"\*.csv: matches no file"),
        ({"a.docx": b"x"}, ["a.docx"], "a.docx: contains .docx, expected files of a known format"),
        ({"d/a.docx": b"x"}, ["d"], "d: contains .docx, expected files of a known format"),
    ],
)
def test_what_is_no_data(
    files: dict[str, bytes], places: list[str], expected: str, tmp_path: Path
) -> None:
    write(tmp_path, files)
    with pytest.raises(ConfigError, match=expected):
        guess_entry(places, tmp_path)


def first(**columns: Any) -> Callable[[Path], Entry]:
    def guess(folder: Path) -> Entry:
        (folder / "a.csv").write_text(table_text(columns))
        return guess_entry(["a.csv"], folder)

    return guess


@pytest.mark.parametrize(
    ("guess", "key", "value"),
    [
        (first(y=[0, 1] * 5, x=range(10)), "num_classes", 2),
        (first(x=range(10), price=[n * 1.5 for n in range(10)]), "task", "regression"),
        (first(x=range(10), y=["no", "yes"] * 5), "classes", ["no", "yes"]),
        (first(x=range(10), on=["true", "false"] * 5), "classes", ["false", "true"]),
        (first(**{"Unnamed: 0": range(10)}, x=range(10), y=[0, 1] * 5), "features", ["x"]),
        (first(t=["some text", "more"] * 5, y=[0, 1] * 5), "columns", {"t": "text"}),
        (first(x=[1, "", 3] * 4, y=[0, 1] * 6), "preprocess", {}),
        (first(x=range(10), city=["Rom", "Wien"] * 5, y=[0, 1] * 5), "preprocess", {}),
    ],
)
def test_guesses(guess: Callable[[Path], Entry], key: str, value: Any, tmp_path: Path) -> None:
    entry = guess(tmp_path)
    assert entry.source[key] == value, entry.text
    assert key in entry.comments
    assert rows_of(entry, tmp_path) > 5


def test_an_entry_that_does_not_work_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,x,y\n1,2,0\n2,3,1\n")
    entry = guess_entry(["a.csv"], tmp_path)
    assert entry.notes[-1] == "it is not readable yet: a.csv: 2 columns named x; rename one of them"
    assert not entry.read


CONFIG = """\
runs: runs.tsv
datasets:   # all of them
    # the first
    old:
        source: {type: digits}
        shards: 4
lock: my.lock
"""


def test_an_entry_is_inserted_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    entry = Entry(name="new", source={"type": "text", "files": ["a: b.txt"]}, comments={"type": "why"})  # fmt: skip
    add_entry(path, entry)
    found = yaml.safe_load(path.read_text())
    assert found["datasets"]["new"] == entry.settings
    assert found["datasets"]["old"] == {"source": {"type": "digits"}, "shards": 4}
    left = path.read_text().splitlines()
    assert [line for line in left if line in CONFIG.splitlines()] == CONFIG.splitlines()
    with pytest.raises(ConfigError, match=r"datasets.new exists already; give another name"):
        add_entry(path, entry)
    path.write_text("datasets: {old: {source: {type: digits}, shards: 1}}\n")
    with pytest.raises(ConfigError, match=r"has no line `datasets:`, .*leave out --write"):
        add_entry(path, entry)
    with pytest.raises(ConfigError, match=r"cannot be read"):
        add_entry(tmp_path / "none.yaml", entry)
