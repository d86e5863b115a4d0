"""What is inferred from a dataset's files is printed by `shardline check`, logged at sealing, and recorded."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from shardline.core.files import read_json
from shardline.data.inferred import describe
from shardline.pipeline import dataset_jobs
from shardline.records.understood import block
from shardline.sources import Schema, Source
from tests.support.fake_project import FakeProject
from tests.support.source_cases import make
from tests.unit.data.test_sources_remedies import FOLDER, GOOD, TWO, write


def described(folder: Path, source: dict[str, Any], files: dict[str, Any]) -> str:
    write(folder, files)
    return block("d", describe(make(folder, source, shards=1)))


def test_a_table_names_its_features_and_what_it_leaves_out(tmp_path: Path) -> None:
    content = "x,name,y,z,\n1,anna,0,1.5,\n2,ben,1,2,\n"
    source = {"type": "csv", "files": ["t/*"], "label": "y", "num_classes": 2}
    found = described(tmp_path, source, {"t/a.csv": content, "t/.DS_Store": b"x"})
    assert found == (
        "dataset d is read as\n"
        "  files: 1\n"
        '  delimiter: ","\n'
        "  features, all columns of numbers: x, z\n"
        "  stored as: float32\n"
        "  columns left out: name (string), (no name) (null)\n"
        "  not read, hidden: 1 (t/.DS_Store)"
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("preprocess", [None, {}])
def test_columns_that_may_be_ids_are_named(kind: str, preprocess: Any, tmp_path: Path) -> None:
    rows = 40
    columns = {
        "customer": [7 * row + 3 for row in range(rows)],
        "rooms": [row % 5 for row in range(rows)],
        "area": [row / 7 for row in range(rows)],
        "y": [row % 2 for row in range(rows)],
    }
    table = pa.table(columns)
    (pcsv.write_csv if kind == "csv" else pq.write_table)(table, tmp_path / "t")
    source = {"type": kind, "files": ["t"], "label": "y", "num_classes": 2}
    source |= {} if preprocess is None else {"preprocess": preprocess}
    assert make(tmp_path, source).inferred["no value repeated, as in an id"] == ["customer"]
    listed = make(tmp_path, {**source, "features": ["customer", "rooms"]}).inferred
    assert "no value repeated, as in an id" not in listed
    few = make(tmp_path, {**source, "id_column": "customer"}).inferred
    assert "no value repeated, as in an id" not in few


def test_folders_name_their_classes_and_files_of_other_kinds(tmp_path: Path) -> None:
    found = described(
        tmp_path, FOLDER, TWO | {"p/dog/2.webp": b"x", "p/dog/.2.png": b"x", "p/notes.txt": b""}
    )
    assert found == (
        "dataset d is read as\n"
        "  files: 2\n"
        "  classes, by folders: cat (1), dog (1)\n"
        "  not read, hidden: 1 (p/dog/.2.png)\n"
        "  not read, of another kind: 2 (p/dog/2.webp, p/notes.txt)"
    )


def test_a_source_that_means_something_else_by_the_name_is_left_alone() -> None:
    class Own(Source):
        inferred = lambda self: 1  # type: ignore[assignment]  # noqa: E731
        schema = Schema()

        def iter_tables(self, shard: int) -> Any:
            return iter(())

    assert describe(Own(num_shards=1)) == {}


def test_it_is_logged_and_recorded_when_a_dataset_is_sealed(
    fake: FakeProject, caplog: pytest.LogCaptureFixture
) -> None:
    fake.workspace.write("tables/a.csv", GOOD * 20)
    source = {
        "type": "csv",
        "files": ["tables/*"],
        "label": "y",
        "num_classes": 2,
        "on_bad": "skip",
    }
    fake.config["datasets"]["table"] = {"source": source, "shards": 2}
    project = fake.load()
    dataset = fake.run("flat").parts[0].dataset
    for part in dataset.parts:
        file = project.layout.parts(dataset.id) / f"{part}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        dataset_jobs.build_part(project, dataset, part, file)
    with caplog.at_level(logging.INFO):
        dataset_jobs.seal_parts(project, dataset, dataset.manifest, dataset.provenance)
    recorded = read_json(dataset.provenance, remedy="")["inferred"]
    assert recorded["features, all columns of numbers"] == ["x", "z"]
    for line in block(dataset.name, recorded).splitlines():
        assert line in caplog.messages
