"""Members of averages and ensembles in jobs: the sealed weights that a job reads."""

import logging
from pathlib import Path

from msgspec import structs

from shardline.config.bases import Base
from shardline.config.combined import with_members
from shardline.config.plans import RunPlan
from shardline.config.resolved import Member, RunSpec
from shardline.core.errors import DataError
from shardline.core.files import make_folder
from shardline.pipeline.bases import files_of_bases, study_members, without_weights
from shardline.pipeline.started_ranks import Inputs, seen_by_all
from shardline.records.sweeps import Trial


def members_of(run: RunPlan, inputs: Inputs) -> tuple[Member, ...]:
    """Return the runs that an average or an ensemble combines, with the files that this job reads.

    Args:
        inputs: `bases`; the project's own paths if Snakemake passed none.

    Raises:
        DataError: the weights of a member are missing.
    """
    if study := run.study:
        return _members_of_study(run, study)
    if not (members := run.spec.members):
        return ()
    files = files_of_bases(run, inputs)
    for base in run.bases:
        if not files[base.run].is_file():
            raise DataError(f"{run.row.where}: {without_weights(base)}")
    return tuple(structs.replace(one, file=files[one.run]) for one in members)


def _members_of_study(run: RunPlan, base: Base) -> tuple[Member, ...]:
    found, layout = study_members(run, base), run.layout.declared
    for number, reason in found.left_out.items():
        logging.info("trial %s of sweep %s is left out: %s", number, base.name, reason)
    return tuple(
        Member(run=member, file=layout.model(member), title=_title(trial, base))
        for trial in found.trials
        for member in trial.runs
    )


def _title(trial: Trial, base: Base) -> str:
    """Return a trial for messages, with the settings that may give it another network."""
    args = [
        f"{key}={value}" for key, value in trial.settings.items() if key.startswith("model_args.")
    ]
    return f"trial {trial.trial} of {base.name}" + (f" ({', '.join(args)})" if args else "")


def members_of_ensemble(run: RunPlan, inputs: Inputs) -> tuple[Member, ...]:
    """Return the runs whose models an evaluation or a prediction reads; empty if a run is no ensemble.

    The members from a study are those of the sealed record.
    """
    if not run.members_of_ensemble:
        return ()
    if run.bases[0].source == "sweep":
        return with_members(run.spec, run.layout.declared).members
    return members_of(run, inputs)


def seen_members(spec: RunSpec, work: Path) -> RunSpec:
    """Return a run whose members all nodes can read, see `seen_by_all`.

    Args:
        work: folder in the store, which all nodes see.
    """
    found = []
    for one in spec.members if spec.settings.nodes > 1 else ():
        make_folder(work / one.run)  # all files have the same name
        file = seen_by_all(one.file, spec.settings, work / one.run)
        found.append(structs.replace(one, file=file))
    return structs.replace(spec, members=tuple(found)) if found else spec
