"""Loading of a run: its settings with all checks, and its plan with the identity."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from shardline.config import checks, script_files, scripts
from shardline.config.bases import Base, check_init
from shardline.config.checked_optim import check_optim
from shardline.config.checked_trainer import check_trainer
from shardline.config.checks import check_evaluation, check_samples
from shardline.config.code_paths import SHIPPED_MODELS, resolve_class
from shardline.config.combined import check_combined, code_read, with_runs
from shardline.config.folds import check_fold
from shardline.config.hub_models import check_hub_model, open_tokenizer
from shardline.config.objects import code_of
from shardline.config.plans import RunPlan, WeightedDataset
from shardline.config.project import Project, document_of_run
from shardline.config.resolved import as_type
from shardline.config.run_table import Row
from shardline.config.scripts import environment_of_run
from shardline.config.settings import Plain
from shardline.config.settings.run_settings import RunSettings
from shardline.config.validate import Problems
from shardline.core.canonical import short_digest
from shardline.core.errors import ConfigError
from shardline.core.nested import with_values
from shardline.core.one_lightning import DISTRIBUTIONS, check_version

_OF_TEXTS = {
    class_path for name, class_path in SHIPPED_MODELS.items() if name.startswith("hf:") and "Image" not in name
}  # fmt: skip


def checked_settings(
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


def load_run(
    project: Project, row: Row, parts: tuple[WeightedDataset, ...], model_class: str, plain_settings: Plain,
    settings: RunSettings, bases: tuple[Base, ...] = (),
) -> RunPlan:  # fmt: skip
    """Return the run of a row.

    Args:
        model_class, plain_settings, settings: Return values of `checked_settings`.
        bases: What the run begins from or combines.

    Raises:
        ConfigError: The settings exclude each other.
    """
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
