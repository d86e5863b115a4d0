"""What state a run is in, and what made it stale, by cause."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from shardline.config.project import RESULTS, Project, Run
from shardline.config.schema import flatten
from shardline.errors import DataError
from shardline.files import read_json
from shardline.identity import DIGEST_LENGTH

# how folders of datasets and runs are named
NAMED = re.compile(rf".+-[0-9a-f]{{{DIGEST_LENGTH}}}")
_UNSET = object()
_KNOWN_KEYS = {"stage", "settings", "model", "inputs", "source", "code", "environment"}


class State(StrEnum):
    """What there is of a run."""

    DONE = "done"
    TRAINED = "trained"
    IN_PROGRESS = "in progress"
    STALE = "stale"
    NEW = "new"


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


def is_trained(run: Run) -> bool:
    """Return whether a run's model is sealed."""
    return (run.folder / "model.safetensors").exists()


def sealed_names() -> set[str]:
    """Return the names under which a model is sealed, whatever its identity."""
    return {name_of(model.parent) for model in _in_runs("model.safetensors")}


def _in_runs(file: str) -> list[Path]:
    found = (RESULTS / "runs").glob(f"*/{file}")
    return [path for path in found if NAMED.fullmatch(path.parent.name)]


def name_of(folder: Path) -> str:
    """Return the name part of a folder that is named by name and identity."""
    return folder.name.rpartition("-")[0]


def state_of(run: Run, store: Path, known_names: set[str]) -> State:
    """Return a run's state.

    Args:
        store: root of the training checkpoints.
        known_names: the names with a sealed model, from `sealed_names`.
    """
    if is_trained(run):
        return State.DONE if run.evaluation.exists() else State.TRAINED
    if (store / "work" / run.id / "checkpoints" / "last.ckpt").exists():
        return State.IN_PROGRESS
    return State.STALE if run.name in known_names else State.NEW


def last_step(run: Run, store: Path) -> int | None:
    """Return the last optimiser step that an unfinished training recorded."""
    try:
        with (store / "work" / run.id / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 65536))  # a long training's file is large
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, TypeError, KeyError):
            continue  # the line that is being written
    return None


def explain(project: Project, run: Run) -> Explanation:
    """Find out why a run is fresh or stale.

    A run without a model is compared with the nearest older training, one
    without an evaluation with the nearest older evaluation of its model.
    """
    state = state_of(run, project.store, sealed_names())
    if state is State.DONE:
        return Explanation(run=run, state=state)
    nearest = _nearest_evaluation(run) if state is State.TRAINED else _nearest_training(run)
    if nearest is None:
        return Explanation(run=run, state=state)
    path, causes = nearest
    return Explanation(run=run, state=state, compared_with=path, causes=tuple(causes))


def _nearest_evaluation(run: Run) -> tuple[Path, list[Cause]] | None:
    found = []
    for path in (run.folder / "evaluations").glob("*.json"):
        old = (_read(path) or {}).get("identity")
        if isinstance(old, dict):
            causes = find_causes(old, run.evaluation_document)
            found.append(((len(causes), -path.stat().st_mtime), path, causes))
    return min(found, key=lambda item: item[0])[1:] if found else None


def _nearest_training(run: Run) -> tuple[Path, list[Cause]] | None:
    """Prefer the same name, then a sealed model, then few causes, then the newest."""
    found = []
    for path in _older_documents(run):
        if (old := _read(path)) is not None:
            causes = _training_causes(old, run, path.parent)
            sealed = (path.parent / "model.safetensors").exists()
            rank = (not sealed, len(causes), -path.stat().st_mtime)
            found.append((rank, path, causes))
    return min(found, key=lambda item: item[0])[1:] if found else None


def _older_documents(run: Run) -> list[Path]:
    every = [
        path for path in (RESULTS / "runs").glob("*/identity.json") if path.parent != run.folder
    ]
    return [path for path in every if name_of(path.parent) == run.name] or every


