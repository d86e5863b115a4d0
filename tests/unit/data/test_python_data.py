"""Torch datasets and data modules of many shapes: their rows, columns and splits, and what is rejected."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from PIL import Image
from pytorch_lightning import LightningDataModule
from pytorch_lightning.demos.boring_classes import BoringDataModule

from shardline.config.resolved import PythonObject
from shardline.data.build import build_shards, describe_part, make_source, schema_of_source
from shardline.data.python.loaders import overrides_in
from shardline.data.python.look import look
from shardline.data.python.opened import open_data
from shardline.data.python.seeds import kept_generators
from shardline.data.python.source import ROWS_OF_SPLIT, PythonSource
from shardline.data.python.spool import Spool
from shardline.data.sources.source import row_of
from shardline.errors import ConfigError, DataError
from tests.support import build_memory, plain_rows, python_data
from tests.support.python_data import ROWS, picture
from tests.support.workspace import REPOSITORY

HERE = python_data.__name__
SHARDS = 3
FILE = bytes(range(64))


def source(name: str, files: list[Path] | None = None, **settings: Any) -> PythonSource:
    module = plain_rows if hasattr(plain_rows, name) else python_data
    path = f"{module.__name__}:{name}"
    found = make_source(path, settings, num_shards=SHARDS, files=files or [])
    assert isinstance(found, PythonSource)
    return found


def rows_of(found: PythonSource) -> list[dict[str, Any]]:
    columns = found.reader.looked.layout.columns
    return [
        {
            name: columns[name].value(value)
            if name in columns and columns[name].varies and isinstance(value, np.ndarray)
            else value
            for name, value in row.items()
        }
        for shard in range(SHARDS)
        for row in found.iter_rows(shard)
    ]


def png(row: int, *arguments: Any) -> bytes:
    buffer = io.BytesIO()
    picture(row, *arguments).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def pixels(row: int, mode: str = "RGB") -> np.ndarray:
    found = np.asarray(picture(row, mode=mode))
    return found if found.ndim == 3 else found[:, :, None]


def features(row: int, scale: float = 1.0) -> np.ndarray:
    return np.float32([row, row + 0.5]) * np.float32(scale)


# class, options, types of the columns, and the expected values of a row
Shape = tuple[str, dict[str, Any], dict[str, str], Callable[[int], dict[str, Any]]]
TABLE = {"features": "float32[2]", "labels": "int64"}
IMAGE = {"image": "uint8[4,6,3]", "labels": "int64"}
SHAPES: list[Shape] = [
    ("Table", {}, TABLE, lambda r: {"features": features(r), "labels": r % 3}),
    ("Table", {"scale": 2.0}, TABLE, lambda r: {"features": features(r, 2.0), "labels": r % 3}),
    (
        "Named", {}, {"x": "float32[2]", "meta.row": "int64", "meta.name": "text"},
        lambda r: {"x": features(r), "meta.row": r, "meta.name": f"r{r}"},
    ),
    ("Pairs", {}, {"first": "float32", "second": "int64[2]"}, lambda r: {"first": r, "second": [r, r + 1]}),
    (
        "Records", {}, {"weight": "float64", "tokens": "int64[*]", "note": "text?"},
        lambda r: {"weight": r / 2, "tokens": np.arange(r % 4), "note": None if r % 2 else f"é{r}"},
    ),
    ("Alone", {}, {"features": "float32[2]"}, lambda r: {"features": features(r)}),
    ("Texts", {}, {"text": "text", "labels": "int64"}, lambda r: {"text": f"text {r}", "labels": r % 2}),
    (
        "Contents", {}, {"content": "bytes", "labels": "float32"},
        lambda r: {"content": bytes([r] * (r % 5)), "labels": r},
    ),
    ("Pictures", {}, IMAGE, lambda r: {"image": pixels(r), "labels": r % 3}),
    (
        "Pictures", {"mode": "L"}, {**IMAGE, "image": "uint8[4,6,1]"},
        lambda r: {"image": pixels(r, "L"), "labels": r % 3},
    ),
    (
        "Pictures", {"mode": "P"}, {**IMAGE, "image": "bytes"},
        lambda r: {"image": png(r, (6, 4), "P"), "labels": r % 3},
    ),
    (
        "Sizes", {}, {**IMAGE, "image": "bytes"},
        lambda r: {"image": png(r, (4 + r % 3, 5)), "labels": r % 3},
    ),
    (
        "Detections", {},
        {"image": "uint8[4,6,3]", "target.boxes": "float32[*,4]", "target.labels": "int64[*]"},
        lambda r: {
            "image": pixels(r), "target.boxes": np.arange(4.0 * (r % 3)).reshape(-1, 4),
            "target.labels": np.arange(r % 3),
        },
    ),
    (
        "Handle", {}, {"features": "float64", "labels": "int64"},
        lambda r: {"features": r / 7, "labels": r % 2},
    ),
    ("Stream", {}, {"features": "float32[1]", "labels": "text"}, lambda r: {"features": [r], "labels": f"t{r}"}),
    ("Once", {}, {"x": "int64"}, lambda r: {"x": r}),
    (
        "function", {"rows": ROWS}, TABLE,
        lambda r: {"features": np.float32([2 * r, 2 * r + 1]), "labels": r % 2},
    ),
    (
        "chained", {}, TABLE,
        lambda r: {
            "features": features(r + 4) if r < 6 else features(r - 6, 2.0),
            "labels": (r + 4) % 3 if r < 6 else (r - 6) % 3,
        },
    ),
    ("LISTED", {}, {"x": "int64"}, lambda r: {"x": r}),
    (
        "WholeSample", {}, {"image": "uint8[4,6,3]", "labels": "int64"},
        lambda r: {"image": pixels(r), "labels": r % 3},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "columns", "expected"), SHAPES, ids=[f"{one[0]}{one[1]}" for one in SHAPES]
)
def test_rows_are_those_of_the_dataset(
    name: str, options: dict[str, Any], columns: dict[str, str], expected: Callable[[int], Any], tmp_path: Path
) -> None:  # fmt: skip
    file = tmp_path / "data.bin"
    file.write_bytes(FILE)
    found = source(name, [file], options=options)
    assert dict(found.schema.columns) == columns
    rows = rows_of(found)
    assert [row.pop("ids") for row in rows] == list(range(9 if name == "chained" else ROWS))
    for number, row in enumerate(rows):
        wanted = expected(number)
        assert row.keys() == wanted.keys()
        for column, value in row.items():
            np.testing.assert_array_equal(value, wanted[column])


def test_a_dataset_that_tells_its_classes_is_one_for_classification() -> None:
    assert source("Pictures").schema.classes == ("a", "b", "c")
    assert source("Table", num_classes=3).schema.classes == ("0", "1", "2")
    assert source("Table", classes=["x", "y", "z"]).schema.record().task == "classification"
    assert source("Contents").schema.record().task == "regression"
    assert "set source.num_classes" in source("Table").inferred["classes"]


def test_columns_can_be_set() -> None:
    named = source("Table", columns={"x": "float64[2]", "y": "int32"})
    assert [(one["x"].dtype, one["y"].dtype) for one in rows_of(named)[:1]] == [
        ("float64", "int32")
    ]
    fewer = source("Named", columns={"meta.row": "int64"})
    assert rows_of(fewer)[3] == {"ids": 3, "meta.row": 3}
    assert fewer.inferred["not stored"] == ["x", "meta.name"]
    as_files = source("Pictures", columns={"image": "bytes", "labels": "int64"})
    assert Image.open(io.BytesIO(rows_of(as_files)[5]["image"])).tobytes() == picture(5).tobytes()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Named", {"columns": {"meta.rows": "int64"}}, 'did you mean "meta.row"?'),
        ("Table", {"columns": {"x": "float32[2]"}}, "samples of 2 values, but source.columns lists 1"),
        ("Table", {"options": {"row": 3}}, "does not take {'row': 3}"),
        ("Table", {"options": {"rows": 0}}, "has no rows, expected at least one; check its options and files"),
        ("FILL", {}, "gives int, expected a subclass of shardline.sources.Source, a torch Dataset"),
        ("Several", {}, "train_dataloader returns 2 loaders, expected one DataLoader"),
        ("Broken", {}, "fails at row 0; correct the class or the files that it reads: ZeroDivisionError"),
        ("Unsized", {}, "has no __len__, so its rows cannot be counted"),
        ("Objects", {}, "a value of type complex, expected numbers, arrays, tensors"),
        ("Squares", {}, "arrays of shape [1, 1] and [2, 2]"),
        ("Asking", {}, "reads trainer.strategy, but shards are built without a trainer"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_the_remedy(
    name: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises((DataError, ConfigError)) as raised:
        list(source(name, **settings).iter_tables(0))
    assert words in str(raised.value)


def test_a_later_row_that_differs_is_named_with_row_column_and_key() -> None:
    with pytest.raises(
        DataError, match=r"row 301 has in column x int64\[3\].*set source.columns.x"
    ):
        list(source("Late").iter_tables(2))


def test_a_source_declares_its_columns_itself() -> None:
    path = "tests.unit.data.test_sources_remedies:Own"
    with pytest.raises(DataError, match=r"source.columns is given, but .*:Own is a Source"):
        make_source(path, {"type": path, "columns": {"x": "int64"}}, num_shards=1, files=[])


# --- data modules -------------------------------------------------------------------------------


def test_splits_are_the_modules_own() -> None:
    rows = rows_of(source("Module"))
    ids = np.array(sorted(row["ids"] for row in rows))
    assert np.bincount(ids // ROWS_OF_SPLIT).tolist() == [20, 4, 24]
    held_out = torch.utils.data.random_split(
        range(ROWS), [20, 4], torch.Generator().manual_seed(0)
    )[1]
    found = [row["image"] for row in rows if row["ids"] // ROWS_OF_SPLIT == 1]
    for image, row in zip(found, held_out, strict=True):
        np.testing.assert_array_equal(image, pixels(row))


def test_what_loaders_have_and_shardline_does_not_use_is_named_with_what_to_write() -> None:
    notes = " ".join(open_data(PythonObject(path=f"{HERE}:Peculiar"), 0).notes)
    for words in (
        "on_after_batch_transfer is not called; transform single samples in data.transform",
        f"collate_fn of train_dataloader (joined) is not called; write data.collate: {HERE}:joined",
        "sampler of train_dataloader (SubsetRandomSampler) selects 12 of 24 rows",
        "sampler of val_dataloader (WeightedRandomSampler) draws rows repeatedly",
        "set data.class_weights",
        "there is no test_dataloader, so the test split has no rows",
    ):
        assert words in notes
    rows = rows_of(source("Peculiar"))
    assert [row["features"][0] for row in rows if row["ids"] < ROWS_OF_SPLIT] == [
        *range(0, ROWS, 2)
    ]


def test_a_data_module_that_lightning_itself_ships_is_read() -> None:
    assert overrides_in(BoringDataModule, "train_dataloader")
    assert not overrides_in(LightningDataModule, "train_dataloader")


def test_a_usual_module_has_no_notes() -> None:
    assert open_data(PythonObject(path=f"{HERE}:Module"), 0).notes == []


def test_splits_without_a_seed_differ_between_jobs() -> None:
    with kept_generators():
        one, other, seeded, again = (
            open_data(PythonObject(path=f"{HERE}:Module", options={"seed": seed}), job).digests
            for seed, job in [(None, 1), (None, 2), (0, 1), (0, 2)]
        )
    assert seeded == again
    assert one["train"] != other["train"]
    found = source("Module")
    part = structs.replace(describe_part("d", [], {}), rows_of=found.rows_of)
    found.check_parts([part])
    with pytest.raises(
        DataError, match=r"split train has other rows .*random_split\(\.\.\., generator"
    ):
        found.check_parts([structs.replace(part, rows_of={**found.rows_of, "train": "0" * 16})])


def test_reading_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state().clone(), np.random.get_state()[1].copy()
    rows_of(source("Module", options={"seed": None}))
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])


# --- jobs: processes of their own ---------------------------------------------------------------


def build(found: PythonSource, folder: Path) -> Any:
    with found.job("build", range(SHARDS), folder) as files:
        part = describe_part(
            "d",
            build_shards(found, range(SHARDS), {"train": 1, "validation": 0, "test": 0}, folder),
            {},
        )
        return part, files()


def test_processes_build_what_this_process_builds(tmp_path: Path) -> None:
    """Statistics too, whose last bits depend on the blocks in which rows arrive."""
    file = tmp_path / "data.bin"
    file.write_bytes(FILE)
    built = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        built.append(build(source("Handle", [file], workers=workers), folder)[0])
    assert built[0] == built[1]


def test_chance_in_rows_is_rejected_by_column(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"row 0 has another value in column noise .*data.transform"
    ):
        build(source("Random", workers=0), tmp_path)


def test_an_iterable_is_read_once_into_all_shards(tmp_path: Path) -> None:
    found = source("Once")
    part, _ = build(found, tmp_path)
    assert [sum(shard.rows.values()) for shard in part.shards] == [8, 8, 8]
    assert not [*tmp_path.glob(".rows-*")]
    with (
        pytest.raises(DataError, match="set shards_per_job of the dataset to 3"),
        found.job("b", [0], tmp_path),
    ):
        pass
    assert schema_of_source(found).columns == {"x": "int64"}


@pytest.mark.rotating
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Of a map style and an iterable dataset, with a reader: four times as many rows, 75 MB more each."""
    peaks = []
    for rows in (200, 800):
        (tmp_path / str(rows)).mkdir()
        command = [
            sys.executable,
            "-m",
            build_memory.__name__,
            str(rows),
            str(tmp_path / str(rows)),
        ]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
        peaks.append(json.loads(done.stdout))
    for name, few in peaks[0].items():
        assert peaks[1][name] < few + 36 * 2**20, name


