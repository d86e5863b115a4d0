"""The earlier results that could stand for what the config asks for now."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from shardline.config.accepted import read_accepted
from shardline.config.causes import Cause, find_causes
from shardline.config.dataset import Dataset
from shardline.config.layout import ResultsLayout
from shardline.config.names import identities_of, names_that_have_been, title_of
from shardline.config.project import Project
from shardline.config.run import Run
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_json
from shardline.results.staleness import nearest_document, training_causes

_REMAKE = "run the pipeline again to write it"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An earlier result that could stand for what the config asks for now.

    Attributes:
        asked: the run or dataset of the config.
        earlier: id of the earlier result.
        document: identity document of the earlier result.
        causes: how the present identity differs from it.
    """

    asked: Run | Dataset
    earlier: str
    document: Mapping[str, Any]
    causes: tuple[Cause, ...]

    @property
    def title(self) -> str:
        """What it is called now."""
        return f"{self.asked.name} ({self.asked.id})"

    @property
    def earlier_title(self) -> str:
        """What the earlier result was called last."""
        return title_of(self.earlier, names_that_have_been(self.asked.layout, _kind(self.asked)))


def candidate_of_run(run: Run, earlier: str | None = None) -> Candidate:
    """Return the earlier training that a run could take over.

    Args:
        earlier: id of the earlier result; the nearest sealed one of the run's names if None.

    Raises:
        ConfigError: the run is trained already, or there is no such earlier result.
    """
    if run.has_model:
        raise ConfigError(f"{run.name} ({run.id}) is trained already; nothing is to be accepted")
    named = dict.fromkeys(i for name in run.names for i in identities_of(run.layout, "run", name))
    asked = [earlier] if earlier else list(named)
    known = [i for i in asked if run.layout.model(i).exists()]
    if not known:
        raise _no_earlier(run, earlier)
    found = nearest_document(_documents(run.layout, known), run.document)
    if found is None:
        raise DataError(f"{run.layout.run(known[0])}: identity.json cannot be read; {_REMAKE}")
    path, document = found
    causes = training_causes(document, run, path.parent)
    return Candidate(asked=run, earlier=path.parent.name, document=document, causes=tuple(causes))


def candidate_of_dataset(dataset: Dataset, earlier: str | None = None) -> Candidate:
    """Return the earlier dataset that a dataset could take over; see `candidate_of_run`.

    Raises:
        ConfigError: the dataset is sealed already, or there is no such earlier one.
    """
    if dataset.manifest.exists():
        raise ConfigError(
            f"{dataset.name} ({dataset.id}) is sealed already; nothing is to be accepted"
        )
    named = dict.fromkeys(
        i for name in dataset.names for i in identities_of(dataset.layout, "dataset", name)
    )
    known = [earlier] if earlier else [i for i in named if i != dataset.id]
    there = [i for i in known if dataset.layout.exists("dataset", i)]
    if not there:
        raise _no_earlier(dataset, earlier)
    documents = (
        (dataset.layout.manifest(i), read_manifest(dataset.layout, i)["identity"]) for i in there
    )
    found = nearest_document(documents, dataset.document)
    assert found is not None
    path, document = found
    return Candidate(
        asked=dataset,
        earlier=path.parent.name,
        document=document,
        causes=tuple(find_causes(document, dataset.document)),
    )


def find_by_cause(project: Project, kinds: Collection[str]) -> Iterator[Candidate]:
    """Yield what can be accepted of the config and differs by some kinds of causes alone, datasets first.

    Args:
        kinds: parts of an identity document, such as `environment`. A run whose dataset differs by
            these alone is among them.
    """
    taken: dict[str, str] = {}
    for dataset in project.datasets.values():
        if (found := _if_any(candidate_of_dataset, dataset)) and _kinds(found) <= set(kinds):
            taken[dataset.id] = found.earlier
            yield found
    for run in project.runs.values():
        found = _if_any(candidate_of_run, run)
        if found is None:
            continue
        earlier = dict(found.document["inputs"]).get("dataset")
        before = {**found.document, "inputs": run.document["inputs"]}
        differing = {cause.kind for cause in find_causes(before, run.document)}
        is_same = earlier in (run.dataset.id, taken.get(run.dataset.id), _taken_before(run.dataset))
        if is_same and differing <= set(kinds):
            yield found


def is_near(old: Mapping[str, Any], new: Mapping[str, Any], level: str) -> bool:
    """Return whether the environments of two identity documents differ by no more than a level allows.

    Args:
        level: `minor` (one Python, and versions that differ by their patch level) or `off` (anything).
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
    """Return a version without its patch level; a URL or a version of another form as it is."""
    try:
        found = Version(version)
    except InvalidVersion:
        return (version,)
    return found.epoch, *found.release[:2], *([] if len(found.release) > 2 else [found.pre])


def _if_any(find: Callable[[Any], Candidate], asked: Run | Dataset) -> Candidate | None:
    try:
        return find(asked)
    except ConfigError:  # sealed already, or nothing is there to be accepted
        return None
    except DataError as error:  # one damaged result is no reason to leave the others
        logging.warning("%s is passed over: %s", asked.name, error)
        return None


def _kinds(candidate: Candidate) -> set[str]:
    return {cause.kind for cause in candidate.causes}


def _taken_before(dataset: Dataset) -> str | None:
    accepted = read_accepted(dataset.manifest.parent)
    return str(accepted["from"]["id"]) if accepted else None


def _kind(asked: Run | Dataset) -> Literal["run", "dataset"]:
    return "run" if isinstance(asked, Run) else "dataset"


def _no_earlier(asked: Run | Dataset, earlier: str | None) -> ConfigError:
    folder = asked.layout.folder_of(_kind(asked))
    if earlier:
        return ConfigError(
            f"--from {earlier}: no sealed result in {folder / earlier}; name an id of {folder}"
        )
    return ConfigError(
        f"{asked.name} ({asked.id}): no earlier result of this name is sealed; name one: --from ID of "
        f"{folder}"
    )


def _documents(layout: ResultsLayout, ids: list[str]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for identity in ids:
        path = layout.run(identity) / "identity.json"
        with suppress(DataError):
            yield path, dict(read_json(path, remedy=_REMAKE))


def read_manifest(layout: ResultsLayout, dataset_id: str) -> dict[str, Any]:
    """Return the manifest of a sealed dataset."""
    return dict(read_json(layout.manifest(dataset_id), remedy=_REMAKE))
