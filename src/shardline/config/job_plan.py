"""The part of the project that a job receives, and the checks that its identities are unchanged.

The part is one line of JSON. It contains each dataset once, by id, however many runs train on it.
"""

import json
import socket
from dataclasses import fields
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar, get_type_hints

from msgspec import convert, to_builtins

from shardline.config.bases import with_content
from shardline.config.given import read_given
from shardline.config.layout import ResultsLayout
from shardline.config.plans import DatasetPlan, PredictionPlan, RunPlan, WeightedDataset
from shardline.config.predictions import document_of_files, document_of_prediction
from shardline.config.project import Project, document_of_dataset, document_of_run, locate
from shardline.config.resolved import as_plain, as_type
from shardline.config.scripts import environment_of_run
from shardline.config.settings import Plain, Settings
from shardline.core.errors import ConfigError
from shardline.records.identities import IdentityDocument

_T = TypeVar("_T")
# fields that the text contains by reference, or only once
_APART = {
    Project: ("datasets", "predicted", "runs", "predictions"),
    DatasetPlan: ("layout", "read_as"),
    RunPlan: ("layout", "parts"),
    PredictionPlan: ("layout", "rows"),
}


class GivenPlan:
    """A part of a project as a parameter of a job; unpickling in the script of the job returns the project.

    Its text is neutral, since Snakemake prints parameters in its report, and settings may contain
    what looks like a secret.
    """

    def __init__(self, project: Project) -> None:
        self._project = project

    def __repr__(self) -> str:
        return "its part of the project"

    def __reduce__(self) -> tuple[Any, ...]:
        return read_given, (write_plan(self._project),)


def write_plan(project: Project) -> str:
    """Return a project, or a part of a project, as text without code, lock and source files."""
    every = {**project.built}
    every |= {part.dataset.id: part.dataset for run in project.runs.values() for part in run.parts}
    every |= {one.read_as.id: one.read_as for one in [*every.values()] if one.read_as}
    plan = {
        **_fields(project),
        "every_dataset": {
            key: {**_fields(one), "read_as": one.read_as.id if one.read_as else None}
            for key, one in every.items()
        },
        "datasets": [*project.datasets],
        "predicted": [*project.predicted],
        "runs": {
            key: {**_fields(run), "parts": [[one.dataset.id, one.weight] for one in run.parts]}
            for key, run in project.runs.items()
        },
        "predictions": {
            key: {**_fields(one), "rows": one.rows.id} for key, one in project.predictions.items()
        },
    }
    return json.dumps(to_builtins(plan, enc_hook=str))


def read_plan(text: str) -> Project:
    """Return the project, or the part of a project, from the text of `write_plan`."""
    plan = json.loads(text)
    layout = convert(plan["layout"], ResultsLayout, dec_hook=_made)
    every: dict[str, DatasetPlan] = {}

    def dataset(key: str) -> DatasetPlan:
        if key not in every:
            plain = plan["every_dataset"][key]
            model = plain["read_as"]
            every[key] = _read(
                DatasetPlan, plain, layout=layout, read_as=dataset(model) if model else None
            )
        return every[key]

    return _read(
        Project,
        plan,
        datasets={key: dataset(key) for key in plan["datasets"]},
        predicted={key: dataset(key) for key in plan["predicted"]},
        runs={
            key: _read(
                RunPlan,
                plain,
                layout=layout,
                parts=tuple(
                    WeightedDataset(dataset(one), Fraction(weight))
                    for one, weight in plain["parts"]
                ),
            )
            for key, plain in plan["runs"].items()
        },
        predictions={
            key: _read(PredictionPlan, plain, layout=layout, rows=dataset(plain["rows"]))
            for key, plain in plan["predictions"].items()
        },
    )


def _fields(one: Any) -> dict[str, object]:
    apart = _APART[type(one)]
    return {
        field.name: getattr(one, field.name) for field in fields(one) if field.name not in apart
    }


def _read(kind: type[_T], plain: Plain, **given: Any) -> _T:
    hints: dict[str, object] = _hints(kind)  # type: ignore[arg-type]
    found = {
        name: _value(plain[name], hint) for name, hint in hints.items() if name not in _APART[kind]
    }
    return kind(**found, **given)


def _value(plain: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Settings):
        return as_type(plain, hint)
    return convert(plain, hint, dec_hook=_made)


@cache
def _hints(kind: Any) -> dict[str, object]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _made(kind: type, value: Any) -> Any:
    return kind(value)


# Names of the parts of a document in messages.
_MEANINGS = {
    "code": "code", "code_files": "code", "environment": "the lock", "source": "the source",
    "versions": "Shardline itself",
}  # fmt: skip

_SENTENCE = (
    "{} has a different identity on {}: {} changed while the pipeline ran, or differ on this machine; start the "
    "pipeline again, or make them the same on all machines"
)


def recheck_dataset(project: Project, dataset: DatasetPlan) -> None:
    """Reject a dataset whose identity has changed.

    Raises:
        ConfigError: Code, lock or source changed since the workflow was started, or differ on this
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
    """Reject a training whose identity has changed; see `recheck_dataset`."""
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
    bases = with_content(run.bases, project.layout, project.digests, where)
    now = document_of_run(project, settings, run.code_paths, weights, environment, where, bases)
    _refuse_other(run.id, run.document, now)


def recheck_evaluation(project: Project, run: RunPlan) -> None:
    """Reject an evaluation whose identity has changed; see `recheck_dataset`."""
    training = run.evaluation_document["inputs"]["run"]
    now = project.documents.evaluation(as_plain(run.settings), run.code_paths, training)
    _refuse_other(run.evaluation_id, run.evaluation_document, now)


def recheck_prediction(project: Project, one: PredictionPlan) -> None:
    """Reject a prediction whose identity has changed; see `recheck_dataset`."""
    now = document_of_prediction(project, one.spec, one.code_paths, one.rows.id, one.split)
    _refuse_other(one.id, one.document, now)


def recheck_report(project: Project, identity: str) -> None:
    """Reject a report whose identity has changed; see `recheck_dataset`."""
    if project.report.parent.name != identity:
        raise ConfigError(
            _SENTENCE.format(identity, socket.gethostname(), "names, notes or the lock")
        )


def _refuse_other(identity: str, document: IdentityDocument, now: IdentityDocument) -> None:
    differing = {key for key in {*document, *now} if document.get(key) != now.get(key)}
    if differing:
        what = sorted({_MEANINGS.get(key, key) for key in differing})
        raise ConfigError(_SENTENCE.format(identity, socket.gethostname(), " and ".join(what)))
