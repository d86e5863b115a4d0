"""Bases of runs in jobs: the weights that a training begins from, and the check that they are there."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, structs

from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.manifest import MANIFEST
from shardline.config.bases import Base
from shardline.config.layout import ResultsLayout
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import InitWeights
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_object
from shardline.pipeline.job_frame import REMAKE
from shardline.records.origins import BaseRef

if TYPE_CHECKING:
    from shardline.pipeline.started_ranks import Inputs
    from shardline.results.sweeps.combined_trials import StudyMembers


def init_of(run: RunPlan, inputs: "Inputs", work: Path) -> InitWeights | None:
    """Return the weights that a training begins from, as its ranks can read them.

    Args:
        inputs: `bases`; the project's own path if Snakemake passed none.
        work: folder in the store, which all nodes see.

    Raises:
        DataError: the weights of the base are missing.
    """
    init = run.spec.init
    if init is None or init.source != "run":
        return init
    base = next(one for one in run.bases if one.kind == "init")
    if base.state == "last":
        state = last_state(base, run.layout.declared)
        if state is None:
            raise DataError(f"{run.row.where}: {_without_state(base)}")
        return structs.replace(init, file=state, sha256=file_sha256(state / MANIFEST))
    # the start of Snakemake does not need it
    from shardline.pipeline.started_ranks import seen_by_all

    model = files_of_bases(run, inputs)[base.run]
    if not model.is_file():
        raise DataError(f"{run.row.where}: {without_weights(base)}")
    sha256 = file_sha256(model)
    return structs.replace(init, file=seen_by_all(model, run.settings, work), sha256=sha256)


def read_bases(run: RunPlan, inputs: "Inputs", init: InitWeights | None) -> tuple[BaseRef, ...]:
    """Return the record of what a training begins from, with the digests of the weights.

    Args:
        inputs: `bases`; the project's own paths if Snakemake passed none.
        init: result of `init_of`.
    """
    found, files = [], files_of_bases(run, inputs)
    for base in run.bases:
        if base.source == "sweep":
            found += records_of_study(run, base)
            continue
        record, file = base.record, files.get(base.run)
        if init and base.kind == "init":
            record = structs.replace(record, sha256=init.sha256)
            if base.state == "last":
                record = structs.replace(record, step=int(init.file.name.removeprefix("step-")))
        elif file and file.is_file():
            record = structs.replace(record, sha256=file_sha256(file))
        found.append(record)
    return tuple(found)


def records_of_study(run: RunPlan, base: Base) -> list[BaseRef]:
    """Return the records of a study, with the trials that are left out, and of the runs of its other trials."""
    found = study_members(run, base)
    layout, named = run.layout.declared, BaseRef(kind=base.kind, source="run", identity="")
    members = [
        structs.replace(
            named,
            run=member,
            identity=digest(read_object(layout.run(member) / "identity.json", remedy=REMAKE)),
            sha256=file_sha256(layout.model(member)),
        )
        for member in found.runs
    ]
    return [structs.replace(base.record, left_out=found.left_out or UNSET), *members]


def study_members(run: RunPlan, base: Base) -> "StudyMembers":
    """Return the trials of a finished study that a run combines; see `members_of_study`."""
    from shardline.results.sweeps.combined_trials import members_of_study

    combined = run.settings.combined
    assert combined is not None
    return members_of_study(base, combined.best or None, run.row.where)


def files_of_bases(run: RunPlan, inputs: "Inputs") -> dict[str, Path]:
    """Return the sealed weights that a job reads, by the id of the base."""
    layout = run.layout.declared
    paths = {one.run: layout.model(one.run) for one in run.bases if one.run}
    if not (given := inputs.get("bases")):
        return paths
    listed = dict.fromkeys([given] if isinstance(given, str) else given)
    # the inputs of `train`, with the finished study of a sweep, which has no weights
    named = dict.fromkeys(one.run for one in run.bases if one.is_made)
    return {key: Path(file) for key, file in zip(named, listed, strict=True) if key}


def last_state(base: Base, layout: ResultsLayout) -> Path | None:
    """Return the folder of the last training checkpoint of a sealed run; None if it is not kept."""
    saved = list_saved(layout.work(base.run) / "checkpoints")
    return saved[0].path if saved and saved[0].identity == base.identity else None


def check_bases(project: Project, exists: Callable[[Path], bool], *, has_store: bool) -> None:
    """Reject runs to train whose bases are missing, if no job makes these.

    Args:
        exists: function that returns whether a declared file exists.
        has_store: whether this machine has the store of the jobs.

    Raises:
        ConfigError: weights of a base outside of the config, or the last state of a sealed base, are missing.
    """
    found = []
    named = project.named_runs()
    for run in project.runs.values():
        bases = [one for one in run.bases if one.run]
        if not has_store:
            found += [_is_short(run, one) for one in bases if one.is_named_in_part(named)]
        for base in bases if bases and not exists(run.model) else ():
            if base.is_outside and not exists(base.path):
                found.append(f"{run.row.where}: {without_weights(base)}")
            elif has_store and base.state == "last" and _is_lost(base, project.layout, exists):
                found.append(f"{run.row.where}: {_without_state(base)}")
    if found:
        raise ConfigError("\n".join(found))


def _is_short(run: RunPlan, base: Base) -> str:
    return (
        f"{run.row.where}: init_from={base.name} is the beginning of an identity, expected all of it, since the "
        f"machines of the jobs have no results to search; write run:{base.identity}"
    )


def _is_lost(base: Base, layout: ResultsLayout, exists: Callable[[Path], bool]) -> bool:
    return exists(base.path) and last_state(base, layout) is None


def without_weights(base: Base) -> str:
    """Return the message for a base whose weights are missing."""
    key = "init_from" if base.kind == "init" else base.kind
    return (
        f"{key}={base.name}: the weights of run {base.run} are missing ({base.path}), expected a sealed run; put its "
        "row into the table again, restore its results, or name another base"
    )


def _without_state(base: Base) -> str:
    return (
        f"init_from={base.name}: the last training checkpoint of run {base.run} is not kept, expected it in the store; "
        f"begin from its sealed weights (run:{base.run}), or train it again (shardline rm {base.run}) with "
        "runtime.checkpoint.after_sealing=last"
    )
