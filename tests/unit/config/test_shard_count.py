"""`shards: auto` is the number of files of about 64 MB, and counts as that number does."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from shardline.config import plans
from shardline.config.reference import json_schema
from shardline.errors import ConfigError
from tests.support.source_cases import load_dataset

CSV = {"type": "csv", "label": "y", "num_classes": 2}


def remote(*sizes: int, suffix: str = ".csv") -> dict[str, Any]:
    """Return a source whose files are too large for a test, and need not be there."""
    entries = [
        {"url": f"https://example.org/{n}{suffix}", "sha256": f"{n:064x}", "bytes": size}
        for n, size in enumerate(sizes)
    ]
    return {**CSV, "files": entries}


def error_of(folder: Path, source: dict[str, Any], shards: Any = "auto") -> str:
    with pytest.raises(ConfigError) as error:
        load_dataset(folder, source, shards=shards)
    return str(error.value)


@settings(
    max_examples=60, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(sizes=st.lists(st.integers(0, 10**10), min_size=1, max_size=5))
def test_files_are_of_about_64_mb_and_the_number_is_what_counts(
    sizes: list[int], tmp_path: Path
) -> None:
    source = remote(*sizes)
    dataset = load_dataset(tmp_path, source, shards="auto")
    if sum(sizes) < 96e6:
        assert dataset.num_shards == 1
    else:
        assert 48e6 <= sum(sizes) / dataset.num_shards <= 80e6
    assert load_dataset(tmp_path, source, shards=dataset.num_shards).document == dataset.document


def test_what_a_source_reads_decides_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "SHARD_BYTES", 1000)
    text = "x,y\n" + "1.5,0\n" * 1000
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text.encode()))
    write_deltalake(tmp_path / "table", pa.table({"x": [0.5] * 9000, "y": [1] * 9000}))
    write_deltalake(tmp_path / "table", pa.table({"x": [0.5], "y": [1]}), mode="overwrite")
    for number in range(7):
        path = tmp_path / f"images/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 3)).save(path)

    def shards(source: dict[str, Any]) -> int:
        return load_dataset(tmp_path, source, shards="auto").num_shards

    packed = (tmp_path / "rows.csv.gz").stat().st_size
    assert shards({**CSV, "files": ["rows.csv"]}) == 6
    assert shards({**CSV, "files": ["rows.csv.gz"]}) == max(1, round(4 * packed / 1000))
    assert shards(remote(10_000, suffix=".csv.gz")) == 40
    images = {"type": "image_folder", "files": ["images"], "size": [20, 30]}
    assert shards(images) == round(7 * (20 * 30 * 3 + 16) / 1000)
    assert shards({**images, "mode": "L"}) == round(7 * (20 * 30 + 16) / 1000)
    assert shards({"type": "digits"}) > 1
    table = {"type": "delta", "table": "table", "label": "y", "num_classes": 2}
    latest = [path.stat().st_size for path in (tmp_path / "table").glob("*.parquet")]
    assert shards({**table, "version": 0}) == max(1, round(max(latest) / 1000))
    assert shards({**table, "version": 1}) == max(1, round(min(latest) / 1000))


def test_a_source_that_cannot_say_asks_for_a_number(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Rows:\n    pass\n")
    url = {"type": "delta", "table": "s3://lake/events", "version": 3, "table_id": "a1"}
    cases = {
        "its source synthetic draws rows for each shard": {"type": "synthetic"},
        "s3://lake/events is read only together with its rows": {
            **url,
            "label": "y",
            "num_classes": 2,
        },
    }
    for reason, source in cases.items():
        assert error_of(tmp_path, source) == (
            f"config/config.yaml: datasets.d.shards=auto, but {reason}, so its size is not known, "
            "expected a number; set the number of shards, for files of about 64 MB"
        )


def test_a_source_of_ones_own_fills_what_its_files_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rows.py").write_text("class Rows:\n    pass\n")
    (tmp_path / "rows.bin").write_bytes(bytes(100))
    monkeypatch.setattr(plans, "SHARD_BYTES", 10)
    source = {"type": "own_rows:Rows", "files": ["rows.bin"]}
    assert load_dataset(tmp_path, source, shards="auto").num_shards == 10
    assert "its source own_rows:Rows lists no files" in error_of(tmp_path, {**source, "files": []})


def test_a_number_as_text_is_a_number_and_editors_know_both(tmp_path: Path) -> None:
    """As Snakemake passes values of its command line."""
    assert load_dataset(tmp_path, {"type": "digits"}, shards="8").num_shards == 8
    known = json_schema()["properties"]["datasets"]["additionalProperties"]["properties"]
    assert known["shards"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"enum": ["auto"]}]
