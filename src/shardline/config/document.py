"""The config as a plain document: text keys, JSON values, no key twice."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardline.core.errors import ConfigError


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML config.

    Raises:
        ConfigError: it cannot be read, is not valid YAML, holds no keys or one key twice.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); run from the project's folder"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({_reason(error)}); fix it") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: holds no keys; see config/README.md for those it needs")
    refuse_duplicates(path)
    return document


def _reason(error: yaml.YAMLError) -> str:
    """Return what is wrong and where, without the lines, which may hold half of a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    reasons = filter(None, (getattr(error, "context", ""), getattr(error, "problem", "")))
    return f"line {mark.line + 1}, column {mark.column + 1}: {', '.join(reasons)}"


def refuse_duplicates(path: Path) -> None:
    """Refuse a YAML file in which a key stands twice: YAML would silently take the last.

    Does nothing where there is no such file, since Snakemake may have read another.

    Raises:
        ConfigError: names file, line and key.
    """
    try:
        node = yaml.compose(
            path.read_text(encoding="utf-8-sig"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    for key in _duplicates(node, set()):
        line = key.start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: {key.value} stands twice in one table; drop one")


def _duplicates(node: yaml.Node | None, visited: set[int]) -> Iterator[yaml.Node]:
    if node is None or id(node) in visited or isinstance(node, yaml.ScalarNode):
        return
    visited.add(id(node))  # an alias may lead back to where it stands
    seen: set[str] = set()
    for item in node.value:
        if isinstance(node, yaml.MappingNode):
            key, item = item
            if key.value in seen:
                yield key
            seen.add(str(key.value))
        yield from _duplicates(item, visited)


def plain(value: Any, where: str, key: str = "") -> Any:
    """Return a deep copy of a value in dictionaries, lists, text, numbers, booleans and None.

    Args:
        where: file, as messages begin.
        key: dotted key of the value.

    Raises:
        ConfigError: a key is not text, a number is not finite, or a value has
            another type, such as YAML's dates.
    """
    try:
        return _plain(value, where, key)
    except RecursionError:
        raise ConfigError(
            f"{where}: {key or 'the config'} holds itself; drop the YAML alias"
        ) from None


def _plain(value: Any, where: str, key: str) -> Any:
    if isinstance(value, Mapping):
        return {
            _text(k, where, key): _plain(v, where, f"{key}.{k}".lstrip("."))
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, where, key) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {key}={value} is not a finite number; give one")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ConfigError(
            f"{where}: {key}={value} is of type {type(value).__name__}, not text or a number; put it in quotes"
        )
    return value


def _text(key: Any, where: str, parent: str) -> str:
    if not isinstance(key, str):
        place = parent or "the config"
        raise ConfigError(
            f"{where}: key {key} of {place} is of type {type(key).__name__}, not text; put it in quotes"
        )
    return key