# --- properties ---------------------------------------------------------------------------------

VALUE = st.one_of(
    st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.booleans(), st.text(max_size=5), st.binary(max_size=5),
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUE), min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_any_samples_come_back_or_are_rejected_by_column(samples: list[dict[str, Any]]) -> None:
    try:
        layout = look(samples, None, "source")
        block = layout.block(samples, [str(number) for number in range(len(samples))])
    except DataError as error:
        kinds = [{type(one[name]) for one in samples if name in one} for name in "abc"]
        if all(len(kind) <= 1 for kind in kinds) and any(samples):
            raise AssertionError from error
        return
    for name, column in layout.columns.items():
        for place, sample in enumerate(samples):
            found = row_of(block[name], place)
            if sample.get(name) is None:
                assert found is None
            elif column.varies:
                assert column.value(found) == sample[name]
            else:
                assert found == pytest.approx(float(sample[name]), rel=1e-15)


@given(st.lists(st.integers(1, 5), max_size=5), st.data())
@settings(max_examples=50, deadline=None)
def test_a_spool_gives_any_range_of_rows(
    tmp_path_factory: Any, sizes: list[int], data: Any
) -> None:
    samples = [{"x": n, "t": None if n % 3 else "é" * (n % 4)} for n in range(sum(sizes))]
    layout = look([*samples, {"x": 0, "t": "a"}, {"x": 0, "t": None}], None, "source")
    spool, ends = Spool(tmp_path_factory.mktemp("spool")), np.cumsum([0, *sizes]).tolist()
    blocks = [(b - a, layout.block(samples[a:b], [""] * (b - a))) for a, b in pairwise(ends)]
    spool.write("train", blocks)
    first = data.draw(st.integers(0, len(samples)))
    last = data.draw(st.integers(first, len(samples)))
    found = []
    for start, number, columns in spool.read("train", first, last):
        assert start == first + len(found)
        for place in range(number):
            text = row_of(columns["t"], place)
            found.append(
                {
                    "x": row_of(columns["x"], place),
                    "t": text if text is None else text.tobytes().decode(),
                }
            )
    assert found == samples[first:last]
