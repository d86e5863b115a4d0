"""Names are for people: what a run or dataset is called now, and what it was called before."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from shardline.config.layout import ResultsLayout
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.core.canonical import digest
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_json, remedy_of, utc_stamp, write_json

LAYOUT = (
    2  # of the folders below results/, and of the identities that name them; 1 was never released
)

Kind = Literal["run", "dataset"]
Names = dict[str, list[str]]


def titles_of(project: Project) -> dict[str, str]:
    """Return what runs and datasets are called now, with their ids, by id: `wide (1f0c4c8e2d3b)`."""
    names: Names = {}
    every: list[DatasetPlan | RunPlan] = [*project.built.values(), *project.runs.values()]
    for one in every:
        names.setdefault(one.id, []).extend(one.names)
    return {identity: f"{', '.join(known)} ({identity})" for identity, known in names.items()}


def check_layout(layout: ResultsLayout) -> None:
    """Refuse a folder of results that this version cannot read.

    Raises:
        ConfigError: its layout has another number, or is older than numbers.
    """
    file, results = layout.layout_file, layout.results
    found: object = None
    if file.exists():
        try:
            found = read_json(file, remedy="")["layout"]
        except (DataError, KeyError, TypeError):
            found = "unreadable"
    elif not any(layout.folder_of(kind).is_dir() for kind in ("run", "dataset")):
        return
    if found in (None, *range(LAYOUT)):
        shown = "no layout.json" if found is None else f"layout {found}"
        raise ConfigError(
            f"{results} was written by a version of Shardline before the first release ({shown}, expected layout "
            f"{LAYOUT}), whose results this version cannot use; move {results} away, or train again in a new folder"
        )
    if found == "unreadable":
        raise ConfigError(
            f'{file} is unreadable, expected {{"layout": {LAYOUT}}}; write that into it if this version of Shardline '
            f"has written the results, or move {results} away"
        )
    if found != LAYOUT:
        raise ConfigError(
            f"{file}: layout is {found}, expected {LAYOUT}; go on with the version of Shardline that wrote "
            f"it, or move {results} away"
        )


def record_names(project: Project) -> None:
    """Number the layout of the results, and add to the history what the config calls by another name now.

    Raises:
        DataError: the history cannot be written.
    """
    layout = project.layout
    if not layout.layout_file.exists():
        write_json(layout.layout_file, {"layout": LAYOUT})
    now = utc_stamp(timespec="seconds")
    lines = [
        json.dumps({**line, "sha256": digest(line)}) + "\n"
        for kind, name, identity in _new_names(project)
        for line in [{"kind": kind, "name": name, "id": identity, "since": now}]
    ]
    if not lines:
        return
    try:
        with layout.names_file.open("a", encoding="utf-8") as file:
            file.write("\n" * _is_torn(layout.names_file) + "".join(lines))
    except OSError as error:
        raise DataError(f"{layout.names_file} could not be written: {remedy_of(error)}") from error


def _new_names(project: Project) -> Iterator[tuple[Kind, str, str]]:
    """Yield each name that stands for another identity than last, and one that is an identity's name again."""
    history = _told(project.layout)
    asked: list[tuple[Kind, DatasetPlan | RunPlan]] = [
        *(("dataset", one) for one in project.built.values()),
        *(("run", one) for one in project.runs.values()),
    ]
    for kind, one in asked:
        latest = history.names.get(kind, {}).get(one.id, [])[-1:]
        for number, name in enumerate(one.names):
            is_again = number == 0 and not set(latest) <= set(one.names)
            if is_again or history.identities.get((kind, name), [])[:1] != [one.id]:
                yield kind, name, one.id


def names_that_have_been(layout: ResultsLayout, kind: Kind) -> Names:
    """Return the names that each identity has had, by identity; the latest comes last."""
    return _told(layout).names.get(kind, {})


def identities_of(layout: ResultsLayout, kind: Kind, name: str) -> list[str]:
    """Return the identities that a name has stood for, the latest first."""
    return _told(layout).identities.get((kind, name), [])


def title_of(identity: str, names: Mapping[str, list[str]]) -> str:
    """Return an identity with its latest name, as people read it."""
    had = names.get(identity)
    return f"{had[-1]} ({identity})" if had else identity


@dataclass(frozen=True)
class _History:
    """Both ways through the history.

    Attributes:
        names: by kind and identity, the latest last.
        identities: by kind and name, the latest first.
    """

    names: dict[str, Names]
    identities: dict[tuple[str, str], list[str]]


def _told(layout: ResultsLayout) -> _History:
    file = layout.names_file
    try:
        status = file.stat()
    except OSError:
        return _History({}, {})
    return _read_history(file.absolute(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _read_history(file: Path, size: int, mtime_ns: int) -> _History:
    """Return the history as it is in a file at a time; of 10,000 runs each asks for it."""
    names: dict[str, Names] = {}
    latest: dict[tuple[str, str], dict[str, None]] = {}
    for kind, name, identity in _history(file):
        had = names.setdefault(kind, {}).setdefault(identity, [])
        if name in had:
            had.remove(name)
        had.append(name)
        stood = latest.setdefault((kind, name), {})
        stood.pop(identity, None)
        stood[identity] = None
    return _History(names, {key: list(reversed(stood)) for key, stood in latest.items()})


def _history(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and identity, the oldest first; a line that was cut off is skipped."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
            yield str(record["kind"]), str(record["name"]), str(record["id"])
        except (ValueError, KeyError, TypeError):
            continue


def _is_torn(file: Path) -> bool:
    """Return whether the last line was cut off, by a full disk or a kill."""
    if not file.exists() or not file.stat().st_size:
        return False
    with file.open("rb") as lines:
        lines.seek(-1, 2)
        return lines.read() != b"\n"
