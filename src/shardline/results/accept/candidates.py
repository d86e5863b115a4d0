"""Earlier results that could replace runs and datasets of the config."""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from packaging.version import InvalidVersion, Version

from shardline.config.bases import Base
from shardline.config.causes import Cause, find_causes
from shardline.config.layout import (
    NamedKind,
    ResultsLayout,
    identities_of,
    names_that_have_been,
    title_of,
)
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_json
from shardline.records.acceptances import accepted_of
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.records.identities import IdentityDocument, weights_of_inputs
from shardline.results.sealed_run import REMAKE
from shardline.results.staleness import nearest_document, training_causes


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An earlier result that could replace a run or dataset of the config.

    Attributes:
        asked: Run or dataset of the config.
        earlier: Id of the earlier result.
        document: Identity document of the earlier result.
        causes: Differences of the present identity from the earlier one.
    """

    asked: RunPlan | DatasetPlan
    earlier: str
    document: IdentityDocument
    causes: tuple[Cause, ...]

    @property
    def title(self) -> str:
        """Present name and id."""
        return f"{self.asked.name} ({self.asked.id})"

    @property
    def earlier_title(self) -> str:
        """Last name and id of the earlier result."""
        return title_of(self.earlier, names_that_have_been(self.asked.layout, _kind(self.asked)))


def find_candidate(
    asked: RunPlan | DatasetPlan,
    earlier: str | None = None,
    runs: Mapping[str, RunPlan] | None = None,
) -> Candidate:
    """Return the earlier result that could replace a run or a dataset.

    Args:
        earlier: Id of the earlier result; None for the nearest sealed result with one of the names.
        runs: Runs of the config by id, to describe differences within a base.

    Raises:
        ConfigError: The run or dataset is sealed already, or no such earlier result exists.
        DataError: The identity of the earlier result cannot be read.
    """
    layout, kind = asked.layout, _kind(asked)
    title = f"{asked.name} ({asked.id})"
    if asked.has_model if isinstance(asked, RunPlan) else asked.manifest.exists():
        done = "trained" if kind == "run" else "sealed"
        raise ConfigError(f"{title} is {done} already, so there is nothing to accept")
    known = [i for name in asked.names for i in identities_of(layout, kind, name)]
    sealed = layout.model if kind == "run" else layout.manifest
    there = [i for i in dict.fromkeys([earlier] if earlier else known) if sealed(i).exists()]
    folder = layout.folder_of(kind)
    if not there and earlier:
        raise ConfigError(
            f"--from {earlier}: no sealed result in {folder / earlier}; name an id of {folder}"
        )
    if not there:
        raise ConfigError(
            f"{title}: no earlier result of this name is sealed; name one: --from ID of {folder}"
        )
    found = nearest_document(_documents(layout, kind, there), asked.document)
    if found is None:
        raise DataError(f"{folder / there[0]}: the identity cannot be read; {REMAKE}")
    path, document = found
    if isinstance(asked, RunPlan):
        causes = training_causes(document, asked, path.parent, runs)
    else:
        causes = find_causes(document, asked.document)
    return Candidate(asked=asked, earlier=path.parent.name, document=document, causes=tuple(causes))


def _documents(
    layout: ResultsLayout, kind: NamedKind, ids: list[str]
) -> Iterator[tuple[Path, IdentityDocument]]:
    """Yield the readable identity documents."""
    for identity in ids:
        with suppress(DataError):
            if kind == "dataset":
                yield layout.manifest(identity), read_manifest(layout, identity).identity
            else:
                path = layout.run(identity) / "identity.json"
                yield path, dict(read_json(path, remedy=REMAKE))


def find_by_cause(project: Project, kinds: Collection[str]) -> Iterator[Candidate]:
    """Yield the candidates that differ only in some parts of the identity: datasets, and runs after their bases.

    Args:
        kinds: Parts of an identity document, such as `environment`. A run whose dataset or base differs
            only in these parts counts too.
    """
    taken: dict[str, str] = {}
    for dataset in project.datasets.values():
        if (found := _if_any(dataset)) and {one.kind for one in found.causes} <= set(kinds):
            taken[dataset.id] = found.earlier
            yield found
    for run in _after_bases(project):
        found = _if_any(run, project.runs)
        if found is None:
            continue
        before = {**found.document, "inputs": run.document["inputs"]}
        differing = {cause.kind for cause in find_causes(before, run.document)}
        has_inputs = _has_datasets_of(run, found.document, taken) and has_bases_of(
            run, found.document, taken
        )
        if has_inputs and differing <= set(kinds):
            taken[run.id] = found.earlier
            yield found


def _after_bases(project: Project) -> Iterator[RunPlan]:
    """Yield the runs of a project, each after the runs that it begins from."""
    graph = {key: [one.run for one in run.bases] for key, run in project.runs.items()}
    order = TopologicalSorter(graph).static_order() if any(graph.values()) else graph
    yield from (project.runs[key] for key in order if key in project.runs)


def has_bases_of(run: RunPlan, earlier: IdentityDocument, taken: Mapping[str, str]) -> bool:
    """Return whether a run begins from the bases of an earlier training, or from runs accepted from them.

    Args:
        earlier: Identity document of the earlier training.
        taken: Ids of earlier runs, by present id.
    """
    before = earlier["inputs"].get("bases") or []
    return len(before) == len(run.bases) and all(
        _stands_for(now, one, run.layout, taken) for now, one in zip(run.bases, before, strict=True)
    )


def _stands_for(
    base: Base, before: Mapping[str, str], layout: ResultsLayout, taken: Mapping[str, str]
) -> bool:
    if base.counted == before:
        return True
    if {**before, "run": base.identity} != base.counted:
        return False
    accepted = accepted_of(layout.run(base.run))
    earlier = before["run"][:DIGEST_LENGTH]
    return earlier in (taken.get(base.run), accepted.from_.id if accepted else None)


def _has_datasets_of(run: RunPlan, earlier: IdentityDocument, taken: Mapping[str, str]) -> bool:
    """Return whether a run reads the datasets of an earlier training, or datasets accepted from them.

    Args:
        taken: Ids of earlier datasets, by present id.
    """
    before = weights_of_inputs(earlier["inputs"])
    now: dict[str, str] = {}
    for part in run.parts:
        same = (part.dataset.id, taken.get(part.dataset.id), _taken_before(part.dataset))
        now |= {key: str(part.weight) for key in same if key in before}
    return len(before) == len(run.parts) and now == before


def is_near(old: IdentityDocument, new: IdentityDocument, level: str) -> bool:
    """Return whether the environments of two identity documents differ no more than a level allows.

    Args:
        level: `minor` (same Python and same packages, other patch versions) or `off` (any difference).
    """
    before, after = old["environment"], new["environment"]
    if level == "off":
        return True
    packages = before["packages"], after["packages"]
    is_same = before["python"] == after["python"] and packages[0].keys() == packages[1].keys()
    return is_same and all(
        _minor(packages[0][name]) == _minor(packages[1][name]) for name in packages[0]
    )


def _minor(version: str) -> tuple[object, ...]:
    """Return a version without the patch level; a URL or an unusual version unchanged."""
    try:
        found = Version(version)
    except InvalidVersion:
        return (version,)
    return found.epoch, *found.release[:2], *([] if len(found.release) > 2 else [found.pre])


def _if_any(
    asked: RunPlan | DatasetPlan, runs: Mapping[str, RunPlan] | None = None
) -> Candidate | None:
    try:
        return find_candidate(asked, runs=runs)
    except ConfigError:  # sealed already, or no earlier result
        return None
    except DataError as error:  # a damaged result must not hide the others
        logging.warning("%s is skipped: %s", asked.name, error)
        return None


def _taken_before(dataset: DatasetPlan) -> str | None:
    accepted = accepted_of(dataset.manifest.parent)
    return accepted.from_.id if accepted else None


def _kind(asked: RunPlan | DatasetPlan) -> NamedKind:
    return "run" if isinstance(asked, RunPlan) else "dataset"


def read_manifest(layout: ResultsLayout, dataset_id: str) -> Manifest:
    """Read the manifest of a sealed dataset."""
    return read_record(layout.manifest(dataset_id), Manifest, remedy=REMAKE)
