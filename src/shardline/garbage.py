"""What results and store hold that the config no longer names, and its deletion."""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardline.config.project import RESULTS, Project
from shardline.environments.pins import pin_file, read_pins
from shardline.environments.prefix import prefix_of
from shardline.environments.specs import STAGES
from shardline.errors import DataError, ShardlineError
from shardline.identity import DIGEST_LENGTH
from shardline.states import NAMED, is_trained, name_of

_REPORT = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
_DOWNLOAD = re.compile(r"[0-9a-f]{64}")
_EVALUATION = re.compile(rf"{_REPORT.pattern}\.json")
_DOOMED = ".deleted"


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A folder, file or link that the present config does not name.

    Attributes:
        bytes: size of all files in it; links count nothing.
        written: latest change of any file in it, seconds since the epoch.
    """

    path: Path
    reason: str
    bytes: int
    written: float


def find_garbage(project: Project, dataset_names: Iterable[str]) -> list[Garbage]:
    """List what results and store hold that the present config does not name.

    Only names that end in an identity's digest count, and links that point at
    nothing or at what is listed; links are never followed.

    Args:
        dataset_names: names of all datasets in the config. What no run uses
            has no identity in the project, so all folders of its name stay.
    """
    runs = {run.id: run.name for run in project.runs.values()}
    datasets = {dataset.id: dataset.name for dataset in project.datasets.values()}
    unused = set(dataset_names) - set(datasets.values())
    found = [
        *_unnamed(RESULTS / "runs", runs),
        *_unnamed(RESULTS / "datasets", datasets, unused),
        *_outdated(RESULTS / "reports", _REPORT, project.report.parent.name, "earlier report"),
        *_old_evaluations(project),
        *_unnamed(project.store / "datasets", datasets, unused),
        *_unnamed(project.store / "work", runs),
        *_unnamed(project.store / "tensorboard", runs),
        *_unnamed(project.store / "envs", _prefixes(project)),
        *([] if unused else _unused_downloads(project)),
    ]
    return found + _dangling(project, {os.path.realpath(item.path) for item in found})


def last_results(project: Project, garbage: Iterable[Garbage]) -> list[str]:
    """Return the runs of the config that would be left without any sealed model."""
    models = [
        item.path / "model.safetensors" for item in garbage if item.path.parent == RESULTS / "runs"
    ]
    doomed = {name_of(model.parent) for model in models if model.exists()}
    return [run.name for run in project.runs.values() if run.name in doomed and not is_trained(run)]


def _unnamed(
    folder: Path, kept: Mapping[str, str], kept_names: Collection[str] = ()
) -> Iterator[Garbage]:
    for path in _entries(folder, NAMED):
        name, is_leftover = name_of(path), path.suffix == _DOOMED
        if path.name not in kept and (is_leftover or name not in kept_names):
            known = name in kept.values()
            yield _garbage(path, f"earlier {name}" if known else "no longer in the config")


def _prefixes(project: Project) -> dict[str, str]:
    """Return the environments that are made of the present pin files, by the name of their prefix."""
    store = (project.workdir / project.store).resolve()
    files = {env: pin_file(project, env) for env in STAGES}
    pinned = {env: read_pins(file) for env, file in files.items() if file.exists()}
    return {prefix_of(store, env, pins).name: env for env, pins in pinned.items()}


def _old_evaluations(project: Project) -> Iterator[Garbage]:
    for run in project.runs.values():
        if not run.folder.is_symlink():
            folder = run.folder / "evaluations"
            yield from _outdated(folder, _EVALUATION, run.evaluation.name, "earlier evaluation")


def _unused_downloads(project: Project) -> Iterator[Garbage]:
    files = (path for dataset in project.datasets.values() for path in dataset.files)
    used = {part for path in files for part in path.parts}
    for path in _entries(project.store / "downloads", _DOWNLOAD):
        if path.name not in used:
            yield _garbage(path, "download that no dataset reads")


def _outdated(folder: Path, pattern: re.Pattern[str], kept: str, reason: str) -> Iterator[Garbage]:
    return (_garbage(path, reason) for path in _entries(folder, pattern) if path.name != kept)


def _entries(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return what bears an identity's name, or bore it before an interrupted deletion."""
    if folder.is_symlink() or not folder.is_dir():  # behind a link may lie a disk that is not ours
        return []
    names = ((path.name.removesuffix(_DOOMED), path) for path in folder.iterdir())
    return sorted(path for name, path in names if pattern.fullmatch(name))


def _dangling(project: Project, doomed: set[str]) -> list[Garbage]:
    links = [RESULTS / "report", *sorted((RESULTS / "latest").glob("*"))]
    links += [run.folder / "evaluation.json" for run in project.runs.values()]
    found = []
    for link in links:
        target = Path(os.path.realpath(link))
        if link.is_symlink() and not target.exists():
            found.append(_garbage(link, "link to nothing"))
        elif link.is_symlink() and doomed & {str(target), *map(str, target.parents)}:
            found.append(_garbage(link, "link to a listed item"))
    return found


def _garbage(path: Path, reason: str) -> Garbage:
    states = list(_states(path))
    return Garbage(
        path=path,
        reason=reason,
        bytes=sum(state.st_size for state in states if stat.S_ISREG(state.st_mode)),
        written=max((state.st_mtime for state in states), default=0.0),
    )


def _states(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a file, or of all files and folders in a folder; links are not followed."""
    with contextlib.suppress(OSError):  # gone since it was listed, or not ours to read
        state = path.lstat()
        yield state
        if stat.S_ISDIR(state.st_mode):
            for entry in path.iterdir():
                yield from _states(entry)


def check_unlocked(workdir: Path) -> None:
    """Refuse to delete while Snakemake runs here.

    Raises:
        ShardlineError: a lock of Snakemake exists; the message names it.
    """
    for lock in sorted((workdir / ".snakemake" / "locks").glob("*")):
        raise ShardlineError(
            f"{lock.relative_to(workdir)} exists, so a Snakemake may be running here and nothing is deleted; "
            "wait for its end, or run `snakemake --unlock` if it crashed"
        )


def delete(garbage: Iterable[Garbage]) -> Iterator[Garbage]:
    """Delete each item and yield it once it is gone.

    A folder is renamed first: cut off half-way, no half of it can pass for a
    whole one when an earlier setting comes back.

    Raises:
        DataError: an item cannot be deleted; the message names it.
    """
    for item in garbage:
        try:
            _delete(item.path)
        except OSError as error:
            raise DataError(
                f"{error.filename or item.path} cannot be deleted ({error.strerror}); mend its owner or permissions"
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
