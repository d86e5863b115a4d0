"""What is wrong with the values of a sweep beside its base run, found by making runs of some of them."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from shardline.config.plans import RunPlan
from shardline.config.scripts import is_script
from shardline.config.settings.sweep_settings import SweepSettings
from shardline.config.spaces import Space
from shardline.config.stops import at_rung, has_own_optimizer
from shardline.config.sweep_checks import notes_on_sweep
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import canonical_json
from shardline.core.errors import ConfigError

Variant = Callable[..., RunPlan]
_DRAWN = 16
_COMPARED = 8  # values of a setting


def problems_of_base(entry: SweepSettings, base: RunPlan, project: Any) -> Iterator[str]:
    """Yield what the base run does not do with the settings that vary; each begins with the key."""
    settings = base.settings
    if settings.combined is not None:
        kind = "average" if settings.average is not None else "ensemble"
        yield f".base={entry.base} is an {kind} of other runs, which trains nothing; name a run that trains"
        return
    if is_script(base.model_class):
        return
    if has_own_optimizer(project, base):
        for key in entry.space:
            if key.partition(".")[0] in ("optim", "schedule"):
                yield (
                    f".space.{key} has no effect, since model={base.row.model} has its own configure_optimizers; vary "
                    "an argument of the model (model_args) that the method reads"
                )
        return
    names = Space(entry.space).choices.get("optim.name", [settings.optim.name])
    if "optim.momentum" in entry.space and all(one in ("adam", "adamw") for one in names):
        yield (
            f".space.optim.momentum has no effect, since optim.name={', '.join(names)} has no momentum of this name; "
            "set optim.name: sgd in the base run, or drop it"
        )


def problems_of_values(project: Any, plan: SweepPlan, variant: Variant) -> Iterator[str]:
    """Yield settings that change no run, and the reason if no drawn settings can be trained.

    Args:
        variant: Function that returns the run of some settings, see `config.load.load_variant`.
    """
    for key in plan.space.keys:
        values = plan.space.values_of(key)[:_COMPARED]
        others = plan.space.settings_for(key)
        runs = [_run(project, plan, {**others, key: one}, variant) for one in values]
        ids = {one.id if isinstance(one, RunPlan) else one for one in runs}
        if len(runs) > 1 and len(ids) == 1 and isinstance(runs[0], RunPlan):
            yield (
                f".space.{key} changes no result: {' and '.join(map(canonical_json, values[:2]))} are the same run, "
                f"{runs[0].id}; drop it from the space, or set it in the base run"
            )
    drawn, impossible = impossible_rows(project, plan, variant)
    if drawn and len(impossible) == drawn:
        settings, reason = impossible[0]
        yield f".space: none of {drawn} drawn settings can be trained, for example {settings}: {reason}"


def impossible_rows(
    project: Any, plan: SweepPlan, variant: Variant
) -> tuple[int, list[tuple[str, str]]]:
    """Return how many rows were drawn from a space, and settings and reason of those that cannot be trained.

    With constraints none is drawn, since their purpose is to leave such rows out.
    """
    if plan.settings.constraints:
        return 0, []
    space, random = plan.space, Random(0)
    if plan.settings.sampler == "grid":
        rows = [*space.rows(_DRAWN)]
    else:
        rows = [space.random_row(random) for _ in range(_DRAWN)]
    settings = [space.settings_of(row) for row in rows]
    found = [(one, _run(project, plan, one, variant)) for one in settings]
    return len(rows), [(canonical_json(one), why) for one, why in found if isinstance(why, str)]


def notes_of(project: Any, plan: SweepPlan, variant: Variant) -> list[str]:
    """Return what is odd about a sweep, though it is allowed."""
    place = f"sweeps.{plan.name}"
    found = [f"{place}{one}" for one in notes_on_sweep(plan.settings, plan.trials)]
    base = project.runs[plan.base].settings.trainer
    length = base.max_epochs if plan.unit == "epoch" else base.max_steps
    if plan.rungs and length > 0 and length != plan.rungs[-1]:
        found.append(
            f"{place}: the last rung has {plan.rungs[-1]:,} {plan.unit}s, and base={plan.settings.base} trains "
            f"{length:,}; no trial trains longer than the last rung"
        )
    drawn, impossible = impossible_rows(project, plan, variant)
    if impossible:
        settings, reason = impossible[0]
        found.append(
            f"{place}.space: {len(impossible)} of {drawn} drawn settings cannot be trained, and such trials are "
            f"excluded, for example {settings}: {reason}; narrow the space, or set constraints"
        )
    return [*filter(None, [plan.note_on_rest]), *found]


def _run(
    project: Any, plan: SweepPlan, settings: dict[str, Any], variant: Variant
) -> RunPlan | str:
    """Return the run of some settings at the first rung, or the reason why there is none."""
    base = project.runs[plan.base]
    changed = at_rung(project, base, settings, plan.settings, 0)
    try:
        return variant(project, base, changed, name=plan.name, where="")
    except ConfigError as error:
        return "; ".join(line.removeprefix(": ") for line in str(error).splitlines())
