"""Objects of a run's settings in its identity: the code behind their import paths, and their arguments."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardline.config.callbacks import CALLBACKS, LIGHTNING_CALLBACKS, read_callbacks
from shardline.config.checked_optim import SHIPPED_OPTIMISERS, SHIPPED_SCHEDULES
from shardline.config.code_paths import (
    METRIC,
    SHIPPED_TRANSFORMS,
    is_installed,
    metric_paths,
    metrics_of,
    paths_of,
    resolve_class,
    transforms_of,
)
from shardline.config.scripts import is_script
from shardline.config.settings import Plain
from shardline.config.settings.run_settings import RunSettings
from shardline.config.validate import Problems
from shardline.core.objects import NamedObject, as_table, objects_in, read_value, without_paths
from shardline.identity import CodeIndex

# settings whose `name` is a shipped name or an import path
NAMED: dict[str, Collection[str]] = {"optim": SHIPPED_OPTIMISERS, "schedule": SHIPPED_SCHEDULES}


def code_of(settings: Plain, model_class: str, code: CodeIndex, where: str) -> dict[str, str]:
    """Return the import paths in the settings of a run, by part of the identity document.

    Args:
        settings: Resolved settings.
        model_class: Resolved model. A script reads `model_args` itself.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A name, module or class is unknown; the message lists all.
    """
    problems, found = Problems(), dict[str, str]()
    with problems.gather():
        if not is_script(model_class):
            found |= paths_of_objects(settings["model_args"], "model_args", code, where)
            for key in ("optim", "schedule"):
                found |= _of_named(settings.get(key, {}), key, code, where)
    with problems.gather():
        found |= paths_of_callbacks(settings.get(CALLBACKS) or [], CALLBACKS, code, where)
    with problems.gather():
        found |= paths_of(settings["data"], code, where)
    with problems.gather():
        found |= metric_paths(settings["evaluation"], code, where)
    if isinstance(collate := settings["data"].get("collate"), Mapping):
        with problems.gather():
            arguments = _arguments(as_table(collate, "data.collate"))
            found |= paths_of_objects(arguments, "collate", code, where, "data.collate")
    for kind, key, tables in (
        ("transform", "data.transform", transforms_of(settings["data"].get("transform"))),
        (
            "eval_transform",
            "data.eval_transform",
            transforms_of(settings["data"].get("eval_transform")),
        ),
        (METRIC, "evaluation.metrics", metrics_of(settings["evaluation"])),
    ):
        for number, table in enumerate(tables):
            part = f"{kind} {number + 1}" if number else kind
            with problems.gather():
                found |= paths_of_objects(_arguments(table), part, code, where, f"{key}.{number}")
    problems.refuse()
    return found


def _arguments(table: Plain) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in ("type", "_partial_")}


def _of_named(table: Plain, key: str, code: CodeIndex, where: str) -> dict[str, str]:
    """Return the import paths of optimiser or schedule, and of the objects among its arguments."""
    found = {}
    if (name := str(table.get("name"))) not in NAMED[key]:
        one = NamedObject(path=name, key=key, path_key=f"{key}.name")
        found[key] = resolve_object(one, code, where)
    return found | paths_of_objects(table.get("args", {}), f"{key}.args", code, where)


def counted_objects(settings: Plain) -> dict[str, Any]:
    """Return the settings of a run for an identity document, without import paths, whose code counts."""
    counted = dict(settings)
    if "model_args" in counted:
        counted["model_args"] = counted_arguments(counted["model_args"], "model_args")
    if metrics := counted.get("evaluation", {}).get("metrics"):
        # with import paths, since evaluations are repeated from these settings
        shown = [
            one if isinstance(one, str) else as_table(one, "evaluation.metrics") for one in metrics
        ]
        counted["evaluation"] = {**counted["evaluation"], "metrics": shown}
    for key in NAMED.keys() & counted.keys():
        table = dict(counted[key])
        if table.get("name") not in NAMED[key]:
            table.pop("name", None)
        if "args" in table:
            table["args"] = counted_arguments(table["args"], f"{key}.args")
        counted[key] = table
    return counted


def paths_of_objects(
    values: Plain, part: str, code: CodeIndex, where: str, key: str = ""
) -> dict[str, str]:
    """Return the import paths of the objects in a table of settings, by part of the identity document.

    The parts are dotted keys in the same form for each spelling: `model_args.net`, `model_args.layers.0`.

    Args:
        values: Table as written, such as `model_args`.
        part: Start of the parts.
        where: File and row, the start of messages.
        key: Dotted key of the table; default: `part`.

    Raises:
        ConfigError: A table mixes spellings, or its module or class is unknown; the message lists all.
    """
    if not values:
        return {}
    problems, found = Problems(), dict[str, str]()
    for name in sorted(values):
        with problems.gather():
            read = read_value(values[name], f"{key or part}.{name}")
            for place, one in objects_in(read, f"{part}.{name}"):
                while place in found:  # a key with a dot, or a positional argument
                    place += "'"
                with problems.gather():
                    found[place] = resolve_object(one, code, where)
    problems.refuse()
    return found


def paths_of_callbacks(
    written: Sequence[Any], key: str, code: CodeIndex, where: str
) -> dict[str, str]:
    """Return the import paths of callbacks and of objects among their arguments; see `paths_of_objects`.

    Args:
        written: Value of the setting.
        key: Dotted key of the setting.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A name, module or class is unknown; the message lists all.
    """
    problems, found = Problems(), dict[str, str]()
    for callback in read_callbacks(written, key, where):
        for part, one in objects_in(callback, callback.key):
            while part in found:
                part += "'"
            shipped = LIGHTNING_CALLBACKS if one is callback else None
            with problems.gather():
                found[part] = resolve_object(one, code, where, shipped)
    problems.refuse()
    return found


def counted_arguments(values: Plain, key: str) -> dict[str, Any]:
    """Return a table of settings for an identity document: objects without import paths, whose code counts."""
    # shipped transforms have no code in a document
    kept = SHIPPED_TRANSFORMS.values()
    return {
        name: without_paths(read_value(item, f"{key}.{name}"), kept)
        for name, item in values.items()
    }


def resolve_object(
    one: NamedObject, code: CodeIndex, where: str, shipped: Mapping[str, str] | None = None
) -> str:
    """Return the import path `module:Class` of an object; see `code_paths.resolve_class`.

    Args:
        where: File and row, the start of messages.
        shipped: Import paths of names that the setting accepts.
    """
    path = one.path
    if ":" not in path and "." in path and path not in (shipped or {}):
        module = _module_of(path, code)
        path = f"{module}:{path.removeprefix(f'{module}.')}"
    return resolve_class(path, shipped or {}, code, f"{where}: {one.path_key}")


def unread_objects(settings: RunSettings, model_class: str, code: CodeIndex) -> list[str]:
    """Return a warning for each table in `model_args` whose `type` lacks only the colon of an import path."""
    if is_script(model_class):
        return []
    sentences = []
    for key, table in _tables(settings.model_args, "model_args"):
        kind = table["type"] if isinstance(table.get("type"), str) else ""
        parts = kind.split(".")
        if len(parts) < 2 or not all(map(str.isidentifier, parts)):
            continue
        module = _module_of(kind, code)
        name = kind.removeprefix(f"{module}.")
        is_own = code.find(module) is not None and {name, "*"} & code.names(module)
        if is_own or (code.find(parts[0]) is None and is_installed(parts[0], code)):
            sentences.append(
                f"{key}.type={kind} is plain text, since it has no colon; write {module}:{name} for the object that it "
                "names"
            )
    return sentences


def _tables(value: Any, key: str) -> Iterator[tuple[str, Plain]]:
    """Yield each table below a value with its dotted key."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, item in items:
        if isinstance(item, Mapping | list):
            if isinstance(item, Mapping):
                yield f"{key}.{name}", item
            yield from _tables(item, f"{key}.{name}")


def _module_of(path: str, code: CodeIndex) -> str:
    """Return the longest module in a dotted path, without an import."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        if code.find(module := ".".join(parts[:end])):
            is_name = end == len(parts) - 1 or {parts[end], "*"} & code.names(module)
            return module if is_name else ".".join(parts[:-1])
    if code.find(parts[0]):
        return ".".join(parts[:-1])
    return _installed_module(parts[:-1])


def _installed_module(parts: list[str]) -> str:
    """Return the longest installed module among dotted names; all names if its package is unknown."""
    try:
        spec = find_spec(parts[0])
    except (ImportError, ValueError):
        spec = None
    folders = [Path(one) for one in (spec.submodule_search_locations or ())] if spec else []
    for end, name in enumerate(parts[1:], 1):
        below = [folder / name for folder in folders if (folder / name).is_dir()]
        if not below and not any(
            path.name.partition(".")[0] == name and path.suffix in (".py", ".so", ".pyd")
            for folder in folders
            for path in folder.glob(f"{name}.*")
        ):
            return ".".join(parts[:end]) if folders else ".".join(parts)
        folders = below
    return ".".join(parts)
