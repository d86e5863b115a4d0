"""Rehearsing runs from the command line: Snakemake, one small job for each geometry."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardline.config.project import RESULTS, Project, Run
from shardline.core.errors import LaunchError
from shardline.core.files import read_json
from shardline.core.package import make_anew
from shardline.launch.preflight.table import Rehearsal

_GEOMETRY = ("nodes", "devices", "accelerator")


def one_of_each_geometry(project: Project) -> list[Run]:
    """Return the first run of each geometry: the others would meet in the same way."""
    first: dict[tuple[object, ...], Run] = {}
    for run in project.runs.values():
        first.setdefault(tuple(run.settings[key] for key in _GEOMETRY), run)
    return list(first.values())


def rehearse_runs(
    runs: Sequence[Run], *, config: Path, profile: str, arguments: Sequence[str]
) -> Iterator[tuple[Run, Rehearsal]]:
    """Have Snakemake rehearse runs, whatever was found before, and yield what was found.

    Args:
        config: the project's config.
        profile: Snakemake's profile: where the ranks start.
        arguments: further words for Snakemake.

    Raises:
        LaunchError: a rehearsal failed; Snakemake has said why.
    """
    found = {run.id: RESULTS / "rehearsals" / f"{run.id}.json" for run in runs}
    is_done = make_anew(found.values(), config=config, profile=profile, arguments=arguments)
    for run in runs:
        if found[run.id].exists():
            document = read_json(found[run.id], remedy="rehearse again")
            yield run, Rehearsal.from_json(document)
    if not is_done:
        raise LaunchError("the rehearsal failed; the reason stands above, and in logs/rehearse/")
