"""Objects that settings name: reading of their three spellings into one form.

The spellings are `{type: "mypkg.nets:Dense", width: 64}`, that of Hydra (`_target_`, `_partial_`, `_args_`) and that of
LightningCLI (`class_path`, `init_args`). Nothing is imported here, since the Snakefile reads settings too.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardline.core.errors import ConfigError

_NAMES = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_COLON_PATH = re.compile(rf"{_NAMES}:{_NAMES}")
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_TYPE, _TARGET, _CLASS_PATH = "type", "_target_", "class_path"
_MARKS = {
    _TYPE: ("partial", "_partial_", "_args_"),
    _TARGET: ("_partial_", "_args_", "_recursive_", "_convert_"),
    _CLASS_PATH: ("init_args", "dict_kwargs", "partial", "_partial_", "_args_"),
}
_BELOW = ("init_args", "dict_kwargs")
_PARTIAL = ("partial", "_partial_")


@dataclass(frozen=True, kw_only=True)
class NamedObject:
    """An object that a value of the settings names.

    Attributes:
        path: Import path of the class or function, as written: `mypkg.nets:Dense`, or with dots only.
        arguments: Keyword arguments; objects among them are instances of this class.
        positional: Positional arguments.
        is_partial: Whether to make a `functools.partial` instead of the object.
        key: Dotted key of the table, for messages.
        path_key: Dotted key of the import path.
        key_of_arguments: Dotted key of the table of arguments.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()
    is_partial: bool = False
    key: str = field(default="", compare=False)
    path_key: str = field(default="", compare=False)
    key_of_arguments: str = field(default="", compare=False)

    @property
    def shown(self) -> str:
        """Key and import path, the start of messages."""
        return f"{self.path_key}={self.path}"

    @property
    def colon_path(self) -> str:
        """Import path with a colon behind the module."""
        return self.path if ":" in self.path else _with_colon(self.path)


def is_import_path(value: Any) -> bool:
    """Return whether a value is an import path with a colon, such as `mypkg.nets:Dense`."""
    return isinstance(value, str) and bool(_COLON_PATH.fullmatch(value))


