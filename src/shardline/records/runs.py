"""`run.json`, and all sealed records of a run."""

from typing import Any

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record
from shardline.records.evaluations import EvaluationResult
from shardline.records.jobs import JobRecord
from shardline.records.origins import BaseRef, OnDatasets
from shardline.records.trainings import TrainingProvenance


class ResolvedRun(OnDatasets, frozen=True, kw_only=True):
    """run.json: a run with all settings resolved.

    Attributes:
        run: Id of the run.
        identity: Digest of the identity document.
        order: Version of the order of samples.
        model: Model as written in the run table.
        model_class: Import path of the model, or the script.
        settings: All settings, including defaults.
        environment: Packages to install: `python`, and `requirements` from the lock.
        definitions: Digests of the definitions in the user's code, see `config.documents`.
        bases: What the run begins from.
        action: Record of the job that resolved the run.
    """

    run: str
    identity: str
    order: int = 1
    model: str = ""
    model_class: str
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, Any] = field(default_factory=dict)
    bases: list[BaseRef] | UnsetType = UNSET
    action: JobRecord | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject a run without a dataset."""
        if not self.dataset and not self.datasets:
            raise ValueError("Object missing required field `dataset`")


class RunRecord(Record, frozen=True, kw_only=True):
    """The sealed records of a run.

    Attributes:
        spec: `run.json`, with all settings resolved.
        provenance: Provenance of the training.
        evaluation: Evaluation of the model.
    """

    spec: ResolvedRun
    provenance: TrainingProvenance
    evaluation: EvaluationResult
