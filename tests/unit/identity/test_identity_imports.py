"""Each form of import, folder and flag that is followed: verified against what Python truly imports."""

from pathlib import Path

import pytest

from shardline.identity import CodeIndex, code_index
from tests.support.code_digest import digest
from tests.support.imported import Interpreter
from tests.support.small_packages import ABSOLUTE, INITS, PATHS, RELATIVE, write

VALUE = "def value(): return {n}\n"
CALL = "{form}\ndef call(): return m.value()\n"


def check(
    folder: Path, interpreter: Interpreter, entry: str, changed: str, files: dict[str, str]
) -> None:
    """Hold that another value in one file gives another result and has another digest."""
    told = []
    for n in (1, 2):
        roots = write(folder / str(n), files | {changed: VALUE.format(n=n)})
        told.append((interpreter.call(entry, roots), digest(entry, roots)))
    (old, old_digest), (new, new_digest) = told
    assert (old, new) == ("1", "2")
    assert old_digest != new_digest


@pytest.mark.parametrize("form", ABSOLUTE)
def test_an_import_is_followed(tmp_path: Path, interpreter: Interpreter, form: str) -> None:
    text = form.format(full="p.h", parent="p", leaf="h")
    files = {
        "work/app.py": CALL.format(form=text),
        "work/p/__init__.py": "__all__ = ['h']\n",
        "work/p/__main__.py": "from p.h import value\n",
        "work/flags.py": "TYPE_CHECKING = True\n",
    }
    check(tmp_path, interpreter, "app", "work/p/h.py", files)


@pytest.mark.parametrize("init", ["work/h/__init__.py", "work/h/other.py"])
def test_a_module_that_is_run_and_becomes_a_package_has_another_digest(
    tmp_path: Path, interpreter: Interpreter, init: str
) -> None:
    run = "import runpy\nclass m: value = staticmethod(runpy.run_module('h')['value'])"
    files = {"work/app.py": CALL.format(form=run)}
    value = VALUE.format(n=1)
    found = []
    for name, more in (("a", {"work/h.py": value}), ("b", {init: value})):
        roots = write(tmp_path / name, files | more)
        found.append((interpreter.call("app", roots), digest("app", roots)))
    (old, old_digest), (new, new_digest) = found
    assert (old, new) == ("1", "ImportError")
    assert old_digest != new_digest


@pytest.mark.parametrize("form", RELATIVE)
def test_a_relative_import_is_followed(tmp_path: Path, interpreter: Interpreter, form: str) -> None:
    files = {"work/p/app.py": CALL.format(form=form.format(leaf="h")), "work/p/__init__.py": ""}
    check(tmp_path, interpreter, "p.app", "work/p/h.py", files)


@pytest.mark.parametrize("form", PATHS)
def test_a_folder_added_to_the_path_is_searched(
    tmp_path: Path, interpreter: Interpreter, form: str
) -> None:
    text = f"{form.format(folder='lib', up='')}\nimport h as m"
    check(tmp_path, interpreter, "app", "work/lib/h.py", {"work/app.py": CALL.format(form=text)})


@pytest.mark.parametrize("init", [text for text in INITS if "value" not in text])
def test_what_a_package_says_of_its_parts(
    tmp_path: Path, interpreter: Interpreter, init: str
) -> None:
    files = {
        "work/app.py": CALL.format(form="import p.h as m"),
        "work/p/__init__.py": init.format(leaf="h"),
    }
    path = "impl/h.py" if "impl" in init else "h.py"
    check(tmp_path, interpreter, "app", f"work/p/{path}", files)


