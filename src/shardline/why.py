"""What made a run stale, by cause: its identity document against the nearest older one."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.config.project import RESULTS, Project, Run
from shardline.config.schema import flatten
from shardline.errors import DataError
from shardline.files import read_json
from shardline.names import identities_of, names_that_have_been
from shardline.states import State, sealed_names, state_of

_UNSET = object()
_Tell = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[str]]
_KNOWN_KEYS = {"stage", "settings", "model", "inputs", "source", "code", "environment"}


@dataclass(frozen=True)
class Cause:
    """One difference between two identity documents.

    Attributes:
        kind: part of the document: `settings`, `model`, `dataset`, `source`,
            `code`, `environment` or another key of it.
        text: the difference in words, such as `optim.lr 0.1 -> 0.01`.
    """

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a run is in its state.

    Attributes:
        compared_with: file of the nearest older identity document, None if there is none.
        causes: what differs from it.
    """

    run: Run
    state: State
    compared_with: Path | None = None
    causes: tuple[Cause, ...] = ()


# --- the nearest older document -----------------------------------------------------------------


def explain(project: Project, run: Run) -> Explanation:
    """Find out why a run is fresh or stale.

    A run without a model is compared with the nearest older training, one
    without an evaluation with the nearest older evaluation of its model.
    """
    state = state_of(run, project.store, sealed_names())
    if state is State.DONE:
        return Explanation(run=run, state=state)
    older = _evaluations(run) if state is State.TRAINED else _trainings(run)
    nearest = min(older, key=lambda item: _distance(*item), default=None)
    if nearest is None:
        return Explanation(run=run, state=state)
    path, causes = nearest
    return Explanation(run=run, state=state, compared_with=path, causes=tuple(causes))


def _distance(path: Path, causes: list[Cause]) -> tuple[bool, int, float]:
    """Prefer a sealed model, then few causes, then the newest."""
    is_sealed = (path.parent / "model.safetensors").exists()
    return not is_sealed, len(causes), -path.stat().st_mtime


def _evaluations(run: Run) -> Iterator[tuple[Path, list[Cause]]]:
    for path in (run.folder / "evaluations").glob("*.json"):
        if old := _part(_read(path), "identity"):
            yield path, find_causes(old, run.evaluation_document)


