"""Causes that make a run stale: comparison of its identity document with the nearest older one."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardline.checkpoints.folder import last_step
from shardline.config.causes import (
    Cause,
    Definitions,
    changed_bases,
    changed_studies,
    find_causes,
    find_dataset_causes,
    part_of,
    weight_change,
)
from shardline.config.layout import ResultsLayout, identities_of, names_that_have_been
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.sweeps import SweepPlan
from shardline.core.rank_environment import rank_variables
from shardline.core.variables import cleaned, compared, recorded_variables, row_of
from shardline.identity.shipped_code import edited_files, sentence_of
from shardline.records.failures import Failure
from shardline.records.identities import IdentityDocument, weights_of_inputs
from shardline.results.continuing import choose
from shardline.results.outcomes import failure_of
from shardline.results.running import Progress, progress_of
from shardline.results.states import State, is_trained, read_if_sound, sealed_names, state_of
from shardline.results.sweeps.study_causes import causes_of_studies


class _KnownDataset(NamedTuple):
    """A dataset of a training: names, identity document and definitions of the user's code."""

    names: Sequence[str]
    document: IdentityDocument
    definitions: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a run is in its state.

    Attributes:
        run: The run.
        state: State of the run.
        compared_with: File of the nearest older identity document, or None.
        causes: Differences from that document.
        failure: First failure of the run's jobs, if it failed.
        progress: Progress of the training, if it runs.
        variables: Recorded environment variables whose values have changed.
        edited: Sentence about edited code of Shardline that the run uses.
        length: Sentence about the shorter run that the training will continue, or about why it does not.
    """

    run: RunPlan
    state: State
    compared_with: Path | None = None
    causes: tuple[Cause, ...] = ()
    failure: Failure | None = None
    progress: Progress | None = None
    variables: tuple[str, ...] = ()
    edited: str = ""
    length: str = ""


def edited_of(runs: Iterable[RunPlan]) -> str:
    """Return a sentence about edited code of Shardline that the runs use, or an empty text."""
    used: set[str] = set()
    for run in runs:
        documents = [run.document, run.evaluation_document]
        documents += [part.dataset.document for part in run.parts]
        used.update(name for one in documents for name in one["versions"])
    return sentence_of(edited_files(used))


# --- the nearest older document -----------------------------------------------------------------


def explain(project: Project, run: RunPlan) -> Explanation:
    """Explain why a run is fresh or stale.

    Compares a run without a model with the nearest older training, and a run without an
    evaluation with the nearest older evaluation of its model.
    """
    state = state_of(run, sealed_names(project.layout), project.runs)
    known: dict[str, Any] = {"edited": edited_of([run])}
    if state is State.DONE:
        return Explanation(run=run, state=state, variables=_other_variables(project, run), **known)
    known |= {
        "failure": failure_of(run, project.runs) if state is State.FAILED else None,
        "progress": progress_of(run) if state is State.RUNNING else None,
    }
    if not is_trained(run) and state is not State.RUNNING:
        own_step = last_step(run.layout.work(run.id) / "checkpoints")
        known["length"] = str(choose(project, run, own_step=own_step))
    if is_trained(run):
        nearest = nearest_document(_evaluations(run), run.evaluation_document)
        causes = nearest and find_causes(nearest[1], run.evaluation_document)
    else:
        nearest = nearest_document(_trainings(run), run.document)
        causes = nearest and training_causes(
            nearest[1], run, nearest[0].parent, project.runs, project.sweeps
        )
    if nearest is None:
        return Explanation(run=run, state=state, **known)
    found = tuple(causes or ())
    return Explanation(run=run, state=state, compared_with=nearest[0], causes=found, **known)


def _other_variables(project: Project, run: RunPlan) -> tuple[str, ...]:
    record = part_of(read_if_sound(run.folder / "provenance.json"), "action").get("variables")
    if not isinstance(record, Mapping):
        return ()
    runtime = project.runtime
    ranks = {**cleaned(os.environ), **rank_variables(1, runtime.variables, runtime.interface)}
    before, now = compared(record), compared(recorded_variables(ranks))
    names = [one for one in before.keys() | now.keys() if before.get(one) != now.get(one)]
    return tuple(sorted(name for name in names if (row := row_of(name)) and row.kind == "recorded"))


def nearest_document(
    older: Iterable[tuple[Path, IdentityDocument]], new: IdentityDocument
) -> tuple[Path, IdentityDocument] | None:
    """Return the nearest older document with its file: sealed first, then fewest causes, then newest."""

    def distance(item: tuple[Path, IdentityDocument]) -> tuple[bool, int, float]:
        path, old = item
        is_sealed = (path.parent / "model.safetensors").exists()
        return not is_sealed, len(find_causes(old, new)), -path.stat().st_mtime

    return min(older, key=distance, default=None)


def _evaluations(run: RunPlan) -> Iterator[tuple[Path, IdentityDocument]]:
    for path in (run.folder / "evaluations").glob("*.json"):
        if old := part_of(read_if_sound(path), "identity"):
            yield path, dict(old)


def _trainings(run: RunPlan) -> Iterator[tuple[Path, IdentityDocument]]:
    """Yield the older trainings of the run's names; all trainings if none of these exists."""
    own, folder = run.folder / "identity.json", run.layout.folder_of("run")
    known = {identity for name in run.names for identity in identities_of(run.layout, "run", name)}
    named = {folder / identity / "identity.json" for identity in known} - {own}
    for path in {path for path in named if path.exists()} or set(folder.glob("*/identity.json")):
        if path != own and (old := read_if_sound(path)):
            yield path, old


