"""The programs that identity documents name: models, sources and scripts, shipped or of the user."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardline.config import scripts
from shardline.config.checks import SHIPPED_MODELS, SHIPPED_TRANSFORMS
from shardline.config.sources import SHIPPED_SOURCES
from shardline.identity import CodeIndex
from shardline.identity.module_search import OURS
from shardline.identity.user_code import UserCode, reach
from shardline.identity.versions import PUBLIC, exported_by


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs in a stage beside Shardline itself: a model, a source or a script.

    Attributes:
        named: what the document holds of it: a shipped class by name, a class of an installed
            package by import path, a script with its arguments. None of a user's class, which
            is the same wherever it lies.
        history: the history of the shipped class that it is.
        reached: the histories of what it reaches of Shardline's public surface.
        code: the user's own code behind it.
        imports: packages that this code imports, by import name.
    """

    named: str | None
    history: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    code: UserCode | None = None
    imports: frozenset[str] = frozenset()


def find_program(code: CodeIndex, workdir: Path, path: str) -> Program:
    """Return what a resolved model or source is.

    Args:
        code: where the project's modules are found.
        workdir: the project's folder.
        path: import path, or a script.
    """
    if scripts.is_file(path):
        shown = {"__main__": scripts.split_script(path)[0]}
        index = script_index(code, workdir, path)
        if scripts.is_script(path):
            return _users(path, index, "__main__", shown)
        # the script may ask for any name of it, as of a config in Python
        return _users(None, index, "__main__", shown, whole="an argument of the script")
    shipped = {found: name for name, found in (SHIPPED_MODELS | SHIPPED_SOURCES).items()}
    if path in shipped:
        return Program(named=shipped[path], history=(shipped[path],))
    if path in SHIPPED_TRANSFORMS.values():  # named among the settings
        return Program(named=None, history=("transforms",))
    module = path.partition(":")[0]
    if code.find(module) is None:  # of an installed package, which counts by its version
        return Program(named=path, imports=frozenset({module.partition(".")[0]}))
    return _users(None, code, path, {})


def _users(
    named: str | None, index: CodeIndex, entry: str, shown: Mapping[str, str],
    whole: str = "",
) -> Program:  # fmt: skip
    """Return a program of the user's.

    Args:
        shown: what modules are called among the definitions, where not by their name.
        whole: why all of the entry's module counts, if it does.
    """
    found = reach(index, entry, whole)
    definitions = {}
    for name, digest in found.definitions.items():
        module, colon, definition = name.partition(":")
        definitions[f"{shown.get(module, module)}{colon}{definition}"] = digest
    imported, _ = index.closure(entry.partition(":")[0])
    reached = {PUBLIC[module] for module in imported if module in PUBLIC}
    reached |= exported_by(found.shipped) | _io_of_users(index, imported)
    return Program(
        named=named,
        reached=tuple(sorted(filter(None, reached))),
        code=replace(
            found,
            definitions=definitions,
            whole={shown.get(module, module): why for module, why in found.whole.items()},
        ),
        imports=found.third_party,
    )


def _io_of_users(index: CodeIndex, modules: Iterable[str]) -> set[str]:
    """Return the history `io` if a module of the user's among these imports shardline_io."""
    own = (name for name in modules if name.partition(".")[0] not in OURS and index.find(name))
    imports = (name for module in own for name in index.module(module).imports)
    return {"io"} if "shardline_io" in {name.partition(".")[0] for name in imports} else set()


def script_index(code: CodeIndex, workdir: Path, path: str) -> CodeIndex:
    """Return where the modules of a script, or of a Python file that it is given, are found.

    Args:
        path: of which `scripts.is_file` holds.
    """
    words = scripts.split_script(path)
    files = [workdir / word for word in (words[:1] if scripts.is_script(path) else words)]
    # Python looks beside the script first
    beside = dict.fromkeys(file.parent for file in files)
    return CodeIndex((*beside, *code.roots), main=files[0], workdir=workdir)
