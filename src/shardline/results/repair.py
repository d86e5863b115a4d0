"""Repair of a dataset: delete its damaged files, so that the pipeline builds them again."""

from collections.abc import Iterable
from pathlib import Path

from shardline.config.plans import shards_of_part
from shardline.config.project import Project
from shardline.core.errors import ConfigError, DataError
from shardline.core.package import check_unlocked
from shardline.data.shard_format import SHARD_NAME
from shardline.results.findings import VerifyResult


def repair_dataset(project: Project, verdict: VerifyResult) -> list[str]:
    """Delete the damaged files of a dataset, so that the next run of the pipeline builds them again.

    Deletes the manifest last, so that an interrupted repair can be repeated.

    Args:
        verdict: Result of `verify_dataset`.

    Returns:
        Names of the parts whose jobs will run again; empty if only the manifest was bad.

    Raises:
        ConfigError: The config no longer contains the dataset, so the pipeline could not rebuild it.
        DataError: A file cannot be deleted. The message names the file.
        ShardlineError: Snakemake is running here.
    """
    if verdict.id not in project.datasets:
        raise ConfigError(
            f"{verdict.id} is not what the config names now, expected a dataset that the pipeline can "
            "rebuild; restore the settings it was made from, or delete it"
        )
    check_unlocked(project.workdir)
    dataset = project.datasets[verdict.id]
    folder, lists = project.layout.shards(dataset.id), project.layout.parts(dataset.id)
    matches = map(SHARD_NAME.fullmatch, map(str, verdict.bad_shards))
    # nothing else is deleted, whatever a manifest names
    bad = {match[0]: int(match[1]) for match in matches if match}
    for name in bad:
        _delete([folder / name, *(folder / "verified").glob(f"*/{name}")])
    # also the parts of an earlier shards_per_job, which may come back
    parts = lists.glob("*.json")
    _delete(
        path
        for path in parts
        if path.stem in verdict.bad_parts or set(shards_of_part(path.stem)) & set(bad.values())
    )
    _delete([dataset.manifest])
    return [part for part in dataset.parts if not (lists / f"{part}.json").exists()]


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(
                f"{path} cannot be deleted for the repair ({error.strerror}); "
                "fix its owner or permissions, then repair again"
            ) from None