def read_definitions(folder: Path) -> Mapping[str, object]:
    """Return the recorded definitions of the user's code behind a run or a dataset."""
    record = read_if_sound(folder / "run.json") or read_if_sound(folder / "provenance.json")
    return part_of(record, "definitions")


def training_causes(
    old: IdentityDocument, run: RunPlan, folder: Path, runs: Mapping[str, RunPlan] | None = None,
    sweeps: Mapping[str, SweepPlan] | None = None,
) -> list[Cause]:  # fmt: skip
    """Return the differences between an older training and a run of the config.

    Args:
        old: Identity document of the older training.
        folder: Results folder of the older training.
        runs: Runs of the config by id.
        sweeps: Sweeps of the config by id.
    """
    asked: dict[str, _KnownDataset] = {
        one.id: _KnownDataset(one.names, one.document, one.definitions)
        for one in (part.dataset for part in run.parts)
    }
    definitions = (read_definitions(folder), run.definitions)
    return causes_of_trainings(run.layout, old, run.document, definitions, asked, runs, sweeps)


def causes_of_trainings(
    layout: ResultsLayout, old: IdentityDocument, new: IdentityDocument, definitions: Definitions,
    asked: Mapping[str, _KnownDataset] | None = None, runs: Mapping[str, RunPlan] | None = None,
    sweeps: Mapping[str, SweepPlan] | None = None,
) -> list[Cause]:  # fmt: skip
    """Return the differences between two trainings, with the differences within their datasets and bases.

    Args:
        old: Identity document of the older training.
        new: Identity document of the newer training.
        definitions: Definitions of the user's code behind each training.
        asked: Datasets of the newer training, by id; None for the recorded datasets.
        runs: Runs of the config by id, which may be bases of the newer training.
        sweeps: Sweeps of the config by id, whose trials the newer run may combine.
    """

    def of_bases(before: IdentityDocument, after: IdentityDocument) -> list[Cause]:
        return causes_of_trainings(layout, before, after, ({}, {}), None, runs)

    bases, studies, found = changed_bases(old, new), changed_studies(old, new), list[Cause]()
    for cause in find_causes(old, new, definitions):
        if pair := bases.get(cause.text):
            found += _within_base(layout, cause, *pair, runs or {}, sweeps or {})
        elif study := studies.get(cause.text):
            found += causes_of_studies(layout, cause, *study, sweeps or {}, of_bases)
        else:
            found.append(cause)
    places = [place for place, cause in enumerate(found) if cause.kind == "dataset"]
    if not places:
        return found
    before, after = (weights_of_inputs(part_of(one, "inputs")) for one in (old, new))
    read = [{key: _recorded_dataset(layout, key) for key in one} for one in (before, after)]
    inside = _causes_of_datasets(before, after, read[0], read[1] | dict(asked or {}))
    rest = [cause for cause in found if cause.kind != "dataset"]
    return [*rest[: places[0]], *(inside or [found[i] for i in places]), *rest[places[0] :]]


