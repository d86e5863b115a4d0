"""Identity documents by what is on disk now: of what is loaded, and again by the job that makes it."""

import socket
from collections.abc import Mapping
from typing import Any

from shardline.config import checked_sources, script_files
from shardline.config.plans import DatasetPlan, PredictionPlan, RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.run_spec import RunSpec
from shardline.config.sample_code import EVALUATED
from shardline.config.script_environment import ScriptEnvironment, environment_of_run
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError
from shardline.records.identities import IdentityDocument

# What the parts of a document stand for, as people call it.
_MEANINGS = {
    "code": "code", "code_files": "code", "environment": "the lock", "source": "the source",
    "versions": "Shardline itself",
}  # fmt: skip

_SENTENCE = (
    "{} has another identity on {}: {} changed while the pipeline ran, or differ on that machine; start it again, or "
    "give all machines the same"
)


def locate(project: Project, settings: Mapping[str, Any], where: str) -> checked_sources.Located:
    """Return the files of a dataset's source, see `sources.locate`.

    Args:
        settings: its entry in the config.
        where: as messages begin.
    """
    return checked_sources.locate(
        settings, project.workdir, project.layout.downloads, project.digests, where
    )


def document_of_dataset(
    project: Project, settings: Mapping[str, Any], source_class: str, found: checked_sources.Located
) -> IdentityDocument:
    """Return the identity document of a dataset of the config.

    Args:
        settings: its entry in the config, with the number of shards.
        found: the files of its source.
    """
    counted = {**settings, "source": found.counted}
    return project.documents.dataset(counted, source_class, found.content)


def document_of_files(
    project: Project, read_as: DatasetPlan, num_shards: int, found: checked_sources.Located
) -> IdentityDocument:
    """Return the identity document of files to be predicted, which are read as a dataset's."""
    documents, program = project.documents, project.documents.program(read_as.source_class)
    return {
        "stage": "predicted files",
        "settings": {"shards": num_shards},
        "source": dict(found.content),
        "inputs": {"dataset": read_as.id},  # which stands for the settings of its source
        **documents.made_by("data", {"source": program}, as_plain(read_as.settings)),
    }


def document_of_run(
    project: Project, settings: RunSettings, paths: Mapping[str, str], weights: Mapping[str, str],
    environment: ScriptEnvironment | None, where: str,
) -> IdentityDocument:  # fmt: skip
    """Return the identity document of a training.

    Args:
        paths: import paths of its code, see `RunPlan.code_paths`.
        weights: of its datasets by id.
        environment: what its script runs in, where it has an environment of its own.
        where: file and row, as messages begin.
    """
    files = script_files.files_that_count(paths["model"], settings, project.layout, where)
    return project.documents.training(
        as_plain(settings),
        paths,
        weights,
        project.digests.digest_all(files, workdir=project.workdir),
        environment.counted if environment else None,
    )


def document_of_prediction(
    project: Project, spec: RunSpec, code_paths: Mapping[str, str], rows: str, split: str
) -> IdentityDocument:
    """Return the identity document of a prediction.

    Args:
        code_paths: see `RunPlan.code_paths`.
        rows: id of the dataset that is predicted.
        split: which of its rows.
    """
    read = {
        part: path for part, path in code_paths.items() if part.startswith(("model", *EVALUATED))
    }
    documents, settings = project.documents, as_plain(spec.settings)
    return {
        "stage": "predict",
        "settings": {"split": split, "batch": settings["evaluation"]["batch"]},
        "inputs": {"run": spec.run, "rows": rows},
        **documents.made_by("prediction", documents.programs_of(read), settings),
    }


def recheck_dataset(project: Project, dataset: DatasetPlan) -> None:
    """Refuse to build a dataset whose identity is another one by now.

    Raises:
        ConfigError: code, lock or source changed since the workflow was started, or are others on this
            machine.
    """
    where = f"datasets.{dataset.name}"
    found = locate(project, as_plain(dataset.settings), where)
    if dataset.read_as:
        now = document_of_files(project, dataset.read_as, dataset.num_shards, found)
    else:
        now = document_of_dataset(project, as_plain(dataset.settings), dataset.source_class, found)
    _refuse_other(dataset.id, dataset.document, now)


def recheck_training(project: Project, run: RunPlan) -> None:
    """Refuse to train a run whose identity is another one by now; see `recheck_dataset`."""
    where, settings = run.row.where, run.settings
    environment = run.environment and environment_of_run(
        settings,
        run.model_class,
        project.runtime,
        project.environments,
        where,
        project.load_environment,
    )
    weights = run.spec.datasets
    now = document_of_run(project, settings, run.code_paths, weights, environment, where)
    _refuse_other(run.id, run.document, now)


def recheck_evaluation(project: Project, run: RunPlan) -> None:
    """Refuse to evaluate a run where the evaluation's identity is another one by now, likewise."""
    training = run.evaluation_document["inputs"]["run"]
    now = project.documents.evaluation(as_plain(run.settings), run.code_paths, training)
    _refuse_other(run.evaluation_id, run.evaluation_document, now)


def recheck_prediction(project: Project, one: PredictionPlan) -> None:
    """Refuse to predict where the prediction's identity is another one by now, likewise."""
    now = document_of_prediction(project, one.spec, one.code_paths, one.rows.id, one.split)
    _refuse_other(one.id, one.document, now)


def recheck_report(project: Project, identity: str) -> None:
    """Refuse to write a report whose identity is another one by now, likewise."""
    if project.report.parent.name != identity:
        raise ConfigError(
            _SENTENCE.format(identity, socket.gethostname(), "names, notes or the lock")
        )


def _refuse_other(identity: str, document: IdentityDocument, now: IdentityDocument) -> None:
    differing = {key for key in {*document, *now} if document.get(key) != now.get(key)}
    if differing:
        what = sorted({_MEANINGS.get(key, key) for key in differing})
        raise ConfigError(_SENTENCE.format(identity, socket.gethostname(), " and ".join(what)))
