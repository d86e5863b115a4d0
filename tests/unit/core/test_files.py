"""A file is there whole or not at all."""

import errno
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.core.files import (
    atomic_writer,
    json_bytes,
    read_json,
    write_bytes,
    write_json,
    writing,
)
from shardline.errors import DataError


def test_what_was_there_stays_until_the_new_content_is_complete(tmp_path):
    path = tmp_path / "a" / "file.json"
    write_json(path, {"v": 1})
    with pytest.raises(TypeError), atomic_writer(path) as file:
        file.writelines([b"half", None])
    assert read_json(path, remedy="") == {"v": 1}
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_file_over_the_size_limit_is_named_and_nothing_half_written_stays(tmp_path):
    code = (
        "import resource, signal, sys; from pathlib import Path; from shardline.core.files import write_bytes;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_bytes(Path(sys.argv[1]), bytes(5000))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "x could not be written: the file is larger than the limit" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be written: a file is in the place of a folder"):
        write_bytes(tmp_path / "file" / "x", b"")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), ("{", "is not valid JSON")]
)
def test_a_file_that_cannot_be_read_is_named_with_the_remedy(tmp_path, content, message):
    path = tmp_path / "x.json"
    if content:
        path.write_text(content)
    with pytest.raises(DataError, match=f"{message}.*; do this"):
        read_json(path, remedy="do this")
    assert [p.name for p in tmp_path.iterdir()] == (["x.json"] if content else [])


def test_a_failed_disk_is_named_with_a_remedy():
    told = r"^model could not be written: the disk .* failed .*dmesg"
    with pytest.raises(DataError, match=told), writing("model"):
        raise OSError(errno.EIO, "Input/output error")


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_KEYS = st.text() | st.integers() | st.booleans() | st.none()
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner),
)


@given(_DOCUMENTS)
def test_a_document_has_the_bytes_that_the_standard_library_indents(document):
    try:
        expected = f"{json.dumps(document, indent=1, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:  # half of a character
        with pytest.raises(UnicodeEncodeError):
            json_bytes(document)
    else:
        assert json_bytes(document) == expected