def _within_base(
    layout: ResultsLayout, cause: Cause, before: str, after: str, runs: Mapping[str, RunPlan],
    sweeps: Mapping[str, SweepPlan],
) -> list[Cause]:  # fmt: skip
    """Return the differences within a base, if both trainings begin from a run of the same name.

    Args:
        cause: Difference that names the ids of the bases, returned if their names differ.
        before: Id of the base of the older training.
        after: Id of the base of the newer training.
    """
    had = names_that_have_been(layout, "run")
    names = set(runs[after].names if after in runs else had.get(after, []))
    common = [name for name in had.get(before, []) if name in names]
    if not common:
        return [cause]
    folder, other = layout.run(before), layout.run(after)
    old = read_if_sound(folder / "identity.json")
    if not old:
        inside = [f"{before} -> {after}; nothing is recorded of {before}"]
    elif after in runs:
        inside = [one.text for one in training_causes(old, runs[after], folder, runs, sweeps)]
    else:
        new, definitions = read_if_sound(other / "identity.json"), read_definitions(other)
        found = causes_of_trainings(layout, old, new, (read_definitions(folder), definitions))
        inside = [one.text for one in found]
    return [Cause("base", f"through run {common[-1]}: {text}") for text in inside]


def _causes_of_datasets(
    old: Mapping[str, str], new: Mapping[str, str],
    old_read: Mapping[str, _KnownDataset], new_read: Mapping[str, _KnownDataset],
) -> list[Cause]:  # fmt: skip
    """Return the differences between the datasets of two trainings, in contents and weights.

    Args:
        old: Weights of the older training, by dataset id.
        new: Weights of the newer training, by dataset id.
    """
    pairs = dict(zip(new, old, strict=True)) if len(old) == len(new) == 1 else {}
    for key, read in new_read.items():
        same_name = (one for one in old if not set(old_read[one].names).isdisjoint(read.names))
        earlier = key if key in old else next(same_name, None)
        if earlier is not None and earlier not in pairs.values():
            pairs.setdefault(key, earlier)
    causes = []
    for key, earlier in pairs.items():
        if key != earlier:
            was, asked = old_read[earlier], new_read[key]
            causes += find_dataset_causes(
                was.names,
                was.document,
                asked.names,
                asked.document,
                (was.definitions, asked.definitions),
            )
    weights: list[tuple[Sequence[str], str | None, str | None]]
    weights = [(old_read[one].names, old[one], None) for one in old if one not in pairs.values()]
    weights += [(new_read[one].names, old.get(pairs.get(one, "")), new[one]) for one in new]
    return causes + [
        Cause("dataset", weight_change(", ".join(names) or "?", before, after))
        for names, before, after in weights
        if before != after
    ]


def _recorded_dataset(layout: ResultsLayout, identity: str) -> _KnownDataset:
    manifest = layout.manifest(identity)
    names = names_that_have_been(layout, "dataset").get(identity, [])
    document = dict(part_of(read_if_sound(manifest), "identity"))
    return _KnownDataset(names, document, read_definitions(manifest.parent))
