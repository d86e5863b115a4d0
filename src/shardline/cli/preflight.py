"""`shardline preflight`: Snakemake runs one small job for each geometry."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardline.config.project import Project
from shardline.config.run import Run
from shardline.core.errors import LaunchError
from shardline.core.files import read_json
from shardline.core.package import remake
from shardline.launch.preflight.table import PreflightReport


def one_of_each_geometry(project: Project) -> list[Run]:
    """Return the first run of each geometry: other runs of this geometry would start the same ranks."""
    first: dict[tuple[object, ...], Run] = {}
    for run in project.runs.values():
        asked = run.settings
        first.setdefault((asked.nodes, asked.devices, asked.accelerator), run)
    return list(first.values())


def preflight_runs(
    runs: Sequence[Run], *, config: Path, profile: str, arguments: Sequence[str]
) -> Iterator[tuple[Run, PreflightReport]]:
    """Have Snakemake run the preflight checks again, and yield their reports.

    Args:
        config: the project's config.
        profile: Snakemake's profile: where the ranks start.
        arguments: further arguments for Snakemake.

    Raises:
        LaunchError: a preflight check failed; Snakemake has printed the reason.
    """
    found = {run.id: run.layout.declared.preflight(run.id) for run in runs}
    is_done = remake(found.values(), config=config, profile=profile, arguments=arguments)
    for run in runs:
        if found[run.id].exists():
            document = read_json(found[run.id], remedy="run `shardline preflight` again")
            yield run, PreflightReport.from_json(document)
    if not is_done:
        raise LaunchError(
            "the preflight check failed; the reason is printed above and recorded in logs/run_preflight/"
        )
