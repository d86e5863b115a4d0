"""The job of `shardline find`: ranks of a run that try settings on a few steps, and keep nothing."""

import logging
from collections.abc import Callable, Mapping
from math import lcm
from pathlib import Path
from typing import Literal

from msgspec import structs

from shardline.config.combined import refuse_combined
from shardline.config.job_plan import recheck_training
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.scripts import is_script
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.files import write_json
from shardline.pipeline.bases import init_of
from shardline.pipeline.job_frame import only
from shardline.pipeline.started_ranks import Inputs, has_gpus, own_work, places_of, run_on_ranks
from shardline.records.base import encode, read_record
from shardline.records.found import FoundBatch, MeasuredBatch
from shardline.supervision.supervisor import RankError
from shardline.training.rank_task import Find

_SHARE = 0.95  # of the memory: allocators leave gaps, and a validation needs some
_CLOSE = 1.05  # ratio of two batches that need not be told apart
_MOST_TRIES = 12


def find_setting(
    project: Project, what: Literal["lr", "batch"], log: Path, output: str, inputs: Inputs
) -> None:
    """Try a setting on a run's ranks, and write the result.

    Args:
        project: the run's part of the project.
        what: learning rates, or sizes of a global batch.
        inputs: `manifest`, and `environment` if `runtime.environment` has one.

    Raises:
        ConfigError: the run is a training script.
        RankError: a rank failed, and not for lack of memory.
    """
    run = only(project.runs)
    if is_script(run.model_class):
        raise ConfigError(
            f'run "{run.name}" is a training script, whose steps Shardline does not know; try its settings in the '
            "script"
        )
    refuse_combined(run.settings, run.row.where, "has no settings to try")
    recheck_training(project, run)
    with own_work(project, f"{run.id}-find-{what}") as work:
        if what == "lr":
            _start(project, run, work, log, Path(output), inputs, run.settings.global_batch, what)
            return

        def measure(batch: int) -> MeasuredBatch:
            path = work / f"{batch}.json"
            _start(project, run, work, log, path, inputs, batch, what)
            return read_record(path, MeasuredBatch, remedy="run the command again")

        settings = run.settings
        unit = lcm(
            settings.nodes * settings.devices * settings.trainer.accumulate, settings.data.streams
        )
        found = largest_batch(measure, unit, settings.global_batch, is_safe=has_gpus(settings))
        write_json(Path(output), encode(found))


def _start(
    project: Project, run: RunPlan, work: Path, log: Path, output: Path, inputs: Inputs, batch: int,
    what: Literal["lr", "batch"],
) -> None:  # fmt: skip
    settings = structs.replace(run.settings, global_batch=batch)
    logging.info("trying a global batch of %d", batch)
    run_on_ranks(
        project,
        structs.replace(run.spec, settings=settings, init=init_of(run, inputs, work)),
        Find(what=what, output=output),
        work=work,
        rank_logs=project.layout.declared.logs_of_parts("find_setting", run.id),
        log=log,
        datasets=places_of(run, inputs),
        inputs=inputs,
    )


def largest_batch(
    measure: Callable[[int], MeasuredBatch], unit: int, start: int, *, is_safe: bool
) -> FoundBatch:
    """Return the largest global batch that fits into memory and into an epoch.

    Memory grows linearly with the batch, so a few tries are enough.

    Args:
        measure: Function that trains a few steps with a batch.
        unit: Batches are multiples of this number.
        start: First batch.
        is_safe: Whether to try batches that may not fit. On CPUs, they would end other programs.

    Raises:
        ShardlineError: A rank failed for another reason, or no batch fits.
    """
    tried: list[MeasuredBatch] = []
    fits: dict[int, MeasuredBatch] = {}
    fails: int | None = None
    batch: int | None = max(unit, start // unit * unit)
    while batch and len(tried) < _MOST_TRIES:
        try:
            found = fits[batch] = measure(batch)
        except RankError as error:
            if not (fits or _is_of_memory(error)):
                raise
            found, fails = MeasuredBatch(batch=batch, reason=str(error).splitlines()[0]), batch
        tried.append(found)
        batch = _next(fits, fails, unit, is_safe=is_safe)
    if not fits:
        raise ShardlineError(
            f"a global batch of {tried[-1].batch} does not fit into the memory of the ranks; use a smaller model, more "
            "devices, strategy: fsdp, or trainer.accumulate"
        )
    largest = max(fits)
    is_all = largest * _CLOSE >= _rows(fits) // unit * unit
    return FoundBatch(tried=tried, largest=largest, bound="rows" if is_all else "memory")


def _rows(fits: Mapping[int, MeasuredBatch]) -> int:
    """Return the samples of an epoch, of which a large batch leaves out the last."""
    return max(one.rows or 0 for one in fits.values())


def _next(
    fits: dict[int, MeasuredBatch], fails: int | None, unit: int, *, is_safe: bool
) -> int | None:
    """Return the batch to try next, or None at the end."""
    if not fits:
        assert fails is not None
        return fails // 2 // unit * unit
    low = max(fits)
    now = fits[low]
    assert now.peak_bytes is not None
    assert now.limit_bytes is not None
    bounds = [float(_rows(fits))]
    slope = _slope(fits)
    if slope is None or slope <= 0:
        bounds.append((2 if slope is None else 4) * low)
    else:
        bounds.append(low + (_SHARE * now.limit_bytes - now.peak_bytes) / slope)
        bounds.append(8 * low)
    if not is_safe and slope is None:  # at most twice the memory
        bounds.append(low * _SHARE * now.limit_bytes / now.peak_bytes)
    batch = int(min(bounds)) // unit * unit
    if fails is not None and batch >= fails:
        batch = (low + fails) // 2 // unit * unit
    return batch if batch >= low * _CLOSE and batch != fails else None


def _slope(fits: dict[int, MeasuredBatch]) -> float | None:
    """Return the memory of a sample of the global batch, in bytes; None with one measurement."""
    if len(fits) < 2:
        return None
    before, last = sorted(fits)[-2:]
    bytes_of = {batch: fits[batch].peak_bytes or 0 for batch in (before, last)}
    return (bytes_of[last] - bytes_of[before]) / (last - before)


def _is_of_memory(error: RankError) -> bool:
    return error.is_killed or "memory" in str(error).lower()
