"""The modules of a project: which of them a module imports, and where they are looked for."""

import sys
import types
import warnings
from pathlib import Path

import pytest

from shardline.errors import ConfigError
from shardline.identity import CodeIndex
from shardline.identity.code_index import import_roots
from shardline.identity.user_code import reach


def write(root: Path, **modules: str) -> CodeIndex:
    """Write modules, named with `__` for a dot, and index their folder."""
    for name, text in modules.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CodeIndex((root,))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from .sub import c", {"pkg.sub.c"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg import b", set()),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from pkg import b", {"pkg.b"}),
        ("from ....... import b", set()),
        ("import pkg.nowhere", set()),
    ],
)
def test_imports_that_are_followed(tmp_path: Path, text: str, found: set[str]) -> None:
    index = write(tmp_path, pkg__a=text, pkg__b="value = 1", pkg__sub__c="")
    modules, third_party = index.closure("pkg.a")
    assert modules == {"pkg.a"} | found
    assert third_party == set()


def test_a_package_runs_when_its_module_is_imported(tmp_path: Path) -> None:
    index = write(tmp_path, pkg__a="")
    (tmp_path / "pkg" / "__init__.py").write_text("import torch")
    modules, third_party = index.closure("pkg.a")
    assert modules == {"pkg", "pkg.a"}
    assert third_party == {"torch"}


def test_circular_imports_end(tmp_path: Path) -> None:
    modules, _ = write(tmp_path, a="import b", b="import a").closure("a")
    assert modules == {"a", "b"}


def test_file_that_shadows_the_standard_library_counts(tmp_path: Path) -> None:
    modules, _ = write(tmp_path, a="import statistics", statistics="").closure("a")
    assert modules == {"a", "statistics"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x = 1\ndef f(:\n",
            r"a\.py, line 2: not valid Python \(.*\); fix it, so that the pipeline",
        ),
        ("x = '\0'", r"a\.py.*: not valid Python"),
        ("x = " + " + ".join(["1"] * 5000), r"a\.py, line 1: not valid Python"),
    ],
)
def test_broken_module_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write(tmp_path, a=text).closure("a")


def test_warnings_about_user_code_are_left_to_its_import(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path, a="x = '\\d'").closure("a")


def test_roots_are_the_folder_and_pythonpath_but_not_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, installed = tmp_path / "mine", tmp_path / "site-packages"
    mine.mkdir()
    installed.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"mine:{installed}::{tmp_path / 'nowhere'}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "scripts")])
    assert import_roots(tmp_path)[:2] == (tmp_path, mine)
    assert installed not in import_roots(tmp_path)
    assert tmp_path / "scripts" not in import_roots(tmp_path)


def test_editable_installs_are_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, work, plain, mapped = (tmp_path / name for name in ("site", "work", "plain", "mapped"))
    for folder in (site, work, plain, mapped / "pkg"):
        folder.mkdir(parents=True)
    lines = ["# a note", "", "import sys; " + "x" * 5000, str(plain), "../nowhere"]
    (site / "a.pth").write_text("\n".join(lines))
    hook = types.ModuleType("__editable___pkg_finder")
    hook.MAPPING = {"pkg": str(mapped / "pkg")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, hook.__name__, hook)
    finder = type("_EditableFinder", (), {"__module__": hook.__name__})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    monkeypatch.setattr("sysconfig.get_path", lambda key: str(site))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert import_roots(work) == (work, plain, mapped)


@pytest.mark.parametrize(
    "edit", ["sys.path[0] = 'lib'", "sys.path.pop(0)", "del sys.path[0]", "sys.path, found = [], sys.path"]
)  # fmt: skip
def test_where_code_edits_the_search_path_the_root_of_a_module_counts(
    tmp_path: Path, edit: str
) -> None:
    """Its edit may leave one of the two roots out, so that Python finds the module no more."""
    roots = (tmp_path / "work", tmp_path / "more")
    write(roots[0], app=f"import sys\n{edit}\nimport mid\ndef call(): return mid.N", mid="N = 1")
    roots[1].mkdir()

    before = reach(CodeIndex(roots), "app:call").digest
    (roots[0] / "mid.py").rename(roots[1] / "mid.py")
    assert reach(CodeIndex(roots), "app:call").digest != before
