"""Checks and import paths of optimiser, schedule and parameter groups."""

from collections.abc import Iterator

from shardline.config.schedules import too_short
from shardline.config.settings.optim_settings import Schedule
from shardline.config.settings.run_settings import RunSettings
from shardline.config.validate import Problems

SHIPPED_OPTIMISERS = {
    "sgd": "torch.optim:SGD", "adam": "torch.optim:Adam", "adamw": "torch.optim:AdamW",
}  # fmt: skip
SHIPPED_SCHEDULES = ("constant", "linear", "cosine", "wsd")
MATCH = "match"  # key of a group with its pattern


def check_optim(settings: RunSettings, where: str, *, is_script: bool) -> None:
    """Reject settings of optimiser and schedule that exclude each other.

    Args:
        where: File and row, the start of messages.
        is_script: Whether a script reads these settings itself.

    Raises:
        ConfigError: Settings exclude each other; one line for each.
    """
    problems = Problems()
    of_model = () if is_script else (*_of_optimiser(settings), *_of_schedule(settings))
    of_script = _of_script(settings) if is_script else ()
    problems.found = [f"{where}: {text}" for text in (*of_model, *of_script)]
    problems.refuse()


def _of_script(settings: RunSettings) -> Iterator[str]:
    known = {"optim": SHIPPED_OPTIMISERS, "schedule": SHIPPED_SCHEDULES}
    for key, name in (("optim", settings.optim.name), ("schedule", settings.schedule.name)):
        if name not in known[key]:
            yield (
                f"{key}.name={name} is an import path, but a training script makes its {key} itself, expected one of "
                f"{', '.join(known[key])}; name the class in a column of model_args, which the script reads"
            )
    if settings.freeze:
        yield "freeze is given, but a training script freezes its parameters itself; leave it out"
    if settings.init_from is not None:
        yield (
            f"init_from={settings.init_from}, but a training script loads its weights itself; leave it out, and name "
            "the file in a column of model_args, whose bytes count"
        )
    if settings.checkpoint.milestones:
        yield "checkpoint.milestones is given, but a training script saves its states itself; leave it out"


def _of_optimiser(settings: RunSettings) -> Iterator[str]:
    optim = settings.optim
    own = ["lr", "weight_decay", *(["momentum"] if optim.name == "sgd" else [])]
    for key in (key for key in own if key in optim.args):
        yield f"optim.args.{key} is given, but {key} is a setting of its own; write optim.{key}"
    for place, group in enumerate(optim.groups):
        key, pattern = f"optim.groups.{place}", group.get(MATCH)
        if not isinstance(pattern, str) or not pattern:
            yield (
                f"{key}.{MATCH} is {'missing' if pattern is None else pattern}, expected a pattern of parameters' "
                'names such as "backbone.*"; add it'
            )
        elif len(group) == 1:
            yield f"{key} has no option beside {MATCH}={pattern}; add one, such as lr"


def _of_schedule(settings: RunSettings) -> Iterator[str]:
    schedule = settings.schedule
    what = f"schedule.name={schedule.name}"
    yield from _of_horizon(settings)
    if schedule.name != "wsd":
        for key in ("decay_steps", "decay"):
            if (value := getattr(schedule, key)) != getattr(Schedule(), key):
                yield f"schedule.{key}={value}, but {what} has no such phase; leave it out, or use schedule.name=wsd"
    elif not schedule.decay_steps:
        yield (
            "schedule.name=wsd needs schedule.decay_steps, the steps in which the rate falls; set it, for example to a "
            "tenth of the steps, or use schedule.name=constant"
        )
    if schedule.name not in SHIPPED_SCHEDULES:
        if schedule.warmup_steps:
            yield (
                f"schedule.warmup_steps={schedule.warmup_steps}, but {what} is an import path; set it to 0, and warm "
                "up within the schedule"
            )
        return
    known = schedule.steps or (0 if schedule.epochs else settings.trainer.max_steps)
    if known > 0 and (problem := too_short(schedule, known)):
        yield problem
    remedy = "leave it out, or name a class by import path"
    if schedule.args:
        yield f"schedule.args is given, but {what} takes no further arguments; {remedy}"
    if schedule.interval != "step":
        yield f"schedule.interval={schedule.interval}, but {what} steps after each optimiser step; {remedy}"
    if schedule.monitor is not None:
        yield f"schedule.monitor={schedule.monitor}, but {what} watches no metric; {remedy}"


def _of_horizon(settings: RunSettings) -> Iterator[str]:
    schedule = settings.schedule
    given = {f"schedule.{key}": getattr(schedule, key) for key in ("epochs", "steps")}
    given = {key: value for key, value in given.items() if value is not None}
    shown = " and ".join(f"{key}={value}" for key, value in given.items())
    if len(given) > 1:
        yield f"{shown} are two ends of one schedule; drop one"
    if given and schedule.name == "constant":
        yield f"{shown}, but schedule.name=constant has no end; leave it out"
    if schedule.steps is not None and schedule.interval == "epoch":
        yield f"schedule.steps={schedule.steps}, but schedule.interval=epoch counts epochs; use schedule.epochs"
