"""Sealed documents: any altered byte is found."""

import json
import math
from pathlib import Path

import pytest

from shardline.core.files import read_json, write_json
from shardline.core.seals import check_seal, seal
from shardline.provenance.crate.metadata import (
    check_crate_seal,
    files_of_crate,
    metadata_bytes,
    seal_crate,
)

DOCUMENT = {"run": "a-0123456789ab", "ü": [1, 2.5, None], "action": {"id": "train/a", "host": "n1"}}


def problem(path: Path) -> str | None:
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return "not JSON"
    return check_seal(path, document) if isinstance(document, dict) else "no object"


def test_a_sealed_document_is_whole_when_it_is_read_again(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, seal({**DOCUMENT, "loss": math.nan, "shape": (1, 2), "few": {3: 1e-7}}))
    assert problem(path) is None
    assert read_json(path, remedy="")["loss"] is None, "JSON has no NaN"


def test_every_altered_byte_is_found(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, seal(DOCUMENT))
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 32):
            damaged = bytearray(content)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            assert problem(path), (place, bit)
    path.write_bytes(content.rstrip())
    assert problem(path) == f"{path} has another form than it was written in"


def test_a_changed_value_is_told_with_both_digests(tmp_path):
    path = tmp_path / "x.json"
    sealed = seal(DOCUMENT)
    write_json(path, {**sealed, "run": "b"})
    message = problem(path)
    assert message is not None
    assert message.startswith(f"{path}: the digest of its content is ")
    assert message.endswith(f"expected {sealed['sha256']} (its sha256)")


def test_a_seal_that_was_taken_off_is_missed(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, DOCUMENT)
    assert "expected None (its sha256)" in (problem(path) or "")


def test_sealing_again_gives_the_same_seal():
    assert seal(seal(DOCUMENT)) == seal(DOCUMENT)


@pytest.fixture
def crate(tmp_path) -> Path:
    graph = [
        {"@id": "./", "@type": "Dataset"},
        {"@id": "results/reports/x/a%20b.html", "@type": "File", "sha256": "1"},
        {"@id": "config/config.yaml", "@type": "File", "sha256": "2"},
        {"@id": "#results/runs/x/model.safetensors", "@type": "File", "sha256": "3"},
    ]
    path = tmp_path / "ro-crate-metadata.json"
    path.write_bytes(metadata_bytes(seal_crate({"@context": [], "@graph": graph})))
    return path


def test_a_changed_crate_is_found(crate):
    document = read_json(crate, remedy="")
    assert check_crate_seal(crate, document) is None
    document["@graph"][1]["sha256"] = "9"
    crate.write_bytes(metadata_bytes(document))
    assert "the digest of its entities is " in (check_crate_seal(crate, document) or "")
    document["@graph"].pop()
    crate.write_bytes(metadata_bytes(document))
    assert check_crate_seal(crate, document), "without its seal"


def test_a_crate_tells_the_digests_of_the_results_that_it_holds(crate):
    document = read_json(crate, remedy="")
    found = files_of_crate(document, below=Path("results"))
    assert found == {Path("results/reports/x/a b.html"): "1"}
