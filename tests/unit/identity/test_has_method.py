"""Whether a class has a method by its source: as Python finds it, in generated projects."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.identity import CodeIndex
from shardline.identity.resolution import has_method

STATEMENTS = {
    "def": "    def test_step(self): ...",
    "async": "    async def test_step(self): ...",
    "assigned": "    test_step = print",
    "other": "    def other(self): ...",
}
CLASSES = st.lists(
    st.tuples(
        st.integers(0, 3),  # the class that it derives from, one of those before
        st.sampled_from(["same module", "from", "module", "renamed", "relative"]),
        st.sampled_from(sorted(STATEMENTS)),
    ),
    min_size=1,
    max_size=4,
)


def imported(package: str) -> ModuleType:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    importlib.invalidate_caches()
    return importlib.import_module(f"{package}.last")


def write(folder: Path, classes: list[tuple[int, str, str]]) -> None:
    """Write a module for each class, or a class beside the one before it, and `last` with all names."""
    modules: list[list[str]] = []
    place: list[tuple[int, str]] = []
    for number, (base, how, statement) in enumerate(classes):
        parent = place[base] if base < number else None
        lines, derived = [], "object"
        if parent and how == "same module":
            modules[parent[0]] += ["", f"class C{number}({parent[1]}):", STATEMENTS[statement]]
            place.append((parent[0], f"C{number}"))
            continue
        if parent:
            module, name = f"m{parent[0]}", parent[1]
            lines, derived = {
                "module": ([f"import drawn.{module}"], f"drawn.{module}.{name}"),
                "renamed": ([f"from drawn import {module} as other"], f"other.{name}"),
                "relative": ([f"from .{module} import {name}"], name),
            }.get(how, ([f"from drawn.{module} import {name} as Base"], "Base"))
        modules.append([*lines, f"class C{number}({derived}):", STATEMENTS[statement]])
        place.append((len(modules) - 1, f"C{number}"))
    for number, module_lines in enumerate(modules):
        (folder / f"m{number}.py").write_text("\n".join(module_lines))
    names = [f"from .m{module} import {name}" for module, name in place]
    (folder / "last.py").write_text("\n".join(names))


@settings(deadline=None, max_examples=60)
@given(classes=CLASSES)
def test_a_method_is_found_where_python_finds_it(
    classes: list[tuple[int, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("project")
    folder = root / "drawn"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    write(folder, classes)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        module = imported("drawn")
        index = CodeIndex((root,))
        for number in range(len(classes)):
            expected = hasattr(getattr(module, f"C{number}"), "test_step")
            assert has_method(index, f"drawn.last:C{number}", "test_step") is expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("pl.LightningModule", False),  # whose own does nothing
        ("somewhere.Net", None),
        ("make()", None),
        ("Unknown", None),
        ("Net", False),  # a class named after itself
    ],
)
def test_what_cannot_be_seen_is_not_known(tmp_path: Path, base: str, expected: bool | None) -> None:
    (tmp_path / "models.py").write_text(
        f"import pytorch_lightning as pl\nimport somewhere\n\n\nclass Net({base}):\n    x = 1\n"
    )
    assert has_method(CodeIndex((tmp_path,)), "models:Net", "test_step") is expected


def test_a_shipped_class_is_seen() -> None:
    path = "shardline.training.models.mlp:MLP"
    assert has_method(CodeIndex(()), path, "validation_step") is True
    assert has_method(CodeIndex(()), path, "test_step") is False
