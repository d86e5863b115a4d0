"""Program that imports classes and writes what they are: look.py OUTPUT module:Class ..."""

import ast
import inspect
import math
import os
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from shardline.core.error_texts import import_class
from shardline.core.errors import ConfigError
from shardline.data.python.loaders import LIGHTNING
from shardline.results.project_init.looked import Argument, LookedClass

_DEEPEST = 3
# an annotation with a class of these packages names a kind of object, not the one to make
_KINDS = {"builtins", "typing", "collections", "abc", "torch", "numpy", *LIGHTNING}


class _NotPlainError(Exception):
    """A config cannot contain the value."""


def describe(path: str) -> LookedClass:
    """Return what a class is; with `problem` if it does not import."""
    try:
        target = import_class(path, "")
    except ConfigError as error:
        problem = f"{str(error).removeprefix('=')}{_below_src(error.__cause__)}"
        return LookedClass(path=path, problem=problem)
    if not callable(target):
        problem = (
            f"{path} is of type {type(target).__name__}, expected a class or a function; name one"
        )
        return LookedClass(path=path, problem=problem)
    trees = list(_trees(target))
    return LookedClass(
        path=path,
        arguments=_arguments(target, 0),
        logged=list(dict.fromkeys(name for tree in trees for name in _logged(tree))),
        unpacks=any(map(_unpacks, trees)),
        methods=_methods(target),
    )


def _below_src(error: BaseException | None) -> str:
    """Return a remedy if a module that is missing lies below `src`, as in a project that is to be installed."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not (isinstance(error, ModuleNotFoundError) and name and Path("src", name).is_dir()):
        return ""
    return (
        f"\n  src/{name} exists; install the project (pip install --no-deps -e .), or set PYTHONPATH=src for all "
        "commands"
    )


def _methods(target: Any) -> list[str]:
    """Return the names that a class and its bases define, up to Lightning's and torch's."""
    classes = [
        cls
        for cls in getattr(target, "__mro__", ())
        if cls.__module__.partition(".")[0] not in _KINDS
    ]
    return list(dict.fromkeys(name for cls in classes for name in vars(cls)))


def _own(target: Any) -> list[type]:
    """Return a class and its bases of the user."""
    classes = getattr(target, "__mro__", ())
    here = Path.cwd()
    found = []
    for cls in classes:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file and here in Path(file).resolve().parents and "site-packages" not in file:
            found.append(cls)
    return found


def _trees(target: Any) -> Iterator[ast.AST]:
    for cls in _own(target):
        with suppress(OSError, SyntaxError):
            yield ast.parse(textwrap.dedent(inspect.getsource(cls)))


def _logged(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            if node.func.attr == "log" and isinstance(first, ast.Constant):
                yield str(first.value)
            elif node.func.attr == "log_dict" and isinstance(first, ast.Dict):
                yield from (str(key.value) for key in first.keys if isinstance(key, ast.Constant))


def _unpacks(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            if _is_batch(node.value) and isinstance(node.targets[0], ast.Tuple | ast.List):
                return True
        elif isinstance(node, ast.Subscript) and _is_batch(node.value):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return True
        elif isinstance(node, ast.Starred) and _is_batch(node.value):
            return True
    return False


def _is_batch(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "batch"


def _arguments(target: Any, depth: int) -> list[Argument]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    names = vars(sys.modules.get(getattr(target, "__module__", ""), object))
    return [
        _argument(one, _hint(one.annotation, names), depth)
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]


def _hint(annotation: Any, names: Mapping[str, Any]) -> Any:
    """Return an annotation, with a text resolved in its module."""
    holder = type("_", (), {"__annotations__": {"one": annotation}})
    with suppress(Exception):  # it may name what only a type checker imports
        return typing.get_type_hints(holder, dict(names))["one"]
    return annotation


def _argument(one: inspect.Parameter, hint: Any, depth: int) -> Argument:
    if one.default is not one.empty:
        try:
            value = _plain(one.default)
        except _NotPlainError:
            return Argument(name=one.name, is_required=False, shown=_text(one.default))
        return Argument(name=one.name, is_required=False, value=value)
    shown = "" if hint is one.empty else inspect.formatannotation(hint)
    value = UNSET
    if hint is not one.empty and isinstance(hint, type) and _is_made(hint) and depth < _DEEPEST:
        arguments = _arguments(hint, depth + 1)
        if all(inner.value is not UNSET for inner in arguments if inner.is_required):
            given = {inner.name: inner.value for inner in arguments if inner.value is not UNSET}
            with suppress(_NotPlainError):
                value = {"type": _path_of(hint), **given}
    return Argument(name=one.name, is_required=True, value=value, shown=shown)


def _is_made(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in _KINDS and not inspect.isabstract(cls)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value) in (list, tuple):
        return [_plain(one) for one in value]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, partial) and not value.args:
        return {"type": _path_of(value.func), "partial": True, **_plain(value.keywords)}
    raise _NotPlainError


def _path_of(target: Any) -> str:
    path = f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"
    with suppress(ConfigError):
        if import_class(path, "") is target:
            return path
    raise _NotPlainError


def _text(value: Any) -> str:
    with suppress(_NotPlainError):
        return _path_of(value)
    return type(value).__name__


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    Path(sys.argv[1]).write_bytes(msgspec.json.encode([*map(describe, sys.argv[2:])]))
