"""Comparison of a training's first steps, trained again, with the recorded values."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from shardline.config.plans import RunPlan
from shardline.config.scripts import is_script
from shardline.core.canonical import digest
from shardline.core.errors import ConfigError, LaunchError, ShardlineError
from shardline.core.files import read_json_lines
from shardline.core.package import remake
from shardline.records.base import read_record
from shardline.records.metrics import MetricLine
from shardline.records.trainings import TrainingProvenance
from shardline.results.accept.candidates import Candidate

_SHOWN = 3
_PLACE = ("step", "epoch")
_CLOCK = "wall_s"
# step, epoch and name of a value
_Key = tuple[int, int, str]
Value = float | str | None


def compare_first_steps(
    candidate: Candidate, steps: int, *, config: Path, profile: str, arguments: Sequence[str] = ()
) -> dict[str, int]:
    """Train the first steps of a run, and compare their metrics with those of the earlier training.

    Args:
        candidate: Run and earlier training.
        steps: Number of optimiser steps.
        config: Config file of the project.
        profile: Snakemake profile, which decides where the ranks start.
        arguments: Further arguments for Snakemake.

    Returns:
        `steps`, the number of trained steps, and `values`, the number of bit-identical values.

    Raises:
        ConfigError: No value of these steps is recorded, or the steps were changed after a divergence.
        LaunchError: The training failed. Snakemake has printed the reason.
        ShardlineError: A value differs.
    """
    run = candidate.asked
    assert isinstance(run, RunPlan)
    earlier = run.layout.run(candidate.earlier)
    recorded = _recorded(candidate, earlier, steps)
    path = run.layout.declared.first_steps(run.id, steps)
    try:
        if not remake([path], config=config, profile=profile, arguments=arguments):
            raise LaunchError(
                f"the first steps of {candidate.title} could not be trained; the reason is printed above and recorded "
                f"in {run.layout.declared.log('train_first_steps', f'{run.id}-{steps}')}"
            )
        different = differences(recorded, values_of(read_json_lines(path), steps))
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # missing, or in use by another comparison
            path.parent.rmdir()
    if different:
        more = f", and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise ShardlineError(
            f"{candidate.title}: of {len(recorded)} values that {earlier} recorded in its first {steps} steps, "
            f"{len(different)} differ ({'; '.join(different[:_SHOWN])}{more}), so the result is not accepted; "
            "train the run again, or accept without --after-steps"
        )
    return {"steps": steps, "values": len(recorded)}


def values_of(records: Iterable[Mapping[str, Any]], steps: int) -> dict[_Key, Value]:
    """Return the values of the first steps in a file of metrics, and digests of images, tables and texts."""
    found: dict[_Key, Value] = {}
    number = Counter[_Key]()
    for record in records:
        if record["step"] > steps:
            continue
        place = record["step"], record.get("epoch", 0)
        line = MetricLine.of(record)
        for one in (line and line.logged) or ():
            key = (*place, f"logged {one.name}")
            found[(*place, f"{key[2]} {number[key]}")] = digest(to_builtins(one))[:12]
            number[key] += 1
        if not (line and line.logged):
            found |= {
                (*place, name): value
                for name, value in record.items()
                if name not in (*_PLACE, _CLOCK)
            }
    return found


def differences(recorded: Mapping[_Key, Value], again: Mapping[_Key, Value]) -> list[str]:
    """Return a sentence for each recorded value that differs, in the order of steps.

    Ignores values that were not recorded: the earlier training may have logged fewer steps.
    """
    missing = object()
    return [
        f"{key[2]} at step {key[0]} {value} -> {again.get(key, 'missing')}"
        for key, value in sorted(recorded.items(), key=lambda item: item[0])
        if again.get(key, missing) != value
    ]


def _recorded(candidate: Candidate, earlier: Path, steps: int) -> dict[_Key, Value]:
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
            f"--after-steps {steps}: {earlier} diverged, and its training was changed from step {min(changed)} "
            "on; use fewer steps"
        )
    records = read_json_lines(earlier / "metrics.jsonl")
    found = values_of(records, steps)
    if not found:
        first = min((record["step"] for record in records), default=None)
        raise ConfigError(
            f"--after-steps {steps}: {earlier}/metrics.jsonl contains no value of these steps; use at least {first} "
            "steps, the first with values"
        )
    return found
