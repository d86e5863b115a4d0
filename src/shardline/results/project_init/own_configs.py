"""Arguments in YAML files that a project has for Hydra or LightningCLI."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from shardline.core.errors import ConfigError
from shardline.core.found_files import is_hidden
from shardline.core.objects import NamedObject, read_value
from shardline.core.trainer_arguments import REASONS, SETTINGS

_MOST_FILES, _MOST_BYTES = 500, 200_000
_SKIPPED = {"results", "store", "logs", "outputs", "node_modules", "profiles", "wandb", "mlruns"}
_OPEN = re.compile(r"\$\{|\?\?\?")  # an interpolation of Hydra, and its mark of a missing value

_USUAL = ("config", "default")  # names of the config that a project uses without another choice
_TRAINER = {*SETTINGS, *REASONS}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A table that names a class.

    Attributes:
        file: File with the table, relative to the project.
        arguments: Arguments in the table, with objects in the form `{type: ...}`.
    """

    file: str = ""
    arguments: Mapping[str, Any]


class OwnConfigs:
    """The objects in the YAML files of a project.

    Args:
        folder: Folder of the project.
    """

    def __init__(self, folder: Path) -> None:
        self._objects: list[tuple[str, NamedObject]] = []
        self._of_cli: list[tuple[str, Mapping[str, Any]]] = []
        for path in islice(_files(folder), _MOST_FILES):
            name = path.relative_to(folder).as_posix()
            try:
                read = read_value(yaml.safe_load(path.read_text(encoding="utf-8")), "")
            except (OSError, UnicodeDecodeError, yaml.YAMLError):
                continue
            except ConfigError:  # an interpolation among arguments
                read = _read_below(path)
            self._objects += [(name, one) for one in _objects(read)]
            if _is_of_cli(read):
                self._of_cli.append((name, read))
        self._of_cli.sort(key=lambda one: Path(one[0]).stem not in _USUAL)

    def find(self, path: str) -> Found | None:
        """Return the first table that names a class, without values that Hydra interpolates.

        Args:
            path: Import path, or the end of one after its last dot.
        """
        for file, one in self._objects:
            given = one.path.replace(":", ".")
            if given == path.replace(":", ".") or given.rpartition(".")[2] == path:
                return Found(file=file, arguments=_without_open(one.arguments))
        return None

    def section(self, name: str, arguments: Collection[str] | None) -> Found | None:
        """Return the first table of a section that names no class, since the program of LightningCLI does.

        Args:
            name: Section of a config of LightningCLI, such as `model`.
            arguments: Names that the table may contain. None: all.
        """
        for file, config in self._of_cli:
            table = config.get(name)
            if isinstance(table, Mapping) and table and set(table) <= {*(arguments or table)}:
                return Found(file=file, arguments=_without_open(table))
        return None

    def named_section(self, name: str) -> tuple[str, NamedObject] | None:
        """Return the first object that is a whole section of a config of LightningCLI, and its file."""
        for file, config in self._of_cli:
            if one := _named(config.get(name)):
                return file, one
        return None


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if is_hidden(path.name) or path.is_symlink():
            continue
        if path.is_dir() and path.name not in _SKIPPED:
            yield from _files(path)
        elif path.suffix in (".yaml", ".yml") and path.stat().st_size < _MOST_BYTES:
            yield path


def _is_of_cli(value: Any) -> bool:
    """Return whether a file is a config of LightningCLI: arguments of a Trainer, and a section beside them."""
    if not isinstance(value, Mapping) or not {"model", "data"} & set(value):
        return False
    trainer = value.get("trainer")
    return isinstance(trainer, Mapping) and bool(
        set(trainer) & _TRAINER
    )  # others are of older versions


def _read_below(path: Path) -> Any:
    """Read a file with interpolations, which are left out."""
    try:
        return read_value(_without_open(yaml.safe_load(path.read_text(encoding="utf-8"))), "")
    except ConfigError:
        return None


def _without_open(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_open(item) for key, item in value.items() if not _is_open(item)}
    if isinstance(value, list | tuple):
        return [_without_open(item) for item in value]
    return as_table(value) if isinstance(value, NamedObject) else value


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and bool(_OPEN.search(value))


def as_table(one: NamedObject) -> dict[str, Any]:
    """Return an object in the form `{type: ...}`."""
    module, colon, name = one.path.rpartition(":" if ":" in one.path else ".")
    table: dict[str, Any] = {"type": f"{module}:{name}" if colon else name}
    table |= {"partial": True} if one.is_partial else {}
    table |= {"_args_": _without_open(list(one.positional))} if one.positional else {}
    return {**table, **_without_open(one.arguments)}


def _named(value: Any) -> NamedObject | None:
    """Return the object that a value names. LightningCLI accepts the bare name of a class of Lightning or torch."""
    if isinstance(value, Mapping) and isinstance(name := value.get("class_path"), str):
        arguments = value.get("init_args")
        return NamedObject(path=name, arguments=arguments if isinstance(arguments, Mapping) else {})
    return value if isinstance(value, NamedObject) else None


def _objects(value: Any) -> Iterator[NamedObject]:
    if one := _named(value):
        yield one
        value = one.arguments
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)
