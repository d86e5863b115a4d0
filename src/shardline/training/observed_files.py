"""Place of the files of a training's profiler, which the run's page shows."""

from pathlib import Path

from shardline.records.trainings import Places

FOLDER = "profiler"  # in the run's folder of the store


def profiled(work: Path) -> Places:
    """Return the folder of the profiler's files, as provenance.json records it; empty if there are none.

    A store in the project's folder has a path relative to that folder, which the page links to.

    Args:
        work: The run's folder of the store.
    """
    folder, project = (work / FOLDER).absolute(), Path.cwd()
    if not folder.is_dir():
        return {}
    if folder.is_relative_to(project):
        return {"profiler": {"folder": str(folder.relative_to(project))}}
    return {"profiler": {"folder": f"work/{work.name}/{FOLDER} in the store"}}
