"""The code that samples go through: its import paths, and whether it fits columns and model."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardline.config.checks import SHIPPED_TRANSFORMS, resolve_class
from shardline.config.validate import Problems
from shardline.core.errors import ConfigError
from shardline.identity import CodeIndex

COLLATE = ("pad", "nested")
EVALUATED = ("eval_transform", "collate")  # what an evaluation runs as well
_TRANSFORMS = ("transform", "eval_transform")
_PLAIN_PAD = {"type": "pad", "lengths": {}, "multiple": 1}


def transforms_of(written: Any) -> list[dict[str, object]]:
    """Return the value of `data.transform` in its one form: a list of tables with `type` and arguments."""
    listed = written if isinstance(written, list | tuple) else [] if written is None else [written]
    return [{"type": one} if isinstance(one, str) else dict(one) for one in listed]


def paths_of(data: Mapping[str, Any], code: CodeIndex, where: str) -> dict[str, str]:
    """Return the import paths that `data` settings name, by their part of an identity document.

    The parts are `transform`, `transform 2`, ..., `eval_transform`, ... and `collate`.

    Args:
        data: resolved settings.
        where: file and row, as messages begin.

    Raises:
        ConfigError: no such shipped name, module or definition; names them all.
    """
    problems, found = Problems(), {}
    for part, key, path in _named(data):
        shipped = SHIPPED_TRANSFORMS if part.startswith(_TRANSFORMS) else {}
        with problems.gather():
            if not isinstance(path, str):
                raise ConfigError(
                    f"{where}: {key}.type is {'missing' if path is None else path}, expected a shipped transform or "
                    "an import path such as mypkg.data:Augment; add it"
                )
            found[part] = resolve_class(
                path, shipped or dict.fromkeys(COLLATE, ""), code, f"{where}: {key}"
            )
    problems.refuse()
    return found


def _named(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield part, key and import path of each."""
    for setting in _TRANSFORMS:
        written = data.get(setting)
        for number, one in enumerate(transforms_of(written)):
            key = f"data.{setting}.{number}" if isinstance(written, list) else f"data.{setting}"
            yield f"{setting} {number + 1}" if number else setting, key, one.get("type")
    collate = data.get("collate")
    if isinstance(collate, str) and collate not in COLLATE:
        yield "collate", "data.collate", collate


def counted_data(data: Mapping[str, object]) -> dict[str, object]:
    """Return `data` settings as an identity document holds them, which has the code of what is no shipped transform.

    Args:
        data: resolved settings.
    """
    counted = dict(data)
    counted.pop("workers", None)  # who does the work changes nothing
    for setting in _TRANSFORMS:
        if setting in counted:
            counted[setting] = [_without_path(one) for one in transforms_of(counted[setting])]
    if counted.get("collate") in (None, "pad", _PLAIN_PAD):  # which are the same
        counted["collate"] = "pad"
    elif isinstance(counted["collate"], str) and counted["collate"] not in COLLATE:
        counted["collate"] = {}
    return counted


def _without_path(transform: Mapping[str, object]) -> dict[str, object]:
    names = {path: name for name, path in SHIPPED_TRANSFORMS.items()}
    kind = str(transform.get("type"))
    shipped = kind if kind in SHIPPED_TRANSFORMS else names.get(kind)
    named = {} if shipped is None else {"type": shipped}
    return {**named, **{key: value for key, value in transform.items() if key != "type"}}


def with_own_code(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `counted_data` as people read them, where what has no name is named by what it is."""
    shown = dict(data)
    for setting in _TRANSFORMS:
        if isinstance(shown.get(setting), list):
            shown[setting] = [{"type": "own class", **one} for one in shown[setting]]
    if shown.get("collate") == {}:
        shown["collate"] = "own function"
    return shown