def test_package_split_over_two_roots_by_its_own_path(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    extended = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    files = {
        "work/app.py": CALL.format(form="import p.h as m"),
        "work/p/__init__.py": extended,
        "more/p/__init__.py": extended,
    }
    check(tmp_path, interpreter, "app", "more/p/h.py", files)


SHADOWS = {
    "a package in a later root hides a folder": ("more/p/h.py", ["work/p/h.py"], ["more/p/__init__.py"]),
    "a package hides another one whole": ("work/p/h.py", ["more/p/h.py"], ["work/p/__init__.py"]),
    "a folder is one package over two roots": ("more/p/h.py", ["work/p/other.py"], []),
    "a package hides a module beside it": ("work/p/h/__init__.py", ["work/p/h.py"], ["work/p/__init__.py"]),
    "a module hides a folder beside it": ("work/p/h.py", ["work/p/h/value.py"], []),
}  # fmt: skip


@pytest.mark.parametrize("name", SHADOWS)
def test_the_module_that_python_takes_counts_and_no_other(
    tmp_path: Path, interpreter: Interpreter, name: str
) -> None:
    taken, hidden, inits = SHADOWS[name]
    files = {"work/app.py": CALL.format(form="import p.h as m")} | dict.fromkeys(inits, "")
    decoys = dict.fromkeys(hidden, VALUE.format(n=9))
    check(tmp_path, interpreter, "app", taken, files | decoys)
    (before, after) = (
        write(
            tmp_path / str(n), files | {taken: VALUE.format(n=1)} | dict.fromkeys(hidden, f"x={n}")
        )
        for n in (3, 4)
    )
    assert digest("app", before) == digest("app", after)


def test_an_installed_package_hides_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "shelved").mkdir(parents=True)
    (tmp_path / "site" / "shelved" / "__init__.py").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda key: str(tmp_path / "site"))
    code_index._is_installed.cache_clear()
    roots = write(tmp_path, {"work/app.py": "from shelved import h", "work/shelved/h.py": ""})
    modules, third_party = CodeIndex(roots).closure("app")
    code_index._is_installed.cache_clear()
    assert (modules, third_party) == ({"app"}, {"shelved"})


def test_module_without_source_counts_by_its_bytes(tmp_path: Path) -> None:
    digests = set()
    for n in (1, 2):
        roots = write(tmp_path, {"work/app.py": "import h"})
        (tmp_path / "work" / "h.pyc").write_bytes(bytes([n]))
        digests.add(digest("app", roots))
    assert len(digests) == 2


def test_texts_that_are_no_names_of_modules_do_no_harm(tmp_path: Path) -> None:
    odd = ["", ".", "..", "a..b", "a/b", "x" * 5000, "\0", "a b", "é", "....a", "\udc80"]
    text = f"from importlib import import_module\nimport sys\nfor name in {odd!r}:\n"
    text += "    import_module(name), __import__(name, fromlist=[name]), sys.path.append(name)\n"
    roots = write(tmp_path, {"work/app.py": text})
    modules, third_party = CodeIndex(roots).closure("app")
    assert modules == {"app"}
    assert third_party <= {"a", "é", "x" * 5000}


def test_names_that_are_bound_in_a_circle_end(tmp_path: Path) -> None:
    text = "from importlib import import_module as load\n" + "".join(
        f"a{i} = a{(i * 7) % 40} + a{(i * 3 + 1) % 40} + 'h'\n" * 3 for i in range(40)
    )
    roots = write(tmp_path, {"work/app.py": f"{text}load = load\nload(a1)\n"})
    assert digest("app", roots) == digest("app", roots)


def test_a_script_adds_folders_from_where_it_runs(tmp_path: Path) -> None:
    files = {
        "work/tools/main.py": "import sys\nsys.path.append('lib')\nimport h",
        "work/lib/h.py": "",
    }
    work = write(tmp_path, files)[0]
    index = CodeIndex((work / "tools", work), main=work / "tools" / "main.py", workdir=work)
    assert "h" in index.closure("__main__")[0]


@pytest.mark.parametrize(
    "edit",
    [
        "sys.path[0] = 'lib'",
        "sys.path.pop(0)",
        "sys.path.append(sys.path.pop(0))",
        "sys.path.insert(0, '../more')",
    ],
)
def test_a_module_of_a_later_root_counts_where_code_puts_that_root_first(
    tmp_path: Path, interpreter: Interpreter, edit: str
) -> None:
    files = {
        "work/app.py": CALL.format(form=f"import sys\n{edit}\nimport h as m"),
        "work/h.py": VALUE.format(n=9),
        "work/lib/other.py": "",
    }
    check(tmp_path, interpreter, "app", "more/h.py", files)


@pytest.mark.parametrize("form", ["from .h import value", "from . import h", "import p.q.h as m"])
def test_an_import_of_a_module_that_its_package_lacks_has_another_digest(
    tmp_path: Path, interpreter: Interpreter, form: str
) -> None:
    files = {
        "work/app.py": CALL.format(form="import p.q.h as m"),
        "work/p/q/h.py": VALUE.format(n=1),
    }
    inits = ("work/p/__init__.py", "work/p/q/__init__.py")
    lacking = form.replace("p.q.h", "p.h")
    found = []
    for name, texts in (("works", ("", form)), ("fails", (lacking, ""))):
        roots = write(tmp_path / name, files | dict(zip(inits, texts, strict=True)))
        found.append((interpreter.call("app", roots), digest("app", roots)))
    (old, old_digest), (new, new_digest) = found
    assert old == "1"
    assert new in ("ImportError", "ModuleNotFoundError")
    assert old_digest != new_digest
