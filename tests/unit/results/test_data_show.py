"""What was understood of a dataset: of its source before it is built, of its records afterwards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardline.core.files import read_json
from shardline.pipeline import dataset_jobs
from shardline.records.datasets import DatasetSchema
from shardline.records.understood import block, understood
from shardline.report.datasets import read_datasets
from shardline.results.data_show import describe_datasets
from tests.support.fake_project import FakeProject
from tests.unit.data.test_sources_remedies import png

CSV = {"type": "csv", "files": ["tables/*"], "label": "y", "classes": ["a", "b"]}
FOLDER = {"type": "image_folder", "files": ["p"], "decode": "at_read"}


def prepare(fake: FakeProject, source: dict[str, Any]) -> None:
    """Let the run `flat` train on tables or photos; a fourth of the rows of the table is unusable."""
    lines = [f"{n},{n / 2},{'' if n % 4 == 3 else n},{'ab'[n % 2]}" for n in range(80)]
    fake.workspace.write("tables/a.csv", "k,x,z,y\n" + "\n".join(lines) + "\n")
    fake.workspace.write("tables/.b.csv", "")
    for name in (*(f"cat/{n}" for n in range(40)), *(f"dog/{n}" for n in range(20))):
        path = fake.workspace.path / f"p/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    (fake.workspace.path / "p/notes.txt").write_text("x")
    fake.config["datasets"]["table"] = {"source": source, "shards": 1}


def build(fake: FakeProject) -> Path:
    """Build and seal the dataset of the run `flat`; returns its manifest."""
    project = fake.load()
    dataset = fake.run("flat").parts[0].dataset
    for part in dataset.parts:
        file = project.layout.parts(dataset.id) / f"{part}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        dataset_jobs.build_part(project, dataset, part, file)
    dataset_jobs.seal_parts(project, dataset, dataset.manifest, dataset.provenance)
    return dataset.manifest


def shown(fake: FakeProject) -> tuple[Any, str]:
    (found,) = describe_datasets(fake.load(), ["table"])
    return found, block("table", found.read)


def test_a_table_before_and_after_it_is_built(fake: FakeProject) -> None:
    prepare(fake, CSV | {"on_bad": "skip", "id_column": "k"})
    before, text = shown(fake)
    assert not before.is_built
    assert text == (
        "dataset table is read as\n"
        "  rows: 60\n"
        "  files: 1\n"
        '  delimiter: ","\n'
        "  features, all columns of numbers: x, z\n"
        "  stored as: float32\n"
        "  no value repeated, as in an id: z\n"
        "  classes, by source.classes: a, b\n"
        "  a row has: features (float32[2]), labels (int64)\n"
        "  a row: features (0, 0), labels (a)\n"
        "  rows skipped: 20 (the first: tables/a.csv, line 5: column z is empty, expected a finite number (float32))\n"
        "  not read, hidden: 1 (tables/.b.csv)"
    )
    manifest = read_json(build(fake), remedy="")
    after, text = shown(fake)
    assert after.is_built
    rows = manifest["splits"]
    assert sum(rows.values()) == 60
    expected = ", ".join(f"{split} ({number})" for split, number in rows.items())
    assert f"  rows: {expected}\n" in text
    assert "  classes, by source.classes: a (40), b (20)\n" in text
    low, high = (manifest["statistics"]["features"][key] for key in ("min", "max"))
    ranges = f"x ({low[0]:.5g} to {high[0]:.5g}), z ({low[1]:.5g} to {high[1]:.5g})"
    assert f"  range in train rows: {ranges}\n" in text
    assert "  rows skipped: 20 (the first: " in text
    assert text.endswith("  not read, hidden: 1 (tables/.b.csv)")


def test_images_have_a_picture_in_the_report_and_counts_by_folder(fake: FakeProject) -> None:
    prepare(fake, FOLDER)
    before, text = shown(fake)
    assert before.picture.startswith("data:image/png;base64,")
    assert "  classes, by folders: cat (40), dog (20)\n" in text
    manifest = build(fake)
    after, text = shown(fake)
    assert after.picture == before.picture
    assert "  classes, by folders: cat (40), dog (20)\n" in text
    assert "  a row: image (" in text
    assert text.endswith("  not read, of another kind: 1 (p/notes.txt)")

    class Run:
        class Read:
            id, name = manifest.parent.name, "table"

        trained_on = (Read,)

    (described,) = read_datasets([Run], [manifest])  # type: ignore[list-item]
    assert described["picture"] == after.picture
    assert described["understood"] == {
        line.strip().partition(": ")[0]: line.partition(": ")[2] for line in text.splitlines()[1:]
    }


def test_records_of_earlier_versions_have_no_example(fake: FakeProject) -> None:
    prepare(fake, CSV | {"on_bad": "skip", "id_column": "k"})
    manifest = build(fake)
    manifest.with_name("provenance.json").unlink()
    found, text = shown(fake)
    assert found.is_built
    assert "a row:" not in text
    assert "  range in train rows: features (" in text, "nothing names the features"


def test_a_source_that_cannot_be_read_hides_no_other(fake: FakeProject) -> None:
    prepare(fake, CSV | {"id_column": "k"})
    found = {one.dataset: one for one in describe_datasets(fake.load())}
    assert found["table"].problem.startswith("tables/a.csv, line 5: column z is empty")
    assert found["rows"].problem
    assert not found["table"].read


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"tokens": "int32[*]"}, {"length of tokens": "1 to 3"}),
        ({"t": "text", "n": "int64"}, {"length of t": "1 to 3", "n": "1 to 3"}),
        ({"image": "uint8[3,4,4]"}, {"image": "1 to 3"}),
    ],
)
def test_ranges_of_varying_columns_are_those_of_their_lengths(
    columns: dict[str, str], expected: dict[str, str]
) -> None:
    from msgspec import convert

    from shardline.records.datasets import Manifest

    summary = {"count": 2, "mean": [2.0], "std": [1.0], "min": [1.0], "max": [3.0]}
    manifest = convert(
        {
            "dataset": "d", "schema": {"task": "none", "columns": columns}, "bytes": 1, "skipped": {}, "shards": [],
            "splits": {"train": 2, "validation": 0, "test": 0}, "identity": {},
            "statistics": {"class_counts": {}, "columns": dict.fromkeys(columns, summary)},
        },
        Manifest,
    )  # fmt: skip
    found = understood({}, {}, manifest.schema, manifest=manifest)
    assert found["range in train rows"] == expected
    assert found["a row has"] == columns


def test_classes_name_their_origin() -> None:
    schema = DatasetSchema(task="classification", classes=["a"], columns={"labels": "int64"})
    for inferred, source, key in (
        ({"classes, by folders": {"a": 3}}, {}, "classes, by folders"),
        ({}, {"classes": ["a"]}, "classes, by source.classes"),
        ({}, {"num_classes": 1, "classes": []}, "classes, by source.num_classes"),
        ({}, {}, "classes, by the source"),
    ):
        assert key in understood(inferred, source, schema)


def test_values_of_a_row_are_short(tmp_path: Path) -> None:
    from shardline.training.example_row import picture_of, texts_of

    schema = DatasetSchema(
        task="none",
        columns={"t": "text", "b": "bytes", "x": "float32[*]", "m": "uint8[3,8,8]", "o": "int64?"},
    )
    row = {
        "ids": 3, "t": np.frombuffer(b"a" * 99, np.uint8), "b": b"abc", "x": np.arange(9.0),
        "m": np.ones((3, 8, 8), np.uint8), "o": None,
    }  # fmt: skip
    assert texts_of(row, schema) == {
        "t": f'"{"a" * 60}..."', "b": "3 bytes", "x": "0, 1, 2, 3, 4, 5, ... (9 values)",
        "m": "uint8 of shape [3, 8, 8]", "o": "no value",
    }  # fmt: skip
    assert picture_of(row).startswith("data:image/png")
    assert picture_of({"x": np.arange(9.0), "b": b"no image"}) == ""
    Image.new("L", (500, 300), 9).save(tmp_path / "a.jpg")
    assert picture_of({"b": (tmp_path / "a.jpg").read_bytes()}).startswith("data:image/png")
