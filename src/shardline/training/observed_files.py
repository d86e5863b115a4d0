"""Place of the files of a training's profiler, which the run's page shows."""

from pathlib import Path

from shardline.records.runs import Places

FOLDER = "profiler"  # in the run's folder of the store


def profiled(work: Path) -> Places:
    """Return the folder of the profiler's files, as provenance.json records it; empty if there are none.

    Args:
        work: The run's folder of the store.
    """
    folder = work / FOLDER
    if not folder.is_dir():
        return {}
    return {"profiler": {"folder": f"work/{work.name}/{FOLDER} in the store"}}
