"""Loading of a project from config and run table: validation, resolution, identities, scaling studies."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from shardline.config import (
    checked_sources,
    checks,
    predictions,
    script_files,
    scripts,
    user_files,
)
from shardline.config.bases import Base, Bases, check_init
from shardline.config.callbacks import RUNTIME_CALLBACKS
from shardline.config.checked_optim import check_optim
from shardline.config.checked_trainer import check_trainer
from shardline.config.checks import check_evaluation, check_samples
from shardline.config.code_paths import SHIPPED_MODELS, resolve_class
from shardline.config.combined import (
    check_combined,
    check_member,
    check_trials,
    code_read,
    with_runs,
)
from shardline.config.folds import check_fold, rows_of_folds, with_share
from shardline.config.hub_models import check_hub_model, open_tokenizer
from shardline.config.layout import ResultsLayout
from shardline.config.objects import code_of, paths_of_callbacks
from shardline.config.plans import DatasetPlan, RunPlan, WeightedDataset, count_shards
from shardline.config.project import Project, document_of_dataset, document_of_run, locate
from shardline.config.references import (
    RowNames,
    in_order,
    references_of_row,
    states_of_rows,
    with_bases,
)
from shardline.config.resolved import Size, Study, as_plain, as_type
from shardline.config.run_table import Row, check_name, check_names, read_rows
from shardline.config.scripts import environment_of_run
from shardline.config.settings import Plain, fill, schema_of
from shardline.config.settings.config import (
    Config,
    DatasetSettings,
    PredictionSettings,
    StudySettings,
)
from shardline.config.settings.run_settings import RunSettings
from shardline.config.sweeps import load_sweeps, study_of
from shardline.config.user_files import plain, read_config, refuse_duplicates
from shardline.config.validate import Problems, coerce, validate
from shardline.core.canonical import short_digest
from shardline.core.errors import ConfigError
from shardline.core.nested import with_values
from shardline.core.one_lightning import DISTRIBUTIONS, check_version
from shardline.core.package import workflow_folder
from shardline.core.redaction import pass_on
from shardline.core.suggest import suggest

Mixes = Mapping[str, Mapping[str, float]]
Entries = Mapping[str, dict[str, Any]]  # entries of `datasets` as written


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
    if config is None:
        config = read_config(workdir / config_file)
    else:
        refuse_duplicates(workdir / config_file)
    config = plain(config, where)
    allowed = user_files.allowed_of(config)
    user_files.refuse_credentials(config, where, allowed)
    config, rows = _check_form(config, workdir, where, allowed)
    settings = as_type(config, Config)
    runtime = settings.runtime
    pass_on(runtime.pass_env)
    checks.check_environment(runtime, where)
    lock = None if settings.lock is UNSET else settings.lock
    project = Project(
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
    entries, defaults, mixes = config["datasets"], config["defaults"], settings.mixes
    named = _load_datasets(project, rows, datasets, entries, mixes, where, problems)
    predicted = _load_predicted(project, asked, rows, entries, mixes, named, where, problems)
    with problems.gather():
        paths_of_callbacks(runtime.callbacks, RUNTIME_CALLBACKS, project.code, where)
        if runtime.callbacks and not runtime.check:
            raise ConfigError(
                f"{where}: {RUNTIME_CALLBACKS} is given with runtime.check=false, and only the check finds a callback "
                "that changes results; set runtime.check: true, or list it under `callbacks` of the runs"
            )
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
            weights = weights_of_row(row, mixes)
            parts = parts_of(weights, named) if weights.keys() <= named.keys() else ()
            checked = _checked_settings(project, row, defaults, parts)
            found = bases.of(references_of_row(row, depends), row.where)
            if parts and found is not None:
                run = loaded[row.name] = _load_run(project, row, parts, *checked, found)
                for base in (one for one in found if one.kind != "init"):
                    varied = [*settings.sweeps[base.name].space] if base.source == "sweep" else []
                    if base.source == "sweep":
                        check_trials(
                            base.name, varied, base.trials, run.settings, row.settings, row.where
                        )
                    if member := bases.document(base):
                        check_member(
                            run.document, member, base.name, row.where, kind=base.kind, but=varied
                        )
                bases.add(row.name, loaded[row.name].document)
    for row in rows:  # in the order of the table
        with problems.gather():
            if row.name in loaded:
                project.add_run(loaded[row.name])
    problems.refuse()
    predictions.add_predictions(project, asked, predicted, where)
    if only is None:
        project.scaling = load_scaling(
            settings.scaling,
            project,
            lambda row, base: _load_run(
                project,
                row,
                base.parts,
                *_checked_settings(project, row, defaults, base.parts),
                base.bases,
            ),
            where,
        )
        project.sweeps = load_sweeps(settings.sweeps, project, where)
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
    checked = _checked_settings(project, varied, as_plain(base.settings), base.parts)
    return _load_run(project, row, base.parts, *checked, base.bases)


def _check_form(
    config: Plain, workdir: Path, where: str, allowed: Sequence[str]
) -> tuple[dict[str, Any], list[Row]]:
    """Return the config with its defaults, and the rows of its run table.

    Raises:
        ConfigError: Keys or values of config or table are invalid; the message lists all.
    """
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


def _load_datasets(
    project: Project, rows: list[Row], others: Collection[str], entries: Entries, mixed: Mixes, config_file: str,
    problems: Problems,
) -> dict[str, DatasetPlan]:  # fmt: skip
    problems.found += problems_of_mixes(mixed, entries, config_file)
    for row in rows:
        problems.found += problems_of_row(row, mixed, entries, config_file)
    loaded: dict[str, DatasetPlan] = {}
    wanted = (name for row in rows for name in weights_of_row(row, mixed))
    for name in dict.fromkeys(name for name in (*wanted, *others) if name in entries):
        with problems.gather():
            where = f"{config_file}: datasets.{name}"
            loaded[name] = _load_dataset(project, name, entries[name], where)
    for name, dataset in loaded.items():
        known = project.datasets.get(dataset.id)
        names = (*known.names, name) if known else (name,)
        if known and known.document != dataset.document:
            raise ConfigError(
                f"{config_file}: the identities of datasets.{name} and datasets.{known.name} have the same digest "
                f"{dataset.id} by chance; change a setting that does not matter, such as shards"
            )
        project.datasets[dataset.id] = replace(known or dataset, names=names)
    return {name: project.datasets[dataset.id] for name, dataset in loaded.items()}


def _load_predicted(
    project: Project, asked: Mapping[str, PredictionSettings], rows: list[Row], entries: Entries, mixes: Mixes,
    datasets: Mapping[str, DatasetPlan], where: str, problems: Problems,
) -> dict[str, DatasetPlan]:  # fmt: skip
    """Return the rows of each prediction, and add datasets that no run uses to the project."""
    named = dict(datasets)
    found: dict[str, DatasetPlan] = {}
    with problems.gather():
        for name, entry in asked.items():
            key = f"{where}: predictions.{name}"
            if isinstance(entry.dataset, str) and entry.dataset not in named:
                if entry.dataset not in entries:
                    hint = suggest(entry.dataset, entries)
                    raise ConfigError(f"{key}.dataset={entry.dataset} is not in datasets; {hint}")
                place = f"{where}: datasets.{entry.dataset}"
                named[entry.dataset] = _load_dataset(
                    project, entry.dataset, entries[entry.dataset], place
                )
        weights = {row.name: weights_of_row(row, mixes) for row in rows}
        datasets_of = {
            row: [datasets[name] for name in of if name in datasets] for row, of in weights.items()
        }
        found = predictions.rows_of_entries(project, asked, rows, datasets_of, named, where)
    project.predicted = {one.id: one for one in found.values() if one.id not in project.datasets}
    return found


def _load_dataset(project: Project, name: str, settings: dict[str, Any], where: str) -> DatasetPlan:
    source_class = resolve_class(
        settings["source"]["type"],
        checked_sources.SHIPPED_SOURCES,
        project.code,
        f"{where}.source.type",
    )
    found = locate(project, settings, where)
    settings = {**settings, "splits": with_share(settings["splits"])}
    if settings["shards"] == "auto":
        num_shards = count_shards(
            found.source, found.files, project.workdir, project.layout.downloads, where
        )
        settings = {**settings, "shards": num_shards}
    document = document_of_dataset(project, settings, source_class, found)
    return DatasetPlan(
        names=(name,),
        id=short_digest(document),
        layout=project.layout,
        settings=as_type(settings, DatasetSettings),
        source_class=source_class,
        source=found.source,
        files=found.files,
        document=document,
        definitions=project.documents.definitions({"source": source_class}),
        kind=project.documents.kind_of(source_class),
    )


def _checked_settings(
    project: Project, row: Row, defaults: Plain, parts: tuple[WeightedDataset, ...]
) -> tuple[str, Plain, RunSettings]:
    """Return model and settings of a run, after checks that do not depend on each other.

    Args:
        parts: Datasets of the run; empty if one of them has errors.

    Raises:
        ConfigError: The model, the geometry or the fold is invalid; the message lists all.
    """
    problems, model_class, plain_settings = Problems(), "", with_values(defaults, row.settings)
    with problems.gather():
        model_class = _resolve_model(project, row)
        plain_settings = _with_vocabulary(plain_settings, model_class, parts)
    settings = as_type(plain_settings, RunSettings)
    with problems.gather():
        checks.check_geometry(settings, row.where)
    with problems.gather():
        check_trainer(settings, row.where, num_datasets=len(parts))
    with problems.gather():
        if parts:
            check_fold(settings, parts, row.where)
    problems.refuse()
    return model_class, plain_settings, settings


def _load_run(
    project: Project, row: Row, parts: tuple[WeightedDataset, ...], model_class: str, plain_settings: Plain,
    settings: RunSettings, bases: tuple[Base, ...] = (),
) -> RunPlan:  # fmt: skip
    program = {"model": model_class, **script_files.code_of_arguments(model_class, project.layout)}
    uses_io = scripts.is_script(model_class) and project.documents.use_io(program)
    has_test_step = (
        False
        if scripts.is_script(model_class)
        else project.documents.has_method(model_class, "test_step")
    )
    check_combined(settings, row.settings, model_class, row.where, has_test_step=has_test_step)
    check_optim(settings, row.where, is_script=scripts.is_script(model_class))
    check_samples(settings, parts, model_class, row.where, uses_io=uses_io)
    if len(parts) == 1:
        dataset = parts[0].dataset
        checks.check_shards(settings, dataset.name, dataset.num_shards, row.where)
    check_evaluation(
        settings, parts, model_class, row.where, has_method=project.documents.has_method
    )
    paths = {
        **program,
        **code_read(code_of(plain_settings, model_class, project.code, row.where), settings),
    }
    if settings.elastic and scripts.is_script(model_class):
        raise ConfigError(
            f"{row.where}: elastic=true, but a training script splits its batches itself; use elastic=false"
        )
    if settings.callbacks and scripts.is_script(model_class):
        raise ConfigError(
            f"{row.where}: callbacks are Lightning's, but a training script trains by itself; set callbacks to [[]] in "
            "this row, or leave them out of defaults"
        )
    environment = environment_of_run(
        settings,
        model_class,
        project.runtime,
        project.environments,
        row.where,
        project.load_environment,
    )
    lightning = _lightning_of(project, paths, parts, row.where)
    weights = {part.dataset.id: str(part.weight) for part in parts}
    check_init(row, bases)
    if begun := next((one.resolved for one in bases if one.kind == "init"), None):
        settings = structs.replace(settings, init_from=begun)
    settings = with_runs(settings, [one.resolved for one in bases])
    document = document_of_run(project, settings, paths, weights, environment, row.where, bases)
    digest = short_digest(document)
    return RunPlan(
        id=digest,
        layout=project.layout,
        rows=(row,),
        parts=parts,
        model_class=model_class,
        code_paths=paths,
        settings=settings,
        environment=environment,
        document=document,
        evaluation_document=project.documents.evaluation(plain_settings, paths, digest),
        definitions=project.documents.definitions(paths),
        lightning=lightning,
        bases=bases,
    )


def _lightning_of(
    project: Project, paths: Mapping[str, str], parts: Sequence[WeightedDataset], where: str
) -> tuple[str, ...]:
    """Return the packages of Lightning that the code of a run imports; the lock must have versions that work."""
    sources = {f"source {at}": part.dataset.source_class for at, part in enumerate(parts)}
    found = project.documents.lightning_of({**paths, **sources})
    for package in found:
        if pinned := project.lock.versions.get(DISTRIBUTIONS[package]):
            check_version(package, pinned, f"pinned by the lock of {where}")
    return found


def _resolve_model(project: Project, row: Row) -> str:
    where = f"{row.where}: model"
    if scripts.is_script(row.model):
        return scripts.resolve_script(row.model, project.workdir, where)
    check_hub_model(row.model, where)
    return resolve_class(row.model, SHIPPED_MODELS, project.code, where)


def weights_of_row(row: Row, mixes: Mixes) -> Mapping[str, float]:
    """Return the weights of the datasets of a row by name."""
    if isinstance(row.dataset, str):
        return mixes.get(row.dataset, {row.dataset: 1.0})
    return row.dataset


def problems_of_mixes(mixes: Mixes, datasets: Collection[str], where: str) -> Iterator[str]:
    """Yield the problems of the mixes of a config.

    Args:
        where: File of the config, the start of messages.
    """
    for name, weights in mixes.items():
        if name in datasets:
            yield f"{where}: mixes.{name} has the name of a dataset; rename one of them"
        for part in weights:
            if part not in datasets:
                yield f"{where}: mixes.{name}.{part} is not in datasets; {suggest(part, datasets)}"


def problems_of_row(row: Row, mixes: Mixes, datasets: Collection[str], where: str) -> Iterator[str]:
    """Yield the problems of the dataset or mix of a row.

    Args:
        where: File of the config.
    """
    if isinstance(row.dataset, str):
        if row.dataset not in datasets and row.dataset not in mixes:
            places = "datasets or mixes" if mixes else "datasets"
            hint = suggest(row.dataset, [*datasets, *mixes])
            yield f"{row.where}: dataset={row.dataset} is not in {places} of {where}; {hint}"
        return
    for part in row.dataset:
        if part not in datasets:
            hint = suggest(part, datasets)
            text = json.dumps(row.dataset, ensure_ascii=False)
            yield f"{row.where}: dataset={text}: {part} is not in datasets of {where}; {hint}"


def parts_of(
    weights: Mapping[str, float], datasets: Mapping[str, DatasetPlan]
) -> tuple[WeightedDataset, ...]:
    """Return the datasets of a run in the order of ids, with weights that sum to 1.

    Two names of one dataset become one part. Weights are exact decimals: 0.7 is 7/10.

    Args:
        weights: Weights by name of the dataset.
        datasets: Datasets by name.
    """
    shares: dict[str, Fraction] = {}
    named = {datasets[name].id: datasets[name] for name in weights}
    for name, weight in weights.items():
        key = datasets[name].id
        shares[key] = shares.get(key, Fraction(0)) + Fraction(repr(weight))
    total = sum(shares.values())
    return tuple(WeightedDataset(named[key], shares[key] / total) for key in sorted(shares))


_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")


def load_scaling(
    entries: Mapping[str, StudySettings],
    project: Project,
    load: Callable[[Row, RunPlan], RunPlan],
    where: str,
) -> tuple[Study, ...]:
    """Return the studies, and add their runs that are not in the table to the project.

    Args:
        entries: `scaling` of the config.
        project: Project with the runs of the table.
        load: Function that returns the run of a row, based on another run.
        where: File of the config, the start of messages.

    Raises:
        ConfigError: The run is unknown, a size is invalid, impossible or listed twice, or a name is
            taken; the message names the key.
    """
    of_table = project.named_runs()
    studies = []
    for name, entry in entries.items():
        place = f"{where}: scaling.{name}"
        if (run := of_table.get(entry.run)) is None:
            raise ConfigError(
                f"{place}.run={entry.run} is not a run of {project.table}; "
                f"{suggest(entry.run, of_table)}"
            )
        row = next(row for row in run.rows if row.name == entry.run)
        base = replace(run, rows=(row,))
        sizes = []
        for nodes, devices, sized in _rows(base, entry, place):
            measured = _of_table(load(sized, base), project)
            sizes.append(Size(nodes=nodes, devices=devices, run=measured.id))
        studies.append(Study(name=name, run=row.name, mode=entry.mode, sizes=tuple(sizes)))
    return tuple(studies)


def _rows(base: RunPlan, entry: StudySettings, place: str) -> Iterator[tuple[int, int, Row]]:
    """Yield each size with its row; the caller must load each row before the next."""
    sizes = entry.sizes
    if len(sizes) < 2:
        raise ConfigError(f"{place}.sizes lists {len(sizes)} sizes; list two or more to compare")
    first = 0
    for index, size in enumerate(sizes):
        where = f"{place}.sizes[{index}]={size}"
        if not (match := _SIZE.fullmatch(size)):
            raise ConfigError(f"{where} is not nodes x devices; write it as 2x4")
        if size in sizes[:index]:
            raise ConfigError(f"{where} is listed twice; drop one")
        nodes, devices = map(int, match.groups())
        first = first or nodes * devices
        yield nodes, devices, _row(base, entry.mode, nodes, devices, first, where)


def _row(base: RunPlan, mode: str, nodes: int, devices: int, first: int, where: str) -> Row:
    """Return the base run's row with another geometry.

    Args:
        first: Number of ranks of the first size, which has the global batch of the base run.
    """
    changed, name = (
        {"nodes": nodes, "devices": devices},
        f"{base.name}_nodes={nodes}_devices={devices}",
    )
    batch = base.settings.global_batch
    # the first size was loaded, so its ranks divide the batch
    if mode == "weak" and nodes * devices != first:
        changed["global_batch"] = batch * nodes * devices // first
        name += f"_global_batch={changed['global_batch']}"
    row = replace(
        base.row, name=name, where=where, settings={**base.row.settings, **changed}, in_table=False
    )
    check_name(row)
    return row


def _of_table(run: RunPlan, project: Project) -> RunPlan:
    """Return the equal run of the table; add the run to the project if there is none."""
    if (known := project.runs.get(run.id)) and known.in_table:
        return known
    named = project.named_runs().get(run.name)
    if named and named.id != run.id:
        raise ConfigError(
            f'{run.row.where}: the name "{run.name}" is taken by {named.row.where}; rename that run'
        )
    return named or project.add_run(run)


_OF_TEXTS = {
    class_path for name, class_path in SHIPPED_MODELS.items() if name.startswith("hf:") and "Image" not in name
}  # fmt: skip


def _with_vocabulary(
    settings: Plain, model_class: str, parts: tuple[WeightedDataset, ...]
) -> dict[str, Any]:
    """Return the settings of a run with the size of the vocabulary, if a tokenizer made the tokens.

    This sets `model_args.vocab` of `gpt`, or `model_args.config.vocab_size` of a model of transformers
    with a table as config, unless the config sets it. `run.json` and the identity then contain the
    number. For bytes, the default of the model applies.

    Args:
        settings: Settings in the config.

    Raises:
        DataError: The file of a tokenizer cannot be read.
    """
    given = settings.get("model_args", {})
    if model_class == SHIPPED_MODELS["gpt"]:
        sizes, key = given, "vocab"
    else:
        sizes, key = given.get("config"), "vocab_size"
        if model_class not in _OF_TEXTS or not isinstance(sizes, Mapping):
            return dict(settings)
    if sizes.get(key) is not None:
        return dict(settings)
    column = given.get("column", "tokens")
    files = [
        part.dataset.tokenizer for part in parts if column in _token_columns(part.dataset.source)
    ]
    if not files or None in files:
        return dict(settings)
    vocab = max(open_tokenizer(file).num_tokens for file in files if file)
    sized = {**sizes, key: vocab}
    return {**settings, "model_args": sized if sizes is given else {**given, "config": sized}}


def _token_columns(source: Plain) -> set[str]:
    """Return the columns of tokens that a source makes from texts."""
    return {"tokens"} if source.get("type") == "text" else set(source.get("tokenize") or ())
