"""Deletion of a run: results, training checkpoints and links."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from shardline.config.layout import names_that_have_been, title_of
from shardline.config.project import Project
from shardline.core.errors import DataError, ShardlineError
from shardline.core.package import check_unlocked
from shardline.records.acceptances import ACCEPTED, Accepted
from shardline.records.base import read_record
from shardline.results.accept.replaced_folders import held
from shardline.results.gc import Garbage, delete, garbage_of
from shardline.results.running import fresh_heartbeat

_BEFORE = "it is removed"


def find_runs(project: Project, ids: Sequence[str]) -> list[Garbage]:
    """Return all files and links of runs, links first.

    Datasets stay. Files that another result has accepted stay too, as hard links in that result.

    Args:
        ids: Present or earlier ids of the runs.

    Raises:
        ShardlineError: A run is being trained.
    """
    layout, found = project.layout, []
    titles = names_that_have_been(layout, "run")
    for run in dict.fromkeys(ids):
        title = title_of(run, titles)
        for work in _work_of(project, run):
            if fresh_heartbeat(work, time.time()):
                raise ShardlineError(
                    f"{title} is being trained; wait for its end, or stop it, before {_BEFORE}"
                )
        places = [
            *((link, f"link to {title}") for link in _links_to(project, run)),
            (layout.run(run), f"results of {title}"),
            (layout.all_reruns / run, f"reruns of {title}"),
            (layout.preflight(run), f"preflight check of {title}"),
            *((work, f"training checkpoints and attempts of {title}") for work in _work_of(project, run)),
            (layout.tracker("tensorboard") / run, f"curves of {title}"),
            *((path, f"failure of {title}") for path in sorted(layout.failures.glob(f"*/{run}*"))),
        ]  # fmt: skip
        found += [garbage_of(*place) for place in places if os.path.lexists(place[0])]
    return found


def kept_by_others(project: Project, ids: Sequence[str]) -> list[str]:
    """Return the titles of results that have accepted one of the runs and share its files."""
    layout, titles = project.layout, names_that_have_been(project.layout, "run")
    sharing = []
    for path in sorted(layout.folder_of("run").glob(f"*/{ACCEPTED}")):
        try:
            origin = read_record(path, Accepted, remedy="").from_.id
        except DataError:
            continue  # damaged; `shardline verify` reports it
        if origin in ids and path.parent.name not in ids:
            sharing.append(title_of(path.parent.name, titles))
    return sharing


def remove_runs(
    project: Project, ids: Sequence[str], items: Sequence[Garbage]
) -> Iterator[Garbage]:
    """Delete the items of `find_runs`, and yield each item after its deletion.

    Raises:
        DataError: An item cannot be deleted.
        ShardlineError: Snakemake runs here, or a run is being trained.
    """
    check_unlocked(project.workdir)
    titles = names_that_have_been(project.layout, "run")
    with ExitStack() as stack:
        for run in ids:
            for work in _work_of(project, run):
                stack.enter_context(held(work, title_of(run, titles), _BEFORE))
        yield from delete(items)


def _work_of(project: Project, run: str) -> list[Path]:
    """Return the folders of a run's training and of its reruns in the store."""
    found = project.layout.all_work.glob(f"{run}*")
    return sorted(path for path in found if path.name == run or path.name.startswith(f"{run}-"))


def _links_to(project: Project, run: str) -> Iterator[Path]:
    layout, folder = project.layout, os.path.normpath(project.layout.run(run))
    for link in sorted((*layout.latest_runs.glob("*"), *layout.latest_predictions.glob("*"))):
        if link.is_symlink():
            target = os.path.normpath(link.parent / link.readlink())
            if target == folder or target.startswith(f"{folder}{os.sep}"):
                yield link
