"""Files that a module reads by a literal path beside itself: their bytes count as its code does."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.digests import file_sha256
from shardline.identity.literals import Bindings, Literals

_HINTS = ("__file__", "resources", "get_data")
_PATHS = (ast.BinOp, ast.Call, ast.JoinedStr)
_WRITING = {
    "mkdir",
    "rename",
    "rmdir",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}


def files_beside(
    statement: ast.stmt, module: Sequence[ast.stmt], lines: Sequence[str], path: Path, package: str
) -> dict[str, str]:
    """Return the files that a statement names, with digests of their bytes.

    Args:
        statement: of the module.
        module: all its statements, whose names may hold folders.
        lines: its source.
        path: its file.
        package: in which it lies.

    Returns:
        Digest by path from the module's folder; without what is not there, or not below it.
    """
    if not any(hint in line for line in lines for hint in _HINTS):
        return {}
    literals = Literals(
        bindings=Bindings([node for one in module for node in ast.walk(one)]),
        known={"__file__": str(path), "__package__": package, ".": str(path.parent)},
    )
    folder = path.parent.resolve()
    found: dict[str, str] = {}
    for node in _reading(statement):
        for text in literals.texts(node):
            file = path.parent / text
            if "\0" in text or not Path(text).is_absolute() or not file.is_file():
                continue
            file = file.resolve()
            if file.is_relative_to(folder) and file != path.resolve():
                digest = file_sha256(file)[:DIGEST_LENGTH]
                found[file.relative_to(folder).as_posix()] = digest
    return dict(sorted(found.items()))


def _reading(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that may be a path, but for those that are written to."""
    if isinstance(node, ast.Call) and _writes(node):
        return
    if isinstance(node, _PATHS):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _reading(child)


def _writes(node: ast.Call) -> bool:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name != "open":
        return name in _WRITING
    mode = next((one.value for one in node.keywords if one.arg == "mode"), None)
    place = 1 if isinstance(node.func, ast.Name) else 0
    if mode is None and len(node.args) > place:
        mode = node.args[place]
    return isinstance(mode, ast.Constant) and bool(set(str(mode.value)) & set("wax"))
