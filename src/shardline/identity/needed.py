"""The packages without which a program does not start: what its modules import as soon as they are imported."""

import ast
import sys
from collections.abc import Iterator

from shardline.identity.code import CodeIndex
from shardline.identity.search import OURS


def needed_packages(index: CodeIndex, entry: str = "__main__") -> list[str]:
    """Return the top-level names that a program's own modules import unconditionally.

    What stands in a function, or below `try` or `if`, may never be imported, and is left out.

    Args:
        index: where the program's modules are found.
        entry: the module that it begins with.
    """
    needed: set[str] = set()
    pending, seen = [entry], {entry}
    while pending:
        for name in _imported_first(index, pending.pop()):
            top = name.partition(".")[0]
            if index.find(top) is None:
                needed.add(top)
            elif index.find(name) and name not in seen:
                seen.add(name)
                pending.append(name)
    return sorted(needed - sys.stdlib_module_names - set(OURS))


def _imported_first(index: CodeIndex, name: str) -> Iterator[str]:
    path = index.find(name)
    assert path is not None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                parts = package.split(".")
                parts = parts[: len(parts) - statement.level + 1]
                base = ".".join(filter(None, [*parts, base]))
            yield base
            if index.find(base):
                yield from (f"{base}.{alias.name}" for alias in statement.names)
