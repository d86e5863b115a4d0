"""Detection of edits to Shardline's installed code, which result versions do not show.

Shipped code counts by result versions, so an edit makes no result stale. `shipped_code.json` contains a
digest of each file that decides a value, without comments and layout. A test compares the digests with
the files, and `pytest --regen tests/unit/identity/test_shipped_code.py` rewrites them. If a file differs,
this installation is a fork, and its results need a version of their own.
"""

import ast
import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from shardline.core.canonical import DIGEST_LENGTH
from shardline.identity.code_index import LIBRARY
from shardline.identity.names import DEFINITIONS, is_text
from shardline.identity.versions import HISTORIES, MODELS, PUBLIC

TABLE = Path(__file__).with_name("shipped_code.json")
_FOLDERS = ("shardline/data", "shardline/training", "shardline/checkpoints", "shardline_io")
# Counted by name only for user models, but used by shipped models too.
_OF_MODELS = ("classifier", "losses")
_SHOWN = 3
# fields that differ between versions of Python, or have no meaning
_LEFT_OUT = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}


def edited_files(used: Collection[str], library: Path = LIBRARY) -> dict[str, str]:
    """Return the edited files of Shardline, each with the name of its history.

    Args:
        used: names of the histories that count. Files of other histories are left out, and files
            whose history has a new line.
        library: folder that contains Shardline's packages.
    """
    try:
        table = json.loads(TABLE.read_bytes())
    except (OSError, ValueError):
        return {}
    found = {}
    for path in _files(library):
        name = path.relative_to(library).as_posix()
        history, content = history_of(name), path.read_bytes()
        is_newer = len(HISTORIES[history]) > table["versions"].get(history, 0)
        is_shared = history in _OF_MODELS and not MODELS.keys().isdisjoint(used)
        if is_newer or not (is_shared or history in used):
            continue
        as_bytes, as_meant = table["files"].get(name, "- -").split()
        if _digest(content) != as_bytes and meaning(content) != as_meant:
            found[name] = history
    return found


def sentence_of(edited: dict[str, str]) -> str:
    """Return the warning about edited files; empty without such files."""
    if not edited:
        return ""
    files, histories = list(edited), ", ".join(f'"{one}"' for one in dict.fromkeys(edited.values()))
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return (
        f"Shardline's own code was edited ({', '.join(files[:_SHOWN])}{more}), but earlier results stay current, since "
        f"an identity contains the result version of shipped code, not the code; move the edit to a class of your own "
        f"(model: mypkg.nets:Net), or add a line to the history {histories} in shardline/identity/versions.py"
    )


def history_of(name: str) -> str:
    """Return the name of the history that a file belongs to.

    Args:
        name: path relative to the library's folder.
    """
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if public := PUBLIC.get(module):
        return public
    if name.startswith("shardline_io/"):
        return "io"
    if name.startswith("shardline/data/"):
        return "data"
    return "evaluation" if name.startswith("shardline/training/evaluat") else "training"


def table_of(library: Path = LIBRARY) -> dict[str, dict[str, str] | dict[str, int]]:
    """Return the content of `shipped_code.json`: two digests of each file, and the length of each history."""
    contents = {path.relative_to(library).as_posix(): path.read_bytes() for path in _files(library)}
    return {
        "files": {
            name: f"{_digest(content)} {meaning(content)}" for name, content in contents.items()
        },
        "versions": {name: len(HISTORIES[name]) for name in sorted({*map(history_of, contents)})},
    }


def meaning(content: bytes) -> str:
    """Return a digest of source code without comments, docstrings and layout, the same in all versions of Python."""
    try:
        return _digest(repr(_written(ast.parse(content))).encode(errors="surrogatepass"))
    except (SyntaxError, ValueError, RecursionError):
        return ""


def _written(node: Any) -> Any:
    if isinstance(node, list):
        return [_written(one) for one in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {key: value for key, value in ast.iter_fields(node) if key not in _LEFT_OUT}
    if isinstance(node, (ast.Module, *DEFINITIONS)) and node.body and is_text(node.body[0]):
        fields["body"] = node.body[1:]
    written = [(key, _written(value)) for key, value in fields.items() if value not in (None, [])]
    return type(node).__name__, written


def _files(library: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from sorted((library / folder).rglob("*.py"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
