"""Averages and ensembles of runs: what counts in their identity, and what must agree with their members."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import structs

from shardline.config.callbacks import CALLBACKS
from shardline.config.layout import ResultsLayout
from shardline.config.resolved import Member, RunSpec
from shardline.config.scripts import is_script
from shardline.config.settings import Plain
from shardline.config.settings.run_settings import Ensemble, RunSettings
from shardline.config.validate import Problems
from shardline.core.errors import ConfigError
from shardline.records.base import read_record
from shardline.records.identities import IdentityDocument, weights_of_inputs
from shardline.records.trainings import TrainingProvenance

_REMEDY = "run `shardline verify`, which names damaged results"
AVERAGE: Final = "average"
ENSEMBLE: Final = "ensemble"
KINDS: tuple[Literal["average"], Literal["ensemble"]] = (AVERAGE, ENSEMBLE)

# settings that an average or an ensemble reads, beside those of the evaluation
_READ = {
    "accelerator", "code_files", "data", "deterministic", "devices", "elastic", "fold", "global_batch", "model_args",
    "nodes", "precision", "seed", "strategy", "uncounted_args",
}  # fmt: skip
_READ_BY = {
    AVERAGE: {
        "checkpoint.mode", "checkpoint.monitor", "trainer.accumulate", "trainer.benchmark", "trainer.inference_mode",
        "trainer.limit_train_batches", "trainer.limit_val_batches", "trainer.overfit_batches",
    },
    ENSEMBLE: {"trainer.inference_mode"},
}  # fmt: skip


def kind_of(settings: Plain) -> Literal["average", "ensemble"] | None:
    """Return `average` or `ensemble` if settings ask for one in place of a training, else None."""
    return next((kind for kind in KINDS if settings.get(kind) is not None), None)


def runs_of(settings: Plain) -> list[str]:
    """Return the members that an average or an ensemble names, as written; none for those of a sweep."""
    kind = kind_of(settings)
    named = settings[kind] if kind else []
    found = named["of"] if isinstance(named, Mapping) else named
    return [] if isinstance(found, str) else [*found]


def sweep_of(settings: Plain) -> str:
    """Return the sweep whose trials an average or an ensemble combines; "" if it names runs."""
    kind = kind_of(settings)
    named = settings[kind] if kind else []
    found = named["of"] if isinstance(named, Mapping) else named
    return found if isinstance(found, str) else ""


def counted(settings: Plain) -> dict[str, Any]:
    """Return the settings that count in the identity of an average or an ensemble; others unchanged.

    Members count by their own identities, see `bases`.

    Args:
        settings: Settings without their legacy values.
    """
    kind = kind_of(settings)
    if kind is None:
        return {**settings}
    read = _READ | _READ_BY[kind] | {"evaluation"}
    found = {key: value for key, value in settings.items() if key in read}
    for group in ("trainer", "checkpoint"):
        keys = settings.get(group, {})
        if below := {key: value for key, value in keys.items() if f"{group}.{key}" in read}:
            found[group] = below
    how = settings[kind] if isinstance(settings[kind], Mapping) else {}
    usual = (None, Ensemble(of=["run"]).outputs)
    own = {key: value for key, value in how.items() if key != "of" and value not in usual}
    return found | {kind: own}


def code_read(paths: Mapping[str, str], settings: RunSettings) -> dict[str, str]:
    """Return the import paths that a run reads, see `code_paths`: an average or an ensemble trains nothing.

    Args:
        paths: Import paths by part of the identity document.
    """
    if settings.combined is None:
        return {**paths}
    unread = ("optim", "schedule", CALLBACKS)
    return {part: path for part, path in paths.items() if not part.startswith(unread)}


def with_runs(settings: RunSettings, resolved: Sequence[str]) -> RunSettings:
    """Return the settings of an average or an ensemble with the ids of its members or study, as `run.json` has them.

    It has no initial weights, whatever the defaults of the config say.

    Args:
        resolved: See `Base.resolved`.
    """
    if settings.combined is None:
        return settings
    is_sweep = isinstance(settings.combined.of, str)
    combined = structs.replace(settings.combined, of=resolved[0] if is_sweep else [*resolved])
    key = ENSEMBLE if isinstance(combined, Ensemble) else AVERAGE
    return structs.replace(settings, init_from=None, **{key: combined})


def with_members(spec: RunSpec, layout: ResultsLayout) -> RunSpec:
    """Return a run of `run.json` with the places of its members; those of a study are in its sealed record.

    Raises:
        DataError: The record cannot be read.
    """
    named = spec.settings.combined.of if spec.settings.combined else []
    if isinstance(named, str):
        path = layout.run(spec.run) / "provenance.json"
        training = read_record(path, TrainingProvenance, remedy=_REMEDY).training
        ids = [one.run for one in training.combined.members] if training.combined else []
    else:
        ids = [one.partition(":")[2] for one in named]
    members = tuple(Member(run=run, file=layout.model(run), title=f"run {run}") for run in ids)
    return structs.replace(spec, members=members)


def check_combined(
    settings: RunSettings, set_by_row: Mapping[str, Any], model_class: str, where: str, *, has_test_step: bool | None
) -> None:  # fmt: skip
    """Reject settings that an average or an ensemble does not read, and models that cannot be combined.

    Args:
        set_by_row: Settings in the run's own row, by dotted key.
        where: File and row, the start of messages.
        has_test_step: Whether the model defines `test_step`; None if unknown.

    Raises:
        ConfigError: One line for each problem.
    """
    if settings.combined is None:
        return
    problems = Problems()
    kind = ENSEMBLE if isinstance(settings.combined, Ensemble) else AVERAGE
    if settings.average is not None and settings.ensemble is not None:
        problems.found.append("average and ensemble are both given; leave one out")
    if not {AVERAGE, ENSEMBLE} & {*set_by_row}:
        problems.found.append(
            f"{kind} is given under defaults, for all runs; write it in the run table, as a column of its own"
        )
    if is_script(model_class):
        problems.found.append(
            f"{kind} is given, but {model_class} is a training script, whose model Shardline does not know; combine "
            "its weights in the script"
        )
    if kind == ENSEMBLE and has_test_step:
        problems.found.append(
            f"ensemble averages what forward returns, but {model_class} has a test_step, which is its evaluation; use "
            "average, which averages the weights, or drop the test_step"
        )
    if settings.combined.best and not isinstance(settings.combined.of, str):
        problems.found.append(
            f"{kind}.best={settings.combined.best} is given for a list of runs, expected a key of sweeps in {kind}.of; "
            "leave it out, and list only the runs to combine"
        )
    read = _READ | _READ_BY[kind] | {"evaluation", *KINDS}
    for key in sorted(set_by_row):
        if not any(key == one or key.startswith(f"{one}.") for one in read):
            problems.found.append(
                f"{key} has no effect on {_an(kind)}, which trains nothing; leave it out of this row"
            )
    problems.found = [f"{where}: {text}" for text in problems.found]
    problems.refuse()


def refuse_combined(settings: RunSettings, where: str, why: str) -> None:
    """Reject an average or an ensemble where a training is expected.

    Raises:
        ConfigError: The run trains nothing.
    """
    if settings.combined is not None:
        kind = ENSEMBLE if isinstance(settings.combined, Ensemble) else AVERAGE
        raise ConfigError(
            f"{where}: the run is {_an(kind)}, which trains nothing and {why}; name one of its members"
        )


def _an(kind: str) -> str:
    return f"an {kind}"


# Settings that must be those of each member, beside `model_args`.
_SHARED = ("data.normalize", "fold")


def check_trials(
    name: str, varied: Collection[str], trials: int, settings: RunSettings, set_by_row: Collection[str], where: str,
) -> None:  # fmt: skip
    """Reject a sweep whose trials have other networks or data than their average or ensemble.

    A row that sets an argument of the model says which value its own model has, for arguments without weights.

    Args:
        name: Key of `sweeps`.
        varied: Settings that the sweep varies, by dotted key.
        trials: Number of trials of the sweep.
        settings: Settings of the average or ensemble.
        set_by_row: Settings in its own row, by dotted key.
        where: File and row, the start of messages.

    Raises:
        ConfigError: The message lists the settings.
    """
    combined = settings.combined
    assert combined is not None
    kind = ENSEMBLE if isinstance(combined, Ensemble) else AVERAGE
    args = [key for key in varied if key.startswith("model_args.") and not _is_set(key, set_by_row)]
    if found := [*args, *(key for key in varied if key in _SHARED)]:
        hint = (
            f"; or, for an argument that changes no weights, set {args[0]} in this row"
            if args
            else ""
        )
        raise ConfigError(
            f"{where}: {kind} names the sweep {name}, whose trials differ in {', '.join(found)}, expected "
            f"trials of one network on the same data; list runs that agree{hint}"
        )
    if combined.best and combined.best > trials:
        raise ConfigError(
            f"{where}: {kind}.best={combined.best}, expected at most the {trials} trials of sweeps.{name}; "
            "lower it, or leave it out for all trials"
        )


def _is_set(key: str, by_row: Collection[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in by_row)


def check_member(
    mine: IdentityDocument, member: IdentityDocument, name: str, where: str, *, kind: str,
    but: Collection[str] = (),
) -> None:  # fmt: skip
    """Reject a member with another model or other data than its average or ensemble.

    Args:
        mine: Identity document of the average or ensemble.
        member: Identity document of the member.
        name: Member as written.
        where: File and row, the start of messages.
        but: Arguments of the model that may differ, by dotted key.

    Raises:
        ConfigError: The message lists what differs.
    """
    found = [*_differences(mine, member, but)]
    if ENSEMBLE in member["settings"]:
        found = ["it is an ensemble, which has no weights of its own"]
    if "script" in member.get("versions", {}):
        found = ["it is a training script, whose model Shardline does not know"]
    if found:
        raise ConfigError(
            f"{where}: {kind} names {name}, but {'; '.join(found)}; expected runs of this row's model, model_args and "
            "dataset; give this row those of its members, or name other runs"
        )


def _differences(
    mine: IdentityDocument, member: IdentityDocument, but: Collection[str]
) -> Iterator[str]:
    """Yield a sentence part for each part of two documents that must be equal."""
    for what in ("model", "code of the model"):
        one, other = (
            doc.get("model") if what == "model" else doc.get("code", {}).get("model")
            for doc in (mine, member)
        )
        if one != other:
            yield f"its {what} is {other or 'of your own'}, and this row's {one or 'of your own'}"
    args, others = (doc["settings"].get("model_args", {}) for doc in (mine, member))
    for key in sorted({*args, *others}):
        if args.get(key) != others.get(key) and f"model_args.{key}" not in but:
            yield f"its model_args.{key} is {others.get(key)}, and this row's {args.get(key)}"
    data, its_data = (sorted(weights_of_inputs(doc["inputs"])) for doc in (mine, member))
    if data != its_data:
        yield f"its dataset is {', '.join(its_data)}, and this row's {', '.join(data)}"
    fold, its_fold = (doc["settings"].get("fold") for doc in (mine, member))
    if fold != its_fold:
        yield f"it tests on fold {its_fold}, and this row on fold {fold}, whose rows the member may have learnt"
    normal, its_normal = (
        doc["settings"].get("data", {}).get("normalize", "standard") for doc in (mine, member)
    )
    if normal != its_normal:
        yield f"its data.normalize is {its_normal}, and this row's {normal}"
