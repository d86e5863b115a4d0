"""Loading of a project from config and run table: validation, resolution, identities."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import UNSET

from shardline.config import checks, predictions, user_files
from shardline.config.bases import Base, Bases
from shardline.config.callbacks import RUNTIME_CALLBACKS
from shardline.config.combined import check_member, check_trials
from shardline.config.folds import rows_of_folds
from shardline.config.layout import ResultsLayout
from shardline.config.load_datasets import (
    Mixes,
    load_datasets,
    load_predicted,
    parts_of,
    weights_of_row,
)
from shardline.config.load_runs import checked_settings, load_run
from shardline.config.load_scaling import load_scaling
from shardline.config.load_sweeps import load_sweeps, study_of
from shardline.config.objects import paths_of_callbacks
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.config.references import (
    RowNames,
    in_order,
    references_of_row,
    states_of_rows,
    with_bases,
)
from shardline.config.resolved import as_plain, as_type
from shardline.config.run_table import Row, check_name, check_names, read_rows
from shardline.config.settings import Plain, fill, schema_of
from shardline.config.settings.config import Config, Runtime
from shardline.config.settings.sweep_settings import SweepSettings
from shardline.config.user_files import plain, read_config, refuse_duplicates
from shardline.config.validate import Problems, coerce, validate
from shardline.core.errors import ConfigError
from shardline.core.package import workflow_folder
from shardline.core.redaction import pass_on


def load_project(
    config: Plain | None = None,
    *,
    workdir: Path | None = None,
    config_file: Path = Path("config/config.yaml"),
    only: Collection[str] | None = None,
    datasets: Collection[str] = (),
) -> Project:
    """Validate a config and its run table, and return the project with all identities.

    Args:
        config: Config as merged by Snakemake; read from `config_file` if None.
        workdir: Folder that relative paths start from; the current folder if None.
        config_file: Path of the config, for messages.
        only: Names of the rows to resolve, without scaling studies and predictions; all if None.
        datasets: Names of further datasets to resolve.

    Raises:
        ConfigError: The config or the table has errors; the message names file, row and key of each.
        DataError: A source file cannot be read.
    """
    workdir = (workdir or Path.cwd()).resolve()
    where = str(config_file)
    config, rows = _read(config, workdir, config_file)
    settings = as_type(config, Config)
    pass_on(settings.runtime.pass_env)
    checks.check_environment(settings.runtime, where)
    project = _without_runs(settings, workdir)
    _ = project.lock  # reject a file that is not a lock before anything depends on it
    problems = Problems()
    asked = settings.predictions
    rows = _expand_folds(config, rows, settings.mixes, problems)
    depends = RowNames(
        defaults=config["defaults"],
        sweeps={name: one.base for name, one in settings.sweeps.items()},
    )
    needed = states_of_rows(rows, depends)
    if only is not None:
        rows, asked = with_bases(rows, only, depends), {}
    entries, mixes = config["datasets"], settings.mixes
    named = load_datasets(project, rows, datasets, entries, mixes, where, problems)
    predicted = load_predicted(project, asked, rows, entries, mixes, named, where, problems)
    with problems.gather():
        _check_callbacks(project, settings.runtime, where)
    loaded = _load_rows(project, rows, settings, named, depends, where, problems)
    for row in rows:  # in the order of the table
        with problems.gather():
            if row.name in loaded:
                project.add_run(loaded[row.name])
    problems.refuse()
    predictions.add_predictions(project, asked, predicted, where)
    if only is None:
        project.scaling = load_scaling(settings.scaling, project, config["defaults"], where)
        project.sweeps = load_sweeps(settings.sweeps, project, where, load_variant)
    project.link_bases(needed)
    project.digests.save()
    return project


def load_variant(
    project: Project, base: RunPlan, changed: Plain, *, name: str, where: str
) -> RunPlan:
    """Return a run with the settings of another run, except for some.

    Args:
        changed: Other settings by dotted key.
        where: Start of messages.

    Raises:
        ConfigError: The settings exclude each other.
    """
    row = replace(
        base.row, name=name, where=where, settings={**base.row.settings, **changed},
        varied=dict(changed), in_table=False, folds_of="",
    )  # fmt: skip
    check_name(row)
    varied = replace(row, settings=dict(changed))
    checked = checked_settings(project, varied, as_plain(base.settings), base.parts)
    return load_run(project, row, base.parts, *checked, base.bases)


def _read(
    config: Plain | None, workdir: Path, config_file: Path
) -> tuple[dict[str, Any], list[Row]]:
    """Return the config with its defaults, and the rows of its run table.

    Raises:
        ConfigError: Keys or values of config or table are invalid; the message lists all.
    """
    where = str(config_file)
    if config is None:
        config = read_config(workdir / config_file)
    else:
        refuse_duplicates(workdir / config_file)
    config = plain(config, where)
    allowed = user_files.allowed_of(config)
    user_files.refuse_credentials(config, where, allowed)
    schema, problems, rows = schema_of(Config), Problems(), []
    config = coerce(config, schema)
    with problems.gather():
        validate(config, schema, where=where)
    table = config.get("runs")
    if isinstance(table, str):
        with problems.gather():
            rows = read_rows(workdir / table, table, not_secret=allowed)
    problems.refuse()
    return fill(config, schema), rows


def _without_runs(settings: Config, workdir: Path) -> Project:
    """Return the project of a config, to which datasets and runs are added."""
    runtime = settings.runtime
    lock = None if settings.lock is UNSET else settings.lock
    return Project(
        layout=ResultsLayout(
            root=workdir,
            named_store=Path(os.environ.get("SHARDLINE_STORE") or runtime.store),
        ),
        table=settings.runs,
        runtime=runtime,
        identity=settings.identity,
        azureml=settings.azureml,
        conda=settings.conda,
        image=settings.image,
        lock_file=workdir / (workflow_folder() / "requirements.lock" if lock is None else lock),
        named_lock=lock,
        environments=settings.environments,
    )


def _check_callbacks(project: Project, runtime: Runtime, where: str) -> None:
    paths_of_callbacks(runtime.callbacks, RUNTIME_CALLBACKS, project.code, where)
    if runtime.callbacks and not runtime.check:
        raise ConfigError(
            f"{where}: {RUNTIME_CALLBACKS} is given with runtime.check=false, and only the check finds a callback "
            "that changes results; set runtime.check: true, or list it under `callbacks` of the runs"
        )


def _load_rows(
    project: Project, rows: Sequence[Row], settings: Config, named: Mapping[str, DatasetPlan], depends: RowNames,
    where: str, problems: Problems,
) -> dict[str, RunPlan]:  # fmt: skip
    """Return the runs of the table by name; each is loaded after the runs that it begins from.

    Args:
        named: Datasets without errors, by name.
    """
    bases = Bases(
        project.layout,
        project.digests,
        {row.name for row in rows},
        lambda name, base: study_of(name, settings.sweeps, base, project, where),
        depends.sweeps,
    )
    loaded, ordered = dict[str, RunPlan](), [*rows]
    with problems.gather():
        ordered = in_order(rows, depends)
    for row in ordered:
        with problems.gather():
            weights = weights_of_row(row, settings.mixes)
            parts = parts_of(weights, named) if weights.keys() <= named.keys() else ()
            checked = checked_settings(project, row, depends.defaults, parts)
            found = bases.of(references_of_row(row, depends), row.where)
            if parts and found is not None:
                run = loaded[row.name] = load_run(project, row, parts, *checked, found)
                for base in (one for one in found if one.kind != "init"):
                    _check_member(run, row, base, bases, settings.sweeps)
                bases.add(row.name, run.document)
    return loaded


def _check_member(
    run: RunPlan, row: Row, base: Base, bases: Bases, sweeps: Mapping[str, SweepSettings]
) -> None:
    """Check that a run can be made from a run or the trials of a sweep."""
    varied = [*sweeps[base.name].space] if base.source == "sweep" else []
    if base.source == "sweep":
        check_trials(base.name, varied, base.trials, run.settings, row.settings, row.where)
    if member := bases.document(base):
        check_member(run.document, member, base.name, row.where, kind=base.kind, but=varied)


def _expand_folds(
    config: Plain, rows: Sequence[Row], mixes: Mixes, problems: Problems
) -> list[Row]:
    """Return the rows with one for each fold of `fold: all`."""
    entries, default, found = config["datasets"], config["defaults"].get("fold"), list[Row]()
    for row in rows:
        known = [entries[name] for name in weights_of_row(row, mixes) if name in entries]
        with problems.gather():
            found += rows_of_folds(row, default, known)
    check_names(found, problems)
    return found
