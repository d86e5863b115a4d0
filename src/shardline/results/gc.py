"""Garbage: files in results and store that the config no longer uses, and their deletion."""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardline.checkpoints.kept import kept_after_sealing, superfluous
from shardline.config.layout import NamedKind, ResultsLayout, names_that_have_been
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.config.scripts import KINDS
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.errors import DataError
from shardline.environments.specs import STAGES, pin_file
from shardline.identity.package_lock import read_pins
from shardline.results.continuing import states_to_keep
from shardline.results.kept_states import loss_of, surplus_states
from shardline.results.outcomes import present_report
from shardline.results.running import progress_of
from shardline.results.states import IDENTITY, is_trained
from shardline.results.sweeps.stopping import waiting_runs
from shardline.results.sweeps.trials import runs_of_studies

_DOWNLOAD = re.compile(r"[0-9a-f]{64}")
_EVALUATION = re.compile(rf"{IDENTITY.pattern}\.json")
_PREDICTION = re.compile(rf"{IDENTITY.pattern}\.(json|parquet)")
_PREFIX = re.compile(rf".+-{IDENTITY.pattern}")  # of a conda environment
_DOOMED = ".deleted"


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A folder, file or link that the config does not use.

    Attributes:
        path: Path of the item.
        reason: Reason why the item may be deleted.
        loses: Steps and device hours that are lost with training checkpoints; empty for other items.
        bytes: Size of all files in the item; links do not count.
        written: Latest change of a file in the item, in seconds since the epoch.
    """

    path: Path
    reason: str
    loses: str = ""
    bytes: int
    written: float


def find_garbage(project: Project, dataset_names: Iterable[str]) -> list[Garbage]:
    """List files in results and store that the config does not use.

    Lists files and folders named by an identity, broken links, and links to listed items. Never
    follows links. In the store, which several projects may share, lists only identities that this
    project has had.

    Args:
        dataset_names: Names of all datasets in the config. A dataset that no run uses has no
            identity in the project, so all folders of its name stay.
    """
    layout = project.layout
    runs = _Known(layout, "run", project.runs, runs_of_studies(project))
    datasets = _Known(layout, "dataset", project.built)
    used = {name for dataset in project.built.values() for name in dataset.names}
    unused = set(dataset_names) - used
    present = present_report(project)
    continued = states_to_keep(project) | waiting_runs(project)
    kept_reports = {project.report.parent.name} | ({present.parent.name} if present else set())
    found = [
        *runs.unnamed(layout.folder_of("run")),
        *runs.unnamed(layout.all_reruns),
        *datasets.unnamed(layout.folder_of("dataset"), unused),
        *_outdated(layout.folder_of("report"), IDENTITY, kept_reports, "earlier report"),
        *_outdated(layout.studies, IDENTITY, project.sweeps, "earlier study"),
        *_old_evaluations(project),
        *_old_predictions(project),
        *datasets.unnamed(layout.all_shards, unused, only_had=True),
        *(
            one
            for one in runs.unnamed(layout.all_work, only_had=True)
            if one.path.name not in continued
        ),
        *_unneeded_checkpoints(project, continued),
        *_old_failures(project),
        *runs.unnamed(layout.tracker("tensorboard"), only_had=True),
        *_unused_prefixes(project),
        *([] if unused else _unused_downloads(project)),
    ]
    listed, limits = {item.path for item in found}, project.runtime.checkpoint
    surplus = surplus_states(layout, limits, continued, listed)
    found += [
        garbage_of(path, f"training checkpoint beyond {limit}") for path, limit in surplus.items()
    ]
    return found + _dangling(project, {os.path.realpath(item.path) for item in found})


def runs_among(project: Project, garbage: Iterable[Garbage]) -> list[str]:
    """Return the ids of the runs whose results are in a list of garbage."""
    folder = project.layout.folder_of("run")
    return [item.path.name.removesuffix(_DOOMED) for item in garbage if item.path.parent == folder]


def last_results(project: Project, garbage: Iterable[Garbage]) -> list[str]:
    """Return the runs of the config that would lose their only sealed model."""
    models = [
        item.path / "model.safetensors"
        for item in garbage
        if item.path.parent == project.layout.folder_of("run")
    ]
    had = names_that_have_been(project.layout, "run")
    doomed = {name for model in models if model.exists() for name in had.get(model.parent.name, ())}
    return [
        run.name
        for run in project.runs.values()
        if not doomed.isdisjoint(run.names) and not is_trained(run)
    ]


class _Known:
    """The runs or datasets of the config, and the names that identities have had."""

    def __init__(
        self,
        layout: ResultsLayout,
        kind: NamedKind,
        present: Mapping[str, RunPlan] | Mapping[str, DatasetPlan],
        others: Collection[str] = (),
    ) -> None:
        bases = (base for one in present.values() for base in getattr(one, "bases", ()))
        self._kept = {one.id for one in present.values()} | {base.run for base in bases}
        self._kept |= {*others}
        self._names = {name for one in present.values() for name in one.names}
        self._had = names_that_have_been(layout, kind)

    def unnamed(
        self, folder: Path, kept_names: Collection[str] = (), *, only_had: bool = False
    ) -> Iterator[Garbage]:
        """Yield the items of a folder whose identity the config does not use.

        Args:
            kept_names: Items that had one of these names stay.
            only_had: Leave out identities that this project never had.
        """
        for path in _entries(folder, IDENTITY):
            identity, is_leftover = path.name.removesuffix(_DOOMED), path.suffix == _DOOMED
            had = self._had.get(identity, [])
            is_kept = path.name in self._kept or not set(kept_names).isdisjoint(had)
            if (is_kept and not is_leftover) or (only_had and not had):
                continue
            name = next((name for name in reversed(had) if name in self._names), None)
            gone = f"{had[-1]}, no longer in the config" if had else "no longer in the config"
            yield garbage_of(path, f"earlier {name}" if name else gone)


def _unused_prefixes(project: Project) -> Iterator[Garbage]:
    """Yield the environments that no present pin file or script uses."""
    # asyncio, which most commands do not need
    from shardline.environments.prefix import prefix_of

    files = {env: pin_file(project, env) for env in STAGES}
    pinned = {env: read_pins(file) for env, file in files.items() if file.exists()}
    kept = {prefix_of(project.layout.prefixes, env, pins).name: env for env, pins in pinned.items()}
    scripts = {one.folder_name for one in project.built_environments.values()}
    for path in _entries(project.layout.prefixes, _PREFIX):
        if path.name not in kept.keys() | scripts:
            env = path.name.rpartition("-")[0]
            of_script = "no script uses it" if env in KINDS else "no pin file matches it"
            yield garbage_of(path, f"earlier {env}" if env in kept.values() else of_script)


def _old_failures(project: Project) -> Iterator[Garbage]:
    """Yield the failures of jobs for earlier runs and datasets of this project."""
    asked: list[RunPlan | DatasetPlan] = [*project.runs.values(), *project.datasets.values()]
    kept = {one.id for one in asked}
    kinds: tuple[NamedKind, ...] = ("run", "dataset")
    had = {key for kind in kinds for key in names_that_have_been(project.layout, kind)}
    folder = project.layout.failures
    if folder.is_symlink():
        return
    for path in sorted(folder.glob("*/*")):
        identity = path.name[:DIGEST_LENGTH]
        if identity in had and identity not in kept:
            yield garbage_of(path, "failure of an earlier run or dataset")


def _unneeded_checkpoints(project: Project, continued: Collection[str]) -> Iterator[Garbage]:
    """Yield the training checkpoints of sealed runs beyond `runtime.checkpoint.after_sealing`.

    Args:
        continued: Ids of runs whose last state a longer run may continue.
    """
    asked = project.runtime.checkpoint.after_sealing
    for key, run in project.runs.items():
        work = project.layout.work(run.id)
        is_kept = run.settings.checkpoint.keep_last or run.id in continued
        keep = kept_after_sealing(asked, keep_last=is_kept or "last" in run.needed_states)
        is_whole = is_trained(run) and (run.folder / "provenance.json").exists()
        if key == run.id and is_whole and not work.is_symlink() and not progress_of(run):
            for path in superfluous(work / "checkpoints", keep):
                yield garbage_of(path, f"training checkpoint of {run.name}, which is sealed")


def _old_evaluations(project: Project) -> Iterator[Garbage]:
    kept: dict[str, set[str]] = {}
    for run in project.runs.values():
        kept.setdefault(run.id, set()).add(run.evaluation.name)
    for key, run in project.runs.items():
        if key == run.id and not run.folder.is_symlink():
            folder = run.folder / "evaluations"
            yield from _outdated(folder, _EVALUATION, kept[run.id], "earlier evaluation")


def _old_predictions(project: Project) -> Iterator[Garbage]:
    kept = {one.id + end for one in project.predictions.values() for end in (".json", ".parquet")}
    for key, run in project.runs.items():
        if key == run.id and not run.folder.is_symlink():
            folder = run.folder / "predictions"
            yield from _outdated(
                folder, _PREDICTION, kept, "prediction that the config does not name"
            )


def _unused_downloads(project: Project) -> Iterator[Garbage]:
    files = (path for dataset in project.built.values() for path in dataset.files)
    used = {part for path in files for part in path.parts}
    for path in _entries(project.layout.downloads, _DOWNLOAD):
        if path.name not in used:
            yield garbage_of(path, "download that no dataset reads")


def _outdated(
    folder: Path, pattern: re.Pattern[str], kept: Collection[str], reason: str
) -> Iterator[Garbage]:
    return (garbage_of(path, reason) for path in _entries(folder, pattern) if path.name not in kept)


def _entries(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the items named by a pattern, and those left by an interrupted deletion."""
    if folder.is_symlink() or not folder.is_dir():  # a link may lead to a disk of other people
        return []
    names = ((path.name.removesuffix(_DOOMED), path) for path in folder.iterdir())
    return sorted(path for name, path in names if pattern.fullmatch(name))


