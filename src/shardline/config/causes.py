"""Differences between two identity documents of a stage, as sentences."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from shardline.config.code_paths import with_own_code
from shardline.config.resolved import settings_of, with_legacy_values
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.nested import flatten
from shardline.identity.versions import changes_between
from shardline.records.identities import IdentityDocument, weights_of_inputs

_UNSET = object()
_Part = Mapping[str, Any]  # part of a document, possibly of an earlier version
_Tell = Callable[[_Part, _Part], Iterator["str | Cause"]]
# Definitions of the code of the user on both sides, see `Documents.definitions`.
Definitions = tuple[_Part, _Part]
_OWN = "own class"  # a document contains its code, not its name
_DOCUMENT_KEYS = {
    "stage",
    "settings",
    "model",
    "inputs",
    "source",
    "versions",
    "code",
    "code_files",
    "sample_code",
    "environment",
}


@dataclass(frozen=True)
class Cause:
    """One difference between two identity documents.

    Attributes:
        kind: Part of the document: `settings`, `model`, `dataset`, `source`, `versions`,
            `code`, `environment`, `base` or another key.
        text: Difference, such as `optim.lr 0.1 -> 0.01`.
    """

    kind: str
    text: str


def find_causes(
    old: IdentityDocument, new: IdentityDocument, definitions: Definitions = ({}, {})
) -> list[Cause]:
    """Return the differences between two identity documents of a stage.

    Args:
        old: Earlier document.
        new: Current document.
        definitions: Definitions of the code of the user in both.
    """
    old, new = _readable(old), _readable(new)

    def part(kind: str, tell: _Tell) -> list[Cause]:
        found = tell(part_of(old, kind), part_of(new, kind))
        return [one if isinstance(one, Cause) else Cause(kind, one) for one in found]

    return [
        *part("settings", _settings),
        *_plain_causes(old, new, {"model"}),
        *part("inputs", _inputs),
        *part("sample_code", _sample_code),
        *part("source", _sources),
        *part("versions", _versions),
        *part("code", lambda before, after: _code(before, after, definitions)),
        *part("code_files", _sources),
        *part("environment", _environment),
        *_plain_causes(old, new, (old.keys() | new.keys()) - _DOCUMENT_KEYS | {"stage"}),
    ]


def find_dataset_causes(
    old_names: Sequence[str], old: IdentityDocument, names: Sequence[str], new: IdentityDocument,
    definitions: Definitions = ({}, {}),
) -> list[Cause]:  # fmt: skip
    """Return the differences between two datasets with different identities.

    Args:
        old_names: Names of the old dataset, the latest last.
        old: Identity document of the old dataset; empty if unknown.
        names: Names of the new dataset.
        new: Identity document of the new dataset.
        definitions: Definitions of the code of the user in both.
    """
    name, renamed = next(iter(names), "?"), []
    if old_names and set(old_names).isdisjoint(names):
        renamed = [Cause("dataset", f"dataset {old_names[-1]} -> {name}")]
    another_source = renamed and _source_type(old) != _source_type(new)
    if not old or another_source:  # further differences are meaningless then
        return renamed
    inside = find_causes(old, new, definitions)
    return renamed + [Cause("dataset", f"dataset {name}: {cause.text}") for cause in inside]


def _source_type(document: _Part) -> object:
    return part_of(part_of(document, "settings"), "source").get("type")


def _readable(document: IdentityDocument) -> IdentityDocument:
    """Return a document with newer settings, and with `own class` for classes of the user."""
    code, settings = part_of(document, "code"), part_of(document, "settings")
    shown = dict(document)
    if settings:
        settings = with_legacy_values(settings, settings_of(str(document.get("stage"))))
        source = part_of(settings, "source")
        if "source" in code and "type" not in source:
            settings["source"] = {"type": _OWN, **source}
        if "data" in settings:
            settings["data"] = with_own_code(settings["data"])
        named = dict(part_of(document, "sample_code"))
        for part in ("optim", "schedule"):  # without a name where it is an import path
            if part in settings and "name" not in settings[part]:
                settings[part] = {"name": named.pop(part, _OWN), **settings[part]}
        shown |= {"settings": settings, "sample_code": named}
    if "model" in code and "model" not in document:
        shown["model"] = _OWN
    return shown


def _plain_causes(old: _Part, new: _Part, keys: Iterable[str]) -> Iterator[Cause]:
    for key in sorted(keys):
        for text in _value(key, old, new):
            yield Cause(key, text)


def _inputs(old: _Part, new: _Part) -> Iterator[Cause]:
    yield from _bases(old.get("bases") or [], new.get("bases") or [])
    keys = (old.keys() | new.keys()) - {"bases"}
    if "datasets" not in keys:
        yield from _plain_causes(old, new, keys)
        return
    yield from _plain_causes(old, new, keys - {"dataset", "datasets"})
    for key, before, after in _unequal(weights_of_inputs(old), weights_of_inputs(new)):
        yield Cause("dataset", weight_change(key, before, after))


def _bases(old: Sequence[_Part], new: Sequence[_Part]) -> Iterator[Cause]:
    """Yield the differences between the bases of two trainings, in their order."""
    for one, other in zip_longest(old, new):
        before, after = _base(one), _base(other)
        if before != after:
            yield Cause("base", f"begins from {before} -> {after}")


def changed_bases(old: _Part, new: _Part) -> dict[str, tuple[str, str]]:
    """Return the ids of the other runs that two trainings begin from, by the text of the cause.

    Args:
        old: Identity document of the older training.
        new: Identity document of the newer training.
    """
    bases = [part_of(one, "inputs").get("bases") or [] for one in (old, new)]
    return {
        f"begins from {_base(one)} -> {_base(other)}": (_id(one), _id(other))
        for one, other in zip(*bases, strict=False)
        if "run" in one and "run" in other and _id(one) != _id(other)
    }


def changed_studies(old: _Part, new: _Part) -> dict[str, tuple[_Part, _Part]]:
    """Return the studies that two runs combine, by the text of the cause; see `changed_bases`."""
    bases = [part_of(one, "inputs").get("bases") or [] for one in (old, new)]
    return {
        f"begins from {_base(one)} -> {_base(other)}": (one, other)
        for one, other in zip(*bases, strict=False)
        if "sweep" in one and "sweep" in other and one != other
    }


def _id(base: _Part) -> str:
    return str(base.get("run", base.get("sweep")))[:DIGEST_LENGTH]


def _base(part: _Part | None) -> str:
    if part is None:
        return "initial weights"
    if "run" in part:
        state = f"@{part['state']}" if part.get("state", "best") != "best" else ""
        return f"run {_id(part)}{state}"
    if "sweep" in part:
        return f"{part.get('trials')} trials of study {_id(part)}"
    kind, content = next((key, part[key]) for key in ("file", "hf") if key in part)
    return (
        f"{'a file' if kind == 'file' else 'a folder'} with content {str(content)[:DIGEST_LENGTH]}"
    )


def weight_change(name: str, before: str | None, after: str | None) -> str:
    """Return the change of the weight of a dataset as a sentence; None: not in the run."""
    if after is None:
        return f"dataset {name} is no longer read"
    if before is None:
        return f"dataset {name} is newly read, with the weight {after}"
    return f"weight of dataset {name} {before} -> {after}"


def _sample_code(old: _Part, new: _Part) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        yield from _value(key, old, new)


def _settings(old: _Part, new: _Part) -> Iterator[str]:
    # an empty table (`model_args: {}`) sets nothing
    flat_old = {key: value for key, value in flatten(old).items() if value != {}}
    flat_new = {key: value for key, value in flatten(new).items() if value != {}}
    for key in flat_new | flat_old:
        yield from _value(key, flat_old, flat_new)


def _value(key: str, old: _Part, new: _Part) -> Iterator[str]:
    pair = old.get(key, _UNSET), new.get(key, _UNSET)
    before, after = map(_exact, pair)
    if before == after:
        return
    plain_before, plain_after = map(_plain, pair)
    if plain_before != plain_after:
        before, after = plain_before, plain_after
    yield f"{key} {before} -> {after}"


def _exact(value: object) -> str:
    """Return a text of a value; unequal values or types give unequal texts."""
    return "unset" if value is _UNSET else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _exact(value)


def _unequal(old: _Part, new: _Part) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, old and new value of each difference; None for a missing value."""
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def _sources(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name, before, after in _unequal(_by_name(old), _by_name(new)):
        if after is None:
            yield f"source file {name} removed"
        elif before is None:
            yield f"source file {name} added"
        else:
            yield f"source bytes changed in {name}"
    before, after = list(old.values()), list(new.values())
    if before != after and sorted(before) == sorted(after):
        yield "order of the source files changed"


def _by_name(source: Mapping[str, str]) -> dict[str, list[str]]:
    """Return digests by file name, without the position before the name."""
    files: dict[str, list[str]] = {}
    for key, sha256 in sorted(source.items(), key=lambda item: item[1]):
        files.setdefault(key.partition("/")[2], []).append(sha256)
    return files


def _versions(old: _Part, new: _Part) -> Iterator[str]:
    for name, before, after in _unequal(old, new):
        if before is not None and after is not None:  # otherwise model or source differ
            changed = "; ".join(changes_between(name, before, after))
            yield f"result version of {name} {before} -> {after}{f': {changed}' if changed else ''}"


def _code(old: _Part, new: _Part, definitions: Definitions) -> Iterator[str]:
    for part, before, after in _unequal(old, new):
        if before is None or after is None:
            if part.startswith("argument "):
                yield f"code of the {part} {'newly counts' if after else 'counts no longer'}"
            continue  # otherwise the name of model or source differs
        texts = list(_changed_modules(*(part_of(known, part) for known in definitions)))
        yield from (f"code of the {part}: {text}" for text in texts)
        if not texts:
            yield f"code of the {part} changed"


def _changed_modules(old: _Part, new: _Part) -> Iterator[str]:
    """Yield the differences of each module, if the definitions of both sides are known."""
    modules = [_by_module(part_of(known, "definitions")) for known in (old, new)]
    if not all(modules):
        return
    for module, before, after in _unequal(*modules):
        if after is None:
            yield f"{module} is no longer reached"
        elif before is None:
            yield f"{module} is newly reached"
        else:
            reason = part_of(new, "whole").get(module)
            whole = f" (counts as a whole: {reason})" if reason else ""
            yield f"{module}: {_definitions(before, after)}{whole}"


def _by_module(definitions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    modules: dict[str, dict[str, str]] = {}
    for name, digest in definitions.items():
        module, _, definition = name.partition(":")
        modules.setdefault(module, {})[definition] = digest
    return modules


def _definitions(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in new if name in old and old[name] != new[name]]
    # if a method is added or removed, its class changes too
    owners = {name.rpartition(".")[0] or "<module>" for name in (*added, *removed)}
    own = [name for name in changed if name not in owners]
    parts = ((own, "changed"), (_outermost(added), "added"), (_outermost(removed), "removed"))
    return "; ".join(f"{', '.join(names)} {verb}" for names, verb in parts if names).replace(
        "<module>", "top level"
    )


def _outermost(names: list[str]) -> list[str]:
    """Return the names without methods of classes that are listed themselves."""
    return [name for name in names if name.rpartition(".")[0] not in names]


def _environment(old: _Part, new: _Part) -> Iterator[str]:
    for key in ("kind", "python"):
        yield from _value(key, old, new)
    for name, before, after in _unequal(part_of(old, "packages"), part_of(new, "packages")):
        if after is None:
            yield f"{name} {before} no longer needed"
        elif before is None:
            yield f"{name} {after} newly needed"
        else:
            yield f"{name} {before} -> {after}"


def part_of(document: _Part, key: str) -> _Part:
    """Return a table of a document; empty if it is missing."""
    part = document.get(key)
    return part if isinstance(part, Mapping) else {}
