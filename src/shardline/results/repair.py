"""Dropping what is damaged of a dataset, so that the pipeline makes just that again."""

from collections.abc import Iterable
from pathlib import Path

from shardline.config.plans import shards_of_part
from shardline.config.project import Project
from shardline.core.errors import ConfigError, DataError
from shardline.core.package import check_unlocked
from shardline.data.shard_format import SHARD_NAME
from shardline.results.findings import VerifyResult


def repair_dataset(project: Project, verdict: VerifyResult) -> list[str]:
    """Drop what is bad of a dataset, so that the next run of the pipeline makes just that again.

    Its bad shards go first, its manifest last: cut off anywhere, the manifest
    is still there to find them by, and the repair can be asked for again.

    Args:
        verdict: what `verify_dataset` found.

    Returns:
        The parts whose jobs will run again, by name; none if only the manifest
        was bad, which is then sealed again from the parts.

    Raises:
        ConfigError: the config no longer has this dataset, so nothing could rebuild it.
        DataError: something cannot be deleted; the message names it.
        ShardlineError: Snakemake is running here.
    """
    if verdict.id not in project.datasets:
        raise ConfigError(
            f"{verdict.id} is not what the config names now, expected a dataset that the pipeline can "
            "rebuild; bring back the settings it was made from, or delete it"
        )
    check_unlocked(project.workdir)
    dataset = project.datasets[verdict.id]
    folder, lists = project.layout.shards(dataset.id), project.layout.parts(dataset.id)
    matches = map(SHARD_NAME.fullmatch, map(str, verdict.bad_shards))
    # nothing else is deleted, whatever a manifest names
    bad = {match[0]: int(match[1]) for match in matches if match}
    for name in bad:
        _delete([folder / name, *(folder / "verified").glob(f"*/{name}")])
    # also those of an earlier shards_per_job, lest it comes back
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
                f"{path} cannot be deleted ({error.strerror}), expected to drop it for the repair; "
                "fix its owner or permissions, then repair again"
            ) from None
