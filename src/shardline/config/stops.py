"""What stops weak trials of a sweep early: checks of `stop`, and the settings of a run at a rung."""

from collections.abc import Iterator
from typing import Any

from shardline.config.plans import RunPlan
from shardline.config.rungs import Brackets
from shardline.config.scripts import is_script
from shardline.config.settings import Plain
from shardline.config.settings.run_settings import RunSettings
from shardline.config.settings.sweep_settings import MedianSettings, RungSteps, SweepSettings
from shardline.identity.length_reads import length_reads
from shardline.records.sweeps import Unit

_LENGTH = ("trainer.max_epochs", "trainer.max_steps")
# that decide where a training may end or validates, which has to be the same at all rungs
_ENDS = (
    "trainer.min_epochs", "trainer.min_steps", "trainer.validate_every_epochs", "trainer.val_check_interval",
)  # fmt: skip


def halving_of(entry: SweepSettings) -> Brackets | None:
    """Return the promotions of a sweep with `stop.halving`."""
    if entry.stop is None or entry.stop.halving is None:
        return None
    return Brackets(rungs=rungs_of(entry), keep=entry.stop.halving.keep)


def median_of(entry: SweepSettings) -> MedianSettings | None:
    """Return the rule of a sweep with `stop.median`."""
    return entry.stop.median if entry.stop else None


def rungs_of(entry: SweepSettings) -> list[int]:
    """Return the epochs or steps of each rung; empty for a sweep that stops no trial."""
    found = _given(entry)
    return [*(found.steps if isinstance(found, RungSteps) else found)]


def unit_of(entry: SweepSettings) -> Unit:
    """Return what the rungs of a sweep count."""
    return "step" if isinstance(_given(entry), RungSteps) else "epoch"


def _given(entry: SweepSettings) -> list[int] | RungSteps:
    found = entry.stop and (entry.stop.halving or entry.stop.median)
    return found.rungs if found else []


def at_rung(project: Any, base: RunPlan, changed: Plain, entry: SweepSettings, rung: int) -> Plain:
    """Return the settings of a trial, with those of its length at a rung.

    The schedule ends where it ends for the last rung, so a longer rung continues a shorter one. At the last rung this
    is the length of the training itself, so its run is that of a row without a horizon.
    """
    if not (rungs := rungs_of(entry)):
        return changed
    unit = unit_of(entry)
    if unit == "epoch":
        found = {**changed, "trainer.max_epochs": rungs[rung]}
    else:
        found = {**changed, "trainer.max_epochs": -1, "trainer.max_steps": rungs[rung]}
    schedule = base.settings.schedule
    given = [changed.get(f"schedule.{key}", getattr(schedule, key)) for key in ("epochs", "steps")]
    is_constant = changed.get("schedule.name", schedule.name) == "constant"
    has_end = not is_constant and not has_own_optimizer(project, base)
    if has_end and given == [None, None] and rung < len(rungs) - 1:
        found[f"schedule.{unit}s"] = rungs[-1]
    return found


def has_own_optimizer(project: Any, base: RunPlan) -> bool:
    """Return whether the model makes its optimiser itself, so that `optim` and `schedule` have no effect."""
    return project.documents.has_method(base.model_class, "configure_optimizers") is True


def problems_of_stop(entry: SweepSettings) -> Iterator[str]:
    """Yield the problems of `stop` alone; each begins with the key."""
    if entry.stop is None:
        return
    given = [key for key in ("halving", "median") if getattr(entry.stop, key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        yield f".stop sets {found}, expected halving or median; keep one of them"
        return
    place, rungs = f".stop.{given[0]}", rungs_of(entry)
    if rungs != sorted(set(rungs)):
        yield f"{place}.rungs={rungs}, expected numbers of {unit_of(entry)}s that rise; write {sorted(set(rungs))}"
        return
    for key in _LENGTH:
        if key in entry.space:
            yield f".space.{key} is the length of a training, which {place[1:]}.rungs sets; drop it from the space"
    for key in _ENDS:
        if key in entry.space:
            yield (
                f".space.{key} decides where a training validates and ends, which {place[1:]} compares at all rungs "
                "alike; set it in the base run"
            )
    if (median := median_of(entry)) is None:
        return
    if entry.seeds > 1:
        yield (
            f".seeds={entry.seeds}, but stop.median compares single trainings; set seeds: 1, or use stop.halving"
        )
    if median.warmup_rungs >= len(rungs) - 1:
        yield (
            f"{place}.warmup_rungs={median.warmup_rungs} of {len(rungs)} rungs leaves none where a trial could stop; "
            f"lower it to at most {len(rungs) - 2}, or drop stop"
        )


def problems_with_base(entry: SweepSettings, base: RunPlan, project: Any) -> Iterator[str]:
    """Yield why a longer rung could not continue a shorter one of the base run; each begins with the key."""
    if not (rungs := rungs_of(entry)):
        return
    key = "halving" if halving_of(entry) else "median"
    place, settings = f".stop.{key}", base.settings
    if is_script(base.model_class) or settings.combined is not None:
        yield f"{place}: base={entry.base} is not trained by Shardline's Trainer, so it has no rungs; drop stop"
        return
    if unit_of(entry) == "epoch":
        yield from _problems_of_epochs(entry, settings, place, rungs)
    elif (least := settings.trainer.min_steps) > rungs[0]:
        yield (
            f"{place}.rungs={{steps: {rungs}}} begins before trainer.min_steps={least} of base={entry.base}; "
            "lower that number, or raise the first rung"
        )
    if reads := length_reads(project.code, base.code_paths.values()):
        yield (
            f"{place}: {reads[0]}, which differs between rungs, so that a longer rung could not continue a shorter "
            "one; take the number from an argument of the model, or drop stop"
        )


def _problems_of_epochs(
    entry: SweepSettings, settings: RunSettings, place: str, rungs: list[int]
) -> Iterator[str]:
    if (steps := settings.trainer.max_steps) > 0:
        wanted = sorted({max(1, steps // 9), max(1, steps // 3), steps})
        yield (
            f"{place}.rungs counts epochs, but base={entry.base} ends at trainer.max_steps={steps}; write "
            f"rungs: {{steps: {wanted}}}, or set trainer.max_epochs in that row"
        )
    every = settings.trainer.validate_every_epochs
    if odd := [epochs for epochs in rungs if epochs % every]:
        yield (
            f"{place}.rungs={rungs}: base={entry.base} validates every {every} epochs, and not after {odd[0]}; use "
            f"multiples of {every}, or set trainer.validate_every_epochs=1"
        )
    if (interval := settings.trainer.val_check_interval) != 1.0:
        yield (
            f"{place}.rungs: base={entry.base} sets trainer.val_check_interval={interval}, so "
            "that the end of a rung may be a validation that a longer one has not; set it to 1.0, or drop stop"
        )
    if (least := settings.trainer.min_epochs) > rungs[0]:
        yield (
            f"{place}.rungs={rungs} begins before trainer.min_epochs={least} of base={entry.base}; "
            "lower that number, or raise the first rung"
        )
