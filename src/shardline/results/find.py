"""Search for settings of a run on the profile's machines, without a result and an identity."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from shardline.config.plans import RunPlan
from shardline.config.scripts import is_script
from shardline.core.errors import ConfigError, LaunchError
from shardline.core.package import remake
from shardline.records.base import Record, read_record
from shardline.records.found import FoundBatch, FoundRates

_Found = TypeVar("_Found", bound=Record)


def find_rates(
    run: RunPlan, *, config: Path, profile: str, arguments: Sequence[str] = ()
) -> FoundRates:
    """Train a run's first steps with growing learning rates.

    Args:
        config: Config file of the project.
        profile: Snakemake profile, which decides where the ranks start.
        arguments: Further arguments for Snakemake.

    Raises:
        ConfigError: The run is a training script.
        LaunchError: The steps failed. Snakemake has printed the reason.
    """
    return _find(run, "lr", FoundRates, config, profile, arguments)


def find_batch(
    run: RunPlan, *, config: Path, profile: str, arguments: Sequence[str] = ()
) -> FoundBatch:
    """Train a few steps of a run with growing global batches; see `find_rates`."""
    return _find(run, "batch", FoundBatch, config, profile, arguments)


def _find(
    run: RunPlan, setting: Literal["lr", "batch"], kind: type[_Found], config: Path, profile: str,
    arguments: Sequence[str],
) -> _Found:  # fmt: skip
    title = f"{run.name} ({run.id})"
    if is_script(run.model_class):
        raise ConfigError(
            f"{title} is a training script, whose steps Shardline does not know; try its settings in the script"
        )
    layout = run.layout.declared
    path = layout.found(run.id, setting)
    try:
        if not remake([path], config=config, profile=profile, arguments=arguments):
            raise LaunchError(
                f"the steps of {title} could not be trained; the reason is printed above and recorded in "
                f"{layout.log('find_setting', f'{run.id}-{setting}')}"
            )
        return read_record(path, kind, remedy="run the command again")
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # missing, or in use by another search
            path.parent.rmdir()
