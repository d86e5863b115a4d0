"""The first steps trained again: whether they give the values that the earlier training recorded."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardline.config.plans import RunPlan
from shardline.config.scripts import is_script
from shardline.core.errors import ConfigError, LaunchError, ShardlineError
from shardline.core.files import read_json_lines
from shardline.core.package import remake
from shardline.records.base import read_record
from shardline.records.runs import TrainingProvenance
from shardline.results.accept.candidates import Candidate

_SHOWN = 3
_PLACE = ("step", "epoch")
_CLOCK = "wall_s"
# step, epoch and name of a recorded value
_Key = tuple[int, int, str]


def compare_first_steps(
    candidate: Candidate, steps: int, *, config: Path, profile: str, arguments: Sequence[str] = ()
) -> dict[str, int]:
    """Train a run's first steps as it is now, and compare their metrics with the earlier training's.

    Args:
        steps: optimiser steps.
        config: the project's config.
        profile: Snakemake's profile: where the ranks start.
        arguments: further words for Snakemake.

    Returns:
        What `accepted.json` holds of it: how many `steps` were trained again, and how many
        `values` compared, all of which are equal to the last bit.

    Raises:
        ConfigError: nothing is recorded of these steps, or they were not trained as planned.
        LaunchError: the steps could not be trained; Snakemake has reported why.
        ShardlineError: a value differs.
    """
    run = candidate.asked
    assert isinstance(run, RunPlan)
    earlier = run.layout.run(candidate.earlier)
    recorded = _recorded(candidate, earlier, steps)
    path = run.layout.declared.first_steps(run.id, steps)
    try:
        if not remake([path], config=config, profile=profile, arguments=arguments):
            raise LaunchError(
                f"the first steps of {candidate.title} could not be trained; the reason stands above, and in "
                f"{run.layout.declared.log('train_first_steps', f'{run.id}-{steps}')}"
            )
        different = differences(recorded, values_of(read_json_lines(path), steps))
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not there, or another comparison's
            path.parent.rmdir()
    if different:
        more = f", and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise ShardlineError(
            f"{candidate.title}: of {len(recorded)} values that {earlier} recorded in its first {steps} steps, "
            f"{len(different)} came out otherwise ({'; '.join(different[:_SHOWN])}{more}), so it is not accepted; "
            "train the run again, or accept without --after-steps"
        )
    return {"steps": steps, "values": len(recorded)}


def values_of(records: Iterable[Mapping[str, Any]], steps: int) -> dict[_Key, float | None]:
    """Return the values that a file of metrics holds of the first steps."""
    return {
        (record["step"], record.get("epoch", 0), name): value
        for record in records
        if record["step"] <= steps
        for name, value in record.items()
        if name not in (*_PLACE, _CLOCK)
    }


def differences(
    recorded: Mapping[_Key, float | None], again: Mapping[_Key, float | None]
) -> list[str]:
    """Return in words each recorded value that did not come out again, in the order of steps.

    A value that was not recorded is none: the earlier training may have logged fewer steps.
    """
    missing = object()
    return [
        f"{key[2]} at step {key[0]} {value} -> {again.get(key, 'missing')}"
        for key, value in sorted(recorded.items(), key=lambda item: item[0])
        if again.get(key, missing) != value
    ]


def _recorded(candidate: Candidate, earlier: Path, steps: int) -> dict[_Key, float | None]:
    run = candidate.asked
    assert isinstance(run, RunPlan)
    if is_script(run.model_class):
        raise ConfigError(
            f"{candidate.title} is a training script, whose steps Shardline does not know; accept it without "
            "--after-steps"
        )
    path = earlier / "provenance.json"
    trained = read_record(path, TrainingProvenance, remedy="train the run again").training
    changed = [done.first for done in trained.interventions or []]
    if changed and min(changed) <= steps:
        raise ConfigError(
            f"--after-steps {steps}: {earlier} diverged, and was trained in another way from step {min(changed)} "
            "on; compare fewer steps than that"
        )
    records = read_json_lines(earlier / "metrics.jsonl")
    found = values_of(records, steps)
    if not found:
        first = min((record["step"] for record in records), default=None)
        raise ConfigError(
            f"--after-steps {steps}: {earlier}/metrics.jsonl records nothing of these steps; its first record is of "
            f"step {first}"
        )
    return found
