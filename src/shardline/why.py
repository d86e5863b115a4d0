"""What made a run stale: its identity document against the nearest older one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.causes import Cause, find_causes, find_dataset_causes
from shardline.config.project import RESULTS, Project, Run
from shardline.errors import DataError
from shardline.files import read_json
from shardline.states import State, name_of, sealed_names, state_of


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
    for path in {path for path in every if name_of(path.parent) == run.name} or every:
        if old := _read(path):
            yield path, _training_causes(old, run, path.parent)


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; nothing of a damaged file, which `shardline verify` is for."""
    try:
        document = read_json(path, remedy="")
    except DataError:
        return {}
    return document if isinstance(document, dict) else {}


def read_definitions(folder: Path) -> dict[str, Any]:
    """Return what is known of the user's code behind a result; nothing where it was not kept."""
    return _read(folder / "definitions.json")


def _training_causes(old: Mapping[str, Any], run: Run, folder: Path) -> list[Cause]:
    """Return the causes, with the differences within the dataset in the place of its digest."""
    causes = []
    for cause in find_causes(old, run.document, (read_definitions(folder), run.definitions)):
        if cause.kind == "dataset":
            old_digest = _part(old, "inputs").get("dataset", "")
            causes.extend(_dataset_causes(old_digest, run, folder) or [cause])
        else:
            causes.append(cause)
    return causes


def _dataset_causes(old_digest: str, run: Run, folder: Path) -> list[Cause]:
    old_id = str(_part(_read(folder / "run.json"), "dataset").get("id", ""))
    manifests = (RESULTS / "datasets").glob(f"*-{old_digest}/manifest.json")
    manifest = min(manifests, key=lambda path: path.parent.name != old_id, default=None)
    old = _part(_read(manifest), "identity") if manifest else {}
    old_name = old_id.rpartition("-")[0] or (name_of(manifest.parent) if manifest else "")
    dataset = run.dataset
    definitions = read_definitions(manifest.parent) if manifest else {}, dataset.definitions
    return find_dataset_causes(
        old_name or dataset.name, old, dataset.name, dataset.document, definitions
    )


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = document.get(key)
    return part if isinstance(part, Mapping) else {}