def read_value(value: Any, key: str) -> Any:
    """Return a value in which each table that names an object is a `NamedObject`.

    A table names an object if it has `_target_`, if its `type` is an import path with a colon, or if its
    `class_path` is an import path. All other tables stay tables.

    Args:
        key: Dotted key of the value, for messages.

    Raises:
        ConfigError: A table mixes spellings, or has a wrong path or option.
    """
    if isinstance(value, Mapping):
        if spelling := _spelling_of(value):
            return _read_table(value, spelling, key)
        return {name: read_value(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [read_value(item, f"{key}.{place}") for place, item in enumerate(value)]
    return value


def read_object(value: Any, key: str, *, expected: str) -> NamedObject:
    """Return the object of a setting whose value must name one.

    Args:
        value: Name or import path, or a table in one of the spellings. Its `type` may be a name too.
        key: Dotted key of the value, for messages.
        expected: Kinds of names that the setting accepts, for messages.

    Raises:
        ConfigError: The value names nothing; see `read_value`.
    """
    if isinstance(value, str) and value:
        return NamedObject(path=value, key=key, path_key=key, key_of_arguments=key)
    table = value if isinstance(value, Mapping) else {}
    path = table.get(_TYPE)
    if spelling := _spelling_of(table) or (_TYPE if isinstance(path, str) and path else ""):
        return _read_table(table, spelling, key)
    found = path if table else value
    raise ConfigError(
        f"{key}{'.type' if table else ''} is {'missing' if found is None else found}, expected {expected}; add it"
    )


def as_table(value: Any, key: str) -> dict[str, Any]:
    """Return a name, or a table in any spelling, as a table with `type` and arguments as written.

    Args:
        key: Dotted key of the value, for messages.
    """
    if isinstance(value, str):
        return {_TYPE: value}
    spelling = _spelling_of(value)
    if spelling in ("", _TYPE):
        return dict(value)
    one = _read_table(value, spelling, key)
    table = {
        name: item for name, item in value.items() if name not in (spelling, *_MARKS[spelling])
    }
    if spelling == _CLASS_PATH:
        table = _below_class_path(value, key)
    marks = {"_partial_": True} if one.is_partial else {}
    marks |= {"_args_": value["_args_"]} if one.positional else {}
    return {**table, **marks, _TYPE: one.colon_path}


def _with_colon(path: str) -> str:
    """Return a dotted import path with a colon behind the module; the names of classes begin with a capital."""
    module, _, name = path.rpartition(".")
    above = module.rpartition(".")
    if above[2][:1].isupper():
        return f"{above[0]}:{above[2]}.{name}"
    return f"{module}:{name}"


def objects_in(value: Any, part: str) -> Iterator[tuple[str, NamedObject]]:
    """Yield each object in a value of `read_value`, outer objects first, with its place such as `model_args.net`.

    The place does not depend on the spelling.
    """
    if isinstance(value, NamedObject):
        yield part, value
        yield from objects_in([*value.positional], part)
        yield from objects_in(value.arguments, part)
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from objects_in(value[name], f"{part}.{name}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from objects_in(item, f"{part}.{place}")


def without_paths(value: Any, kept: Container[str] = ()) -> Any:
    """Return a value of `read_value` as plain tables without import paths: what counts beside the code.

    Args:
        kept: Import paths that stay in the tables.
    """
    if isinstance(value, NamedObject):
        plain: dict[str, Any] = without_paths(value.arguments, kept)
        if value.colon_path in kept:
            plain[_TYPE] = value.colon_path
        plain |= {"_partial_": True} if value.is_partial else {}
        args = without_paths([*value.positional], kept)
        return {**plain, "_args_": args} if args else plain
    if isinstance(value, Mapping):
        return {name: without_paths(item, kept) for name, item in value.items()}
    return [without_paths(item, kept) for item in value] if isinstance(value, list) else value


def _spelling_of(table: Mapping[str, Any]) -> str:
    if _TARGET in table:
        return _TARGET
    path = table.get(_CLASS_PATH)
    # other tables may have this key too, such as for a list of classes
    is_alone = not table.keys() - {_CLASS_PATH, *_MARKS[_CLASS_PATH]} or "init_args" in table
    if is_import_path(path) or (
        isinstance(path, str) and _DOTTED_PATH.fullmatch(path) and is_alone
    ):
        return _CLASS_PATH
    return _TYPE if is_import_path(table.get(_TYPE)) else ""


def _read_table(table: Mapping[str, Any], spelling: str, key: str) -> NamedObject:
    path, marks = table[spelling], _MARKS[spelling]
    if not isinstance(path, str) or (spelling == _TARGET and not _is_path(path)):
        raise ConfigError(
            f"{key}.{spelling}={path} is not an import path, expected one such as mypkg.nets:Dense; write it"
        )
    others = {name: item for name, item in table.items() if name not in (spelling, *marks)}
    if spelling == _TARGET and is_import_path(others.get(_TYPE)):
        raise ConfigError(
            f"{key} has both {_TARGET} and {_TYPE}={others[_TYPE]}, expected one import path; drop one of them"
        )
    below = key
    if spelling == _CLASS_PATH:
        below = f"{key}.init_args"
        if others:
            name = next(iter(others))
            raise ConfigError(
                f"{key} has {name} beside class_path, expected arguments in init_args; write {below}.{name}"
            )
        others = _below_class_path(table, key)
    _check_of_hydra(table, others, key)
    positional = table.get("_args_") or []
    if not isinstance(positional, list | tuple):
        raise ConfigError(f"{key}._args_={positional} is not a list; put it in square brackets")
    return NamedObject(
        path=path,
        arguments={name: read_value(item, f"{below}.{name}") for name, item in others.items()},
        positional=tuple(read_value([*positional], f"{key}._args_")),
        is_partial=_is_partial(table, marks, key),
        key=key,
        path_key=f"{key}.{spelling}",
        key_of_arguments=below,
    )


def _below_class_path(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _BELOW:
        given = table.get(name)
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"{key}.{name}={given} is not a table; write the arguments by name")
        found |= given or {}
    return found


def _is_partial(table: Mapping[str, Any], marks: tuple[str, ...], key: str) -> bool:
    found = False
    for name in (one for one in _PARTIAL if one in marks and one in table):
        if not isinstance(table[name], bool):
            raise ConfigError(
                f"{key}.{name}={table[name]} is not true or false, expected whether to make a functools.partial; write "
                "one, or write _target_ instead of type for an argument of this name"
            )
        found = found or table[name]
    return found


def _check_of_hydra(table: Mapping[str, Any], arguments: Mapping[str, Any], key: str) -> None:
    if table.get("_recursive_", True) is not True:
        raise ConfigError(
            f"{key}._recursive_={table['_recursive_']}, but tables that name objects are always made; leave it out"
        )
    for name, item in arguments.items():
        if isinstance(item, str) and item.startswith("${") and item.endswith("}"):
            raise ConfigError(
                f"{key}.{name}={item} is an interpolation of Hydra, which is not resolved here; write the value"
            )


def _is_path(text: str) -> bool:
    return bool(_COLON_PATH.fullmatch(text) or _DOTTED_PATH.fullmatch(text))