def _trainings(run: Run) -> Iterator[tuple[Path, list[Cause]]]:
    every = set((RESULTS / "runs").glob("*/identity.json")) - {run.folder / "identity.json"}
    known = {identity for name in run.names for identity in identities_of("run", name)}
    for path in {path for path in every if path.parent.name in known} or every:
        if old := _read(path):
            yield path, _training_causes(old, run)


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; nothing of a damaged file, which `shardline verify` is for."""
    try:
        document = read_json(path, remedy="")
    except DataError:
        return {}
    return document if isinstance(document, dict) else {}


def _training_causes(old: Mapping[str, Any], run: Run) -> list[Cause]:
    """Return the causes, with the differences within the dataset in the place of its digest."""
    causes = []
    for cause in find_causes(old, run.document):
        if cause.kind == "dataset":
            old_digest = _part(old, "inputs").get("dataset", "")
            causes.extend(_dataset_causes(old_digest, run) or [cause])
        else:
            causes.append(cause)
    return causes


def _dataset_causes(old_digest: str, run: Run) -> list[Cause]:
    old = _part(_read(RESULTS / "datasets" / old_digest / "manifest.json"), "identity")
    return find_dataset_causes(
        names_that_have_been("dataset").get(old_digest, []), old,
        run.dataset.names, run.dataset.document,
    )  # fmt: skip


def find_dataset_causes(
    old_names: Sequence[str], old: Mapping[str, Any], names: Sequence[str], new: Mapping[str, Any]
) -> list[Cause]:
    """Return how two datasets of different identities differ: in name, or in what they were made from.

    Args:
        old_names: the names that it has had, the latest last.
        old: its identity document, as is `new`; empty where it is not known.
        names: of the new one.
    """
    name, renamed = next(iter(names), "?"), []
    if old_names and set(old_names).isdisjoint(names):
        renamed = [Cause("dataset", f"dataset {old_names[-1]} -> {name}")]
    another_source = renamed and _source_type(old) != _source_type(new)
    if not old or another_source:  # differences within say nothing then
        return renamed
    inside = find_causes(old, new)
    return renamed + [Cause("dataset", f"dataset {name}: {cause.text}") for cause in inside]


def _source_type(document: Mapping[str, Any]) -> object:
    return _part(_part(document, "settings"), "source").get("type")


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = document.get(key)
    return part if isinstance(part, Mapping) else {}


# --- differences in words -----------------------------------------------------------------------


def find_causes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Cause]:
    """Return the differences between two identity documents of one stage, by cause.

    Args:
        old: the earlier document.
        new: the present one.
    """

    def part(kind: str, tell: _Tell) -> list[Cause]:
        return [Cause(kind, text) for text in tell(_part(old, kind), _part(new, kind))]

    old_inputs, new_inputs = _part(old, "inputs"), _part(new, "inputs")
    return [
        *part("settings", _settings),
        *_plain_causes(old, new, {"model"}),
        *_plain_causes(old_inputs, new_inputs, old_inputs.keys() | new_inputs.keys()),
        *part("source", _sources),
        *part("code", _code),
        *part("environment", _environment),
        *_plain_causes(old, new, (old.keys() | new.keys()) - _KNOWN_KEYS | {"stage"}),
    ]


def _plain_causes(
    old: Mapping[str, Any], new: Mapping[str, Any], keys: Iterable[str]
) -> Iterator[Cause]:
    for key in sorted(keys):
        for text in _value(key, old, new):
            yield Cause(key, text)


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    # an empty table (`model_args: {}`) says nothing, so its keys come and go alone
    flat_old = {key: value for key, value in flatten(old).items() if value != {}}
    flat_new = {key: value for key, value in flatten(new).items() if value != {}}
    for key in flat_new | flat_old:
        yield from _value(key, flat_old, flat_new)


def _value(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    pair = old.get(key, _UNSET), new.get(key, _UNSET)
    before, after = map(_exact, pair)
    if before == after:
        return
    plain_before, plain_after = map(_plain, pair)
    if plain_before != plain_after:
        before, after = plain_before, plain_after
    yield f"{key} {before} -> {after}"


def _exact(value: object) -> str:
    """Write a value so that unequal values, or types, give unequal texts."""
    return "unset" if value is _UNSET else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _exact(value)


def _unequal(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, old and new value where they differ; None stands for a missing one."""
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
        yield "source files stand in another order"


def _by_name(source: Mapping[str, str]) -> dict[str, list[str]]:
    """Return digests by file name, without the position that the document puts before it."""
    files: dict[str, list[str]] = {}
    for key, sha256 in sorted(source.items(), key=lambda item: item[1]):
        files.setdefault(key.partition("/")[2], []).append(sha256)
    return files


def _code(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for module, before, after in _unequal(old, new):
        if after is None:
            yield f"{module}: no longer imported"
        elif before is None:
            yield f"{module}: newly imported"
        else:
            yield f"{module}: {_definitions(before, after)}"


def _definitions(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in new if name in old and old[name] != new[name]]
    # a class and a module list what they define: with a method its class changes too
    owners = {name.rpartition(".")[0] or "<module>" for name in (*added, *removed)}
    told = [name for name in changed if name not in owners]
    parts = ((told, "changed"), (_outermost(added), "added"), (_outermost(removed), "removed"))
    return "; ".join(f"{', '.join(names)} {verb}" for names, verb in parts if names).replace(
        "<module>", "top level"
    )


def _outermost(names: list[str]) -> list[str]:
    """Drop the methods of classes that came or went as a whole."""
    return [name for name in names if name.rpartition(".")[0] not in names]


def _environment(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    yield from _value("python", old, new)
    for name, before, after in _unequal(_part(old, "packages"), _part(new, "packages")):
        if after is None:
            yield f"{name} {before} no longer needed"
        elif before is None:
            yield f"{name} {after} newly needed"
        else:
            yield f"{name} {before} -> {after}"
