"""Canonical JSON, digests of external files, and the lock."""

import importlib.metadata
import os
import time
from pathlib import Path
from typing import Any

import pytest

from shardline.core.canonical import canonical_json, digest, short_digest
from shardline.core.digests import FileDigests, file_sha256
from shardline.errors import ConfigError, DataError
from shardline.identity import load_lock

OLD_NS = 10**18  # long ago, so that a file counts as left alone


def test_order_of_keys_does_not_count_and_types_do() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    texts = [canonical_json(value) for value in (1, 1.0, "1", True, None, [1], {"1": 1}, 0.1, 1e-7)]
    assert len(set(texts)) == len(texts)


def test_short_digest_is_the_start_of_the_digest() -> None:
    assert digest({"é": "\ud800"}).startswith(short_digest({"é": "\ud800"}))
    assert len(short_digest({})) == 12


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_that_json_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": value})


def source(folder: Path, name: str = "a.csv", content: bytes = b"1") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read, on a day on which all of them have been left alone."""
    found: list[Path] = []

    def read(path: Path) -> str:
        found.append(path)
        return file_sha256(path)

    now = time.time_ns()
    monkeypatch.setattr("shardline.core.digests.file_sha256", read)
    monkeypatch.setattr("shardline.core.digests.time.time_ns", lambda: now + 10**12)
    return found


def taken(cache: Path, path: Path) -> str:
    """Take a digest as a process of its own does."""
    digests = FileDigests(cache)
    found = digests.digest(path)
    digests.save()
    return found


def test_file_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    path, cache = source(tmp_path), tmp_path / "cache" / "digests.json"
    first = taken(cache, path)
    assert (taken(cache, path), len(reads)) == (first, 1)
    os.utime(path, ns=(OLD_NS + 1, OLD_NS + 1))
    assert (taken(cache, path), len(reads)) == (first, 2)


def test_file_replaced_with_its_size_and_date_is_read_again(
    tmp_path: Path, reads: list[Path]
) -> None:
    path, cache = source(tmp_path), tmp_path / "digests.json"
    first = taken(cache, path)
    source(tmp_path, "new", b"2").replace(path)  # as `rsync --times` does
    assert taken(cache, path) != first


def test_what_touches_no_byte_changes_no_digest(tmp_path: Path, reads: list[Path]) -> None:
    path, cache = source(tmp_path), tmp_path / "digests.json"
    first = taken(cache, path)
    path.chmod(0o600)
    assert (taken(cache, path), len(reads)) == (first, 2)
    assert (taken(cache, path), len(reads)) == (first, 2)


def test_file_written_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    path, cache = source(tmp_path), tmp_path / "digests.json"
    digests = FileDigests(cache)
    digests.digest(path)
    digests.save()
    assert not cache.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "\xff"])
def test_damaged_memory_costs_time_only(tmp_path: Path, content: str) -> None:
    path, cache = source(tmp_path), tmp_path / "digests.json"
    cache.write_text(content, encoding="latin-1")
    assert len(FileDigests(cache).digest(path)) == 64


def test_moved_tree_keeps_its_digests_and_a_renamed_subfolder_does_not(tmp_path: Path) -> None:
    digests = FileDigests(tmp_path / "digests.json")

    def of(folder: Path, *names: str, workdir: Path = tmp_path) -> dict[str, str]:
        return digests.digest_all([source(folder, name) for name in names], workdir=workdir)

    first = of(tmp_path / "data", "cats/1.png", "dogs/1.png")
    assert list(first) == ["00000/cats/1.png", "00001/dogs/1.png"]
    assert of(tmp_path / "moved", "cats/1.png", "dogs/1.png") == first
    assert of(tmp_path / "data", "cats/1.png", "dogs/1.png", workdir=tmp_path / "other") == first
    assert of(tmp_path / "data", "felines/1.png", "dogs/1.png") != first


def test_files_inside_and_outside_the_project_keep_their_names_when_it_moves(
    tmp_path: Path,
) -> None:
    digests = FileDigests(tmp_path / "digests.json")
    outside = source(tmp_path / "scratch")
    found = [
        digests.digest_all(
            [source(tmp_path / home, "data/b.csv"), outside], workdir=tmp_path / home
        )
        for home in ("here", "far/away")
    ]
    assert found[0] == found[1]
    assert list(found[0]) == ["00000/b.csv", "00001/a.csv"]


def test_source_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"source file .*a.csv: is missing \(No such file"):
        FileDigests(tmp_path / "digests.json").digest(tmp_path / "a.csv")


SPLIT = """\
torch==2.0
    # via -r requirements.in
numpy==1.0 \\
    --hash=sha256:abc
    # via
    #   torch
    #   SciPy
scipy==3.0
    # via -r requirements.in
"""
LINE = """\
torch==2.0                # via -r requirements.in
numpy==1.0                # via torch, SciPy
scipy==3.0                # via -r requirements.in
"""


@pytest.mark.parametrize("text", [SPLIT, LINE])
def test_environment_is_what_the_code_imports_and_all_that_this_needs(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    lock = load_lock(path)
    assert lock.environment(["torch"])["packages"] == {"torch": "2.0", "numpy": "1.0"}
    assert lock.environment(["numpy"])["packages"] == {"numpy": "1.0"}


def test_pins_that_markers_choose_between_both_count(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(
        "a==1 ; python_version < '3'\n    # via b\na==2 ; python_version >= '3'\n    # via b\n"
    )
    assert load_lock(path).versions == {"a": "1 or 2"}


def test_package_outside_the_lock_counts_by_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text("a==1  # via b\n")
    packages: Any = load_lock(path).environment(["yaml", "no_such_package"])["packages"]
    version = importlib.metadata.version("pyyaml")
    assert packages == {
        "pyyaml": f"{version} (not in the lock)",
        "no-such-package": "not installed",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read (No such file or directory); check the path"),
        ("# torch\n", "no line like `package==1.2.3`; write it with pip-compile"),
        ("torch==2.0\n", "no `# via` notes, so the dependencies of the packages are unknown"),
    ],
)
def test_lock_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "lock").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_lock(tmp_path / "lock")
    assert message in str(error.value)
