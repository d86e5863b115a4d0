"""What of a source and its splits counts in a dataset's identity; what is refused is in `test_sources_remedies.py`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from shardline.config.settings import keys_of, schema_of
from shardline.config.settings.config import Config, DatasetSettings
from shardline.config.validate import validate
from shardline.errors import ConfigError
from tests.support.source_cases import load_dataset

TABULAR = {"label": "y", "classes": ["a", "b"]}
SOURCES: dict[str, dict[str, Any]] = {
    "csv": {"files": ["data/*.csv"], **TABULAR},
    "parquet": {"files": ["data/*.csv"], **TABULAR},
    "delta": {"table": "table", "version": 1, **TABULAR},
    "idx": {"files": ["data/*.csv"]},
    "image_folder": {"files": ["data"], "size": [8, 8]},
    "hdf5": {"files": ["data/*.csv"], **TABULAR},
    "hf": {"files": ["data/*.csv"], **TABULAR},
    "numpy": {"files": ["data/*.csv"], **TABULAR},
    "litdata": {"files": ["data/*.csv"]},
    "mds": {"files": ["data/*.csv"]},
    "webdataset": {"files": ["data/*.csv"]},
    "text": {"files": ["data/*.csv"]},
    "jsonl": {
        "files": ["data/*.csv"],
        "columns": {"x": "int64"},
        "tokenize": {"tokens": "text"},
        **TABULAR,
    },
}
# One change of each option; None means that there is nothing to change alone.
CHANGED: dict[str, dict[str, Any]] = {
    "files": {"files": ["data/1.csv"]},
    "label": {"label": "z"},
    "features": {"features": ["x"]},
    "columns": {"columns": {"x": "int8"}},
    "rename": {"columns": {"x": "int8"}, "rename": {"x": "z"}},
    "id_column": {"id_column": "key"},
    "task": {"task": "regression", "classes": []},
    "classes": {"classes": ["b", "a"]},
    "num_classes": {"classes": [], "num_classes": 2},
    "dtype": {"dtype": "float64"},
    "preprocess": {"preprocess": {}},
    "weight": {"weight": "key"},
    "on_bad": {"on_bad": "skip"},
    "delimiter": {"delimiter": ";"},
    "decimal": {"decimal": ",", "delimiter": ";"},
    "thousands": {"thousands": "'"},
    "percent": {"percent": ["x"]},
    "missing": {"missing": ["-"]},
    "line_breaks": {"line_breaks": True},
    "version": {"version": 0},
    "size": {"size": [8, 9]},
    "mode": {"mode": "L"},
    "fit": {"fit": "stretch"},
    "tokenizer": {"tokenizer": "data/more/tokenizer.json"},
    "special_tokens": {"tokenizer": "data/more/tokenizer.json", "special_tokens": True},
    "end": {"end": 10},
    "unit": {"unit": "file"},
    "decode": {"decode": "at_read", "size": None},
    "tokenize": {"tokenize": {"tokens": "caption"}},
    "keep_text": {"keep_text": True},
}
OF_ARRAYS = {key: {"features": {"features": "x"}} for key in ("numpy", "hdf5")}
# Where the content lies and how fast it is read; a table's id is its content's.
UNCOUNTED = {"table": {"table": "moved"}, "decode_threads": {"decode_threads": 3}}


def rules() -> dict[str, set[str]]:
    """Return the options of each shipped source."""
    tables = keys_of(DatasetSettings)["source"].schema.tables
    return {table.named: set(keys_of(table)) - {"type"} for table in tables}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "more").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "data" / f"{number}.csv").write_text(f"x,y\n{number},a\n")
        (tmp_path / "data" / "more" / f"{number}.png").write_text(f"{number}")
    (tmp_path / "data" / "more" / "tokenizer.json").write_text("{}")
    for _ in range(2):
        write_deltalake(tmp_path / "table", pa.table({"x": [1], "y": ["a"]}), mode="append")
    return tmp_path


CASES = [(kind, option) for kind in SOURCES for option in sorted(rules()[kind] - {"table_id"})]


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_each_option_of_each_source(kind: str, option: str, folder: Path) -> None:
    source = {"type": kind, **SOURCES[kind]}
    before = load_dataset(folder, source).id
    if option == "table":
        (folder / "table").rename(folder / "moved")
    elif kind == "image_folder" and option == "files":
        (folder / "data" / "more" / "9.png").write_text("9")
    changed = source | (UNCOUNTED | CHANGED | OF_ARRAYS.get(kind, {}))[option]
    changed = {key: value for key, value in changed.items() if value is not None}
    if kind == "image_folder" and option == "files":
        changed = source
    assert (load_dataset(folder, changed).id == before) is (option in UNCOUNTED)


@pytest.mark.parametrize(
    "splits",
    [
        {"train": 0.7, "validation": 0.2, "test": 0.1},
        {"column": "part"},
        {"column": "other"},
        {"files": {"train": ["0.csv"], "validation": ["1.csv"], "test": ["2.csv"]}},
        {"files": {"train": ["0.csv", "1.csv"], "validation": 0.1, "test": ["2.csv"]}},
        {"files": {"train": ["0.csv", "1.csv"], "validation": 0.2, "test": ["2.csv"]}},
    ],
)
def test_splits_count(splits: dict[str, Any], folder: Path) -> None:
    source = {"type": "csv", **SOURCES["csv"]}
    before, after = load_dataset(folder, source), load_dataset(folder, source, splits=splits)
    assert after.id != before.id
    assert after.document["settings"]["splits"] == splits


def test_content_counts_by_bytes_and_by_name(folder: Path) -> None:
    source = {"type": "csv", **SOURCES["csv"]}
    before = load_dataset(folder, source).id
    (folder / "data").rename(folder / "moved")
    source["files"] = ["moved/*.csv"]
    assert load_dataset(folder, source).id == before
    (folder / "moved" / "1.csv").write_text("x,y\n1,b\n")
    assert load_dataset(folder, source).id != before
    (folder / "moved" / "1.csv").write_text("x,y\n1,a\n")
    assert load_dataset(folder, source).id == before
    (folder / "moved" / "1.csv").rename(folder / "moved" / "3.csv")
    assert load_dataset(folder, source).id != before


def test_a_tokenizer_counts_by_its_content(folder: Path) -> None:
    source = {"type": "text", **SOURCES["text"], "tokenizer": "data/more/tokenizer.json"}
    before = load_dataset(folder, source)
    assert before.document["versions"] == {"data": 1, "text": 1, "tokenizer": 1}
    assert "tokenizers" in before.document["environment"]["packages"]
    (folder / "data" / "more" / "tokenizer.json").rename(folder / "moved.json")
    source["tokenizer"] = "moved.json"
    assert load_dataset(folder, source).id == before.id
    assert load_dataset(folder, source | {"special_tokens": True}).id != before.id
    (folder / "moved.json").write_text("{} ")
    assert load_dataset(folder, source).id != before.id


PACKAGES = {
    "tokenizers",
    "pyarrow",
    "deltalake",
    "pillow",
    "fsspec",
    "h5py",
    "scikit-learn",
    "torch",
    "aiohttp",
}


@pytest.mark.parametrize(
    ("kind", "packages"),
    [
        ("csv", {"pyarrow"}),
        ("parquet", {"pyarrow"}),
        ("delta", {"pyarrow", "deltalake"}),
        ("idx", set()),
        ("numpy", {"pyarrow"}),
        ("image_folder", {"pillow"}),
        ("hdf5", {"pyarrow", "h5py"}),
        ("hf", {"pyarrow"}),
        ("litdata", {"pyarrow"}),
        ("mds", {"pyarrow"}),
        ("webdataset", set()),
        ("text", set()),
        ("jsonl", set()),
    ],
)
def test_only_the_packages_of_a_source_count(kind: str, packages: set[str], folder: Path) -> None:
    document = load_dataset(folder, {"type": kind, **SOURCES[kind]}).document
    assert PACKAGES & set(document["environment"]["packages"]) == packages
    assert (document["versions"], document["code"]) == ({"data": 1, kind: 1}, {})
    assert not {name for name in document["code"] if name.startswith("shardline.config")}


GUIDES = ("read-tables", "read-images-and-text", "read-remote-data", "split-and-select-rows")


def documented_datasets(page: str) -> Iterator[dict[str, Any]]:
    """Yield the datasets of each block of a page.

    Of a block without `datasets:`, the indentation shows what it is a part of; the page's first dataset has the rest.
    """
    text = (Path(__file__).parents[3] / f"docs/how-to/{page}.md").read_text()
    first: dict[str, Any] = {}
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        part = yaml.safe_load(block)
        depth = len(block) - len(block.lstrip(" "))
        if block.startswith("datasets:"):
            part = part["datasets"]
            first = first or next(iter(part.values()))
        elif depth == 4:
            part = {"part": first | part}
        elif depth == 6:
            part = {"part": first | {"source": first["source"] | part}}
        elif depth != 2:  # settings of runs
            continue
        yield part


def test_examples_of_the_guides_are_valid() -> None:
    seen = set()
    for page in GUIDES:
        blocks = list(documented_datasets(page))
        assert blocks, page
        for datasets in blocks:
            config = {"runs": "runs.tsv", "defaults": {}, "datasets": datasets}
            validate(config, schema_of(Config), where=page)
            seen |= {entry["source"]["type"] for entry in datasets.values()}
    assert seen >= set(SOURCES)


WHERE = "config/config.yaml: datasets.d."


def test_images_need_a_size_where_they_are_decoded(folder: Path) -> None:
    source = {"type": "image_folder", "files": ["data"]}
    expected = "source.size is missing; add it, or keep the files' bytes with decode: at_read"
    assert message(lambda: load_dataset(folder, source)) == expected
    at_read = load_dataset(folder, source | {"decode": "at_read"})
    assert at_read.document["settings"]["source"]["decode"] == "at_read"
    at_build = load_dataset(folder, source | {"size": [8, 8]})
    assert at_build.document["settings"]["source"]["decode"] == "at_build"


def test_a_feature_that_is_the_id_and_files_of_splits_without_files_are_refused(
    folder: Path,
) -> None:
    source = {"type": "csv", **SOURCES["csv"], "features": ["k"], "id_column": "k"}
    expected = "source.features contains k, which is id_column; drop it"
    assert message(lambda: load_dataset(folder, source)).startswith(expected)
    source = {"type": "delta", **SOURCES["delta"]}
    splits = {"files": {"train": ["a"], "validation": 0.1, "test": ["b"]}}
    expected = "splits.files is for sources of type csv, hdf5, hf, idx, image_folder, jsonl, litdata, mds, numpy, "
    found = message(lambda: load_dataset(folder, source, splits=splits))
    assert found.startswith(f"{expected}parquet, text, webdataset, not delta; give shares ")


def message(load: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as error:
        load()
    assert str(error.value).startswith(WHERE)
    return str(error.value).removeprefix(WHERE)