def _dangling(project: Project, doomed: set[str]) -> list[Garbage]:
    layout = project.layout
    links = [layout.latest_report]
    for folder in (layout.latest_runs, layout.latest_datasets):
        links += sorted(folder.glob("*"))
    links += [run.folder / "evaluation.json" for run in project.runs.values()]
    found = []
    for link in links:
        target = Path(os.path.realpath(link))
        if link.is_symlink() and not target.exists():
            found.append(garbage_of(link, "link to nothing"))
        elif link.is_symlink() and doomed & {str(target), *map(str, target.parents)}:
            found.append(garbage_of(link, "link to a listed item"))
    return found


def garbage_of(path: Path, reason: str) -> Garbage:
    """Return an item of garbage with its size and age."""
    states = list(_states(path))
    return Garbage(
        path=path,
        reason=reason,
        loses=loss_of(path),
        bytes=sum(state.st_size for state in states if stat.S_ISREG(state.st_mode)),
        written=max((state.st_mtime for state in states), default=0.0),
    )


def _states(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a file, or of all files and folders in a folder; links are not followed."""
    with contextlib.suppress(OSError):  # deleted in the meantime, or not readable
        state = path.lstat()
        yield state
        if stat.S_ISDIR(state.st_mode):
            for entry in path.iterdir():
                yield from _states(entry)


def delete(garbage: Iterable[Garbage]) -> Iterator[Garbage]:
    """Delete each item, and yield the item after its deletion.

    Renames a folder first, so that a half-deleted folder never looks like a whole one.

    Raises:
        DataError: An item cannot be deleted. The message names the item.
    """
    for item in garbage:
        try:
            _delete(item.path)
        except OSError as error:
            raise DataError(
                f"{error.filename or item.path} cannot be deleted ({error.strerror}); fix its owner or permissions"
            ) from None
        yield item


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(path.name.removesuffix(_DOOMED) + _DOOMED)
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)  # left by an interrupted deletion
        path.rename(doomed)
    shutil.rmtree(doomed)