def _read(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None for a damaged file, which `shardline verify` is for."""
    try:
        document = read_json(path, remedy="")
    except DataError:
        return None
    return document if isinstance(document, dict) else None


def _training_causes(old: Mapping[str, Any], run: Run, folder: Path) -> list[Cause]:
    """Return the causes, with the differences within the dataset in the place of its digest."""
    causes = []
    for cause in find_causes(old, run.document):
        if cause.kind == "dataset":
            old_digest = _part(old, "inputs").get("dataset", "")
            causes.extend(_dataset_causes(old_digest, run, folder) or [cause])
        else:
            causes.append(cause)
    return causes


def _dataset_causes(old_digest: str, run: Run, folder: Path) -> list[Cause]:
    name = run.dataset.name
    old_id = str(_part(_read(folder / "run.json") or {}, "dataset").get("id", ""))
    manifests = (RESULTS / "datasets").glob(f"*-{old_digest}/manifest.json")
    manifest = min(manifests, key=lambda path: path.parent.name != old_id, default=None)
    old = _part((_read(manifest) if manifest else None) or {}, "identity")
    old_name = old_id.rpartition("-")[0] or (name_of(manifest.parent) if manifest else name)
    renamed = [Cause("dataset", f"dataset {old_name} -> {name}")] if old_name != name else []
    another_source = renamed and _source_type(old) != _source_type(run.dataset.document)
    if not old or another_source:  # differences within say nothing then
        return renamed
    inside = find_causes(old, run.dataset.document)
    return renamed + [Cause("dataset", f"dataset {name}: {cause.text}") for cause in inside]


def _source_type(document: Mapping[str, Any]) -> object:
    return _part(_part(document, "settings"), "source").get("type")


def diff_documents(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say in words how two identity documents of one stage differ; empty if they do not.

    Args:
        old: the earlier document.
        new: the present one.
    """
    return [cause.text for cause in find_causes(old, new)]


def find_causes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Cause]:
    """Return the differences between two identity documents of one stage, by cause."""
    others = sorted((old.keys() | new.keys()) - _KNOWN_KEYS | {"stage"})
    return [
        *_causes("settings", _values(_part(old, "settings"), _part(new, "settings"))),
        *_causes("model", _value("model", old.get("model", _UNSET), new.get("model", _UNSET))),
        *_inputs(_part(old, "inputs"), _part(new, "inputs")),
        *_causes("source", _sources(_part(old, "source"), _part(new, "source"))),
        *_causes("code", _code(_part(old, "code"), _part(new, "code"))),
        *_causes("environment", _environment(_part(old, "environment"), _part(new, "environment"))),
        *itertools.chain.from_iterable(
            _causes(key, _value(key, old.get(key, _UNSET), new.get(key, _UNSET))) for key in others
        ),
    ]


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = document.get(key)
    return part if isinstance(part, Mapping) else {}


def _causes(kind: str, texts: Iterable[str]) -> Iterator[Cause]:
    return (Cause(kind, text) for text in texts)


def _inputs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Cause]:
    for key in sorted(old.keys() | new.keys()):
        yield from _causes(key, _value(key, old.get(key, _UNSET), new.get(key, _UNSET)))


def _values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    # an empty table (`model_args: {}`) says nothing, so its keys come and go alone
    flat_old = {key: value for key, value in flatten(old).items() if value != {}}
    flat_new = {key: value for key, value in flatten(new).items() if value != {}}
    for key in [*flat_new, *(key for key in flat_old if key not in flat_new)]:
        yield from _value(key, flat_old.get(key, _UNSET), flat_new.get(key, _UNSET))


def _value(key: str, old: object, new: object) -> Iterator[str]:
    before, after = _exact(old), _exact(new)
    if before == after:
        return
    if _plain(old) != _plain(new):
        before, after = _plain(old), _plain(new)
    yield f"{key} {before} -> {after}"


def _exact(value: object) -> str:
    """Write a value so that unequal values, or types, give unequal texts."""
    return "unset" if value is _UNSET else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _exact(value)


def _sources(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    before, after = _by_name(old), _by_name(new)
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"source file {name} removed"
        elif name not in before:
            yield f"source file {name} added"
        elif Counter(before[name]) != Counter(after[name]):
            yield f"source bytes changed in {name}"
    if list(old.values()) != list(new.values()) and Counter(old.values()) == Counter(new.values()):
        yield "source files stand in another order"


def _by_name(source: Mapping[str, str]) -> dict[str, list[str]]:
    """Return digests by file name, without the position that the document puts before it."""
    files: dict[str, list[str]] = {}
    for key, sha256 in source.items():
        files.setdefault(key.partition("/")[2], []).append(sha256)
    return files


def _code(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for module in sorted(old.keys() | new.keys()):
        if module not in new:
            yield f"{module}: no longer imported"
        elif module not in old:
            yield f"{module}: newly imported"
        elif old[module] != new[module]:
            yield f"{module}: {_definitions(old[module], new[module])}"


def _definitions(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in new if name in old and old[name] != new[name]]
    # a class and a module list what they define: with a method its class changes too
    owners = {name.rpartition(".")[0] or "<module>" for name in (*added, *removed)}
    told = [name for name in changed if name not in owners] if added or removed else changed
    parts = ((told, "changed"), (_outermost(added), "added"), (_outermost(removed), "removed"))
    return "; ".join(f"{', '.join(names)} {verb}" for names, verb in parts if names).replace(
        "<module>", "top level"
    )


def _outermost(names: list[str]) -> list[str]:
    """Drop the methods of classes that came or went as a whole."""
    return [name for name in names if name.rpartition(".")[0] not in names]


def _environment(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    yield from _value("python", old.get("python", _UNSET), new.get("python", _UNSET))
    before, after = _part(old, "packages"), _part(new, "packages")
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{name} {before[name]} no longer needed"
        elif name not in before:
            yield f"{name} {after[name]} newly needed"
        elif before[name] != after[name]:
            yield f"{name} {before[name]} -> {after[name]}"
