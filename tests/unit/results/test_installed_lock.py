"""The lock of a new project."""

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.environments.installed import find_differences
from shardline.identity.package_lock import _parse_lock, load_lock
from shardline.results.installed_lock import lock_of_installed, lock_of_project

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Installed(importlib.metadata.Distribution):
    """A distribution of a test."""

    def __init__(self, name, version, requires=(), origin=None):
        lines = [
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {one}" for one in requires),
        ]
        self.files_of = {"METADATA": "\n".join(["Metadata-Version: 2.4", *lines, "", ""])}
        if origin:
            self.files_of["direct_url.json"] = json.dumps(origin)

    def read_text(self, filename):
        return self.files_of.get(filename)

    def locate_file(self, path):
        return Path(path)


@pytest.fixture
def installed(monkeypatch):
    found = []

    def distributions(**query):
        name = query.get("name")
        return [one for one in found if name is None or one.name == name]

    monkeypatch.setattr(importlib.metadata, "distributions", distributions)
    return found


def test_the_shipped_lock_is_copied_where_it_is_installed(installed, tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("a==1.0\n    # via shardline\nb==2 ; python_version < '3'\n    # via a\n")
    installed += [Installed("a", "1.0+cpu"), Installed("other", "3")]
    assert lock_of_project(lock) == lock.read_bytes()
    installed[0] = Installed("a", "1.1")
    assert b"a==1.1" in lock_of_project(lock)


def test_dependencies_are_noted_also_those_of_an_extra_that_is_requested(installed, tmp_path):
    archive = {"hashes": {"sha256": "0" * 64}}
    installed += [
        Installed("Shardline", "0.1.0", ["fsspec[http]", "b_b>=1; extra == 'tables'"]),
        Installed(
            "fsspec", "3",
            ["aiohttp; extra == 'http'", "c; extra == 'dev'", "c; extra == 'v1'", "d; sys_platform == 'win32'"],
        ),
        Installed("aiohttp", "4+label"),
        Installed("b-b", "5"),
        Installed("c", "6"),
        Installed("d", "7"),
        Installed("pip", "8"),
        Installed("mine", "9", origin={"url": "file:///home/me", "dir_info": {"editable": True}}),
        Installed("archive", "1", origin={"url": "https://a.org/a-1.zip", "archive_info": archive}),
        Installed("git", "1", origin={"url": "https://a.org/a", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}),
        Installed("local", "1", origin={"url": "file:///tmp/local-1.whl", "archive_info": {}}),
    ]  # fmt: skip
    text = lock_of_installed()
    assert "/tmp" not in text
    assert "/home" not in text
    (tmp_path / "lock").write_text(text)
    lock = load_lock(tmp_path / "lock")
    assert lock.versions == {
        "aiohttp": "4", "archive": "@ https://a.org/a-1.zip#sha256=" + "0" * 64, "b-b": "5", "c": "6", "d": "7",
        "fsspec": "3", "git": "@ git+https://a.org/a@" + "a" * 40, "local": "1",
    }  # fmt: skip
    assert lock.needs["fsspec"] == {"aiohttp"}
    assert lock.needs["shardline"] == {"fsspec", "b-b"}
    assert lock.reached(["fsspec"]) == {"fsspec", "aiohttp"}


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


@given(graph=st.dictionaries(NAMES, st.tuples(st.integers(0, 9), st.sets(NAMES)), min_size=1))
def test_any_graph_of_packages_is_read_back_and_differs_in_nothing(graph):
    found = [Installed("shardline", "0", ["a"])]
    found += [Installed(name, f"{version}.0", needs) for name, (version, needs) in graph.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            importlib.metadata,
            "distributions",
            lambda **query: [one for one in found if query.get("name", one.name) == one.name],
        )
        text = lock_of_installed()
        lock = _parse_lock(text, "lock", True)
        lines = [line for pins in lock.pins.values() for line in pins]
        assert find_differences(HERE, lines) == []
    assert lock.versions == {name: f"{version}.0" for name, (version, _) in graph.items()}
    for name, (_, needs) in graph.items():
        assert lock.needs.get(name, set()) == needs & graph.keys()


def test_this_environment_gives_a_lock_that_it_meets(tmp_path):
    (tmp_path / "lock").write_text(lock_of_installed())
    lock = load_lock(tmp_path / "lock")
    assert find_differences(HERE, [line for pins in lock.pins.values() for line in pins]) == []
    assert {"sympy", "networkx"} <= lock.reached(["torch"])
    assert "shardline" not in lock.versions
