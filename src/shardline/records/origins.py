"""What a run is trained on, what it begins from, and what it combines."""

from typing import Literal

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record
from shardline.records.datasets import Id


class DatasetRef(Record, frozen=True, kw_only=True):
    """The dataset of a run.

    Attributes:
        id: Id of the dataset.
    """

    id: Id


class MixedDataset(DatasetRef, frozen=True, kw_only=True):
    """A dataset of a mix.

    Attributes:
        weight: Weight in the mix, as text.
        manifest_sha256: SHA-256 of the manifest that the training read.
    """

    weight: str
    manifest_sha256: str | UnsetType = UNSET


class OnDatasets(Record, frozen=True, kw_only=True):
    """Base of records with datasets.

    Attributes:
        dataset: Dataset of a run that is trained on one.
        datasets: Datasets of a mix.
    """

    dataset: DatasetRef | UnsetType = UNSET
    datasets: list[MixedDataset] | UnsetType = UNSET

    @property
    def mix(self) -> dict[str, str]:
        """Weights of the datasets by id, in the order of the mix; 1 for a single dataset."""
        if self.datasets:
            return {part.id: part.weight for part in self.datasets}
        return {self.dataset.id: "1"} if self.dataset else {}


class BaseRef(Record, frozen=True, kw_only=True):
    """What a run begins from.

    Attributes:
        kind: What the run does with the base, such as `init`.
        source: `run`, `file`, `hf` for a folder of transformers, or `sweep` for the trials of a finished study.
        run: Id of a run; empty for others.
        identity: Digest of the identity document of a run or study, or of the content of a file or folder.
        state: Which weights of a run: `best`, the sealed ones, or `last`, of its last training checkpoint.
        step: Optimiser step of that training checkpoint.
        sha256: SHA-256 of the weights that the training read: of the sealed weights or the file, or of the
            manifest of the training checkpoint.
        trials: Number of trials of a study.
        left_out: Why trials of a study have no weights, by number.
    """

    kind: str
    source: str
    run: str = ""
    identity: str
    state: str = "best"
    step: int | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    trials: int | UnsetType = UNSET
    left_out: dict[str, str] | UnsetType = UNSET

    @property
    def counted(self) -> dict[str, str]:
        """The part of the identity document of the run that begins from this base."""
        if self.run:
            return {"kind": self.kind, "run": self.identity, "state": self.state}
        number = {"trials": str(self.trials)} if self.trials else {}
        return {"kind": self.kind, self.source: self.identity, **number}


class LoadedWeights(Record, frozen=True, kw_only=True):
    """The weights with which a training began.

    Attributes:
        source: `run`, `file` or `hf`, as in `init_from`.
        sha256: Digest of the file or folder that was read.
        understood: What was read, for example the `state_dict` of a checkpoint.
        loaded: Number of names that were loaded.
        renamed: Number of names in the file that each prefix of `init.rename` changed.
        ignored: Names that `init.ignore` left out.
        missing: Names of the model that kept their initial values, since the file lacks them.
        unexpected: Names in the file that the model lacks.
        shapes: Names with another shape, and both shapes.
        kinds: Names with another kind of numbers, and both types.
        untied: Names that share a tensor in the model, but not their values in the file.
    """

    source: str
    sha256: str
    understood: list[str] = field(default_factory=list)
    loaded: int
    renamed: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)

    @property
    def differences(self) -> dict[str, list[str]]:
        """Names that do not fit, by what is wrong with them, in words."""
        found = {
            "missing in the file": self.missing,
            "not in the model": self.unexpected,
            "of another shape": self.shapes,
            "of another kind": self.kinds,
            "tied in the model, with different values in the file": self.untied,
        }
        return {what: names for what, names in found.items() if names}


class Continued(Record, frozen=True, kw_only=True):
    """The run that a training continued, or whose milestone it ended with. Its steps were not trained again.

    Attributes:
        run: Id of that run.
        identity: Digest of its identity document.
        step: Optimiser steps in its state.
        seconds: Seconds of training up to its state.
        device_hours: Hours of all devices up to its state.
    """

    run: Id
    identity: str
    step: int
    seconds: float
    device_hours: float


class CombinedMember(Record, frozen=True, kw_only=True):
    """A run whose weights or outputs another run averages.

    Attributes:
        run: Id of the run.
        sha256: SHA-256 of its sealed weights.
        is_chosen: Whether the average contains it.
        score: For a greedy average, `checkpoint.monitor` of this member alone.
        tried: For a greedy average, `checkpoint.monitor` of the members chosen before and this one.
    """

    run: Id
    sha256: str
    is_chosen: bool = True
    score: float | UnsetType | None = UNSET
    tried: float | UnsetType | None = UNSET


class CombinedRuns(Record, frozen=True, kw_only=True):
    """How an average or an ensemble of sealed runs was made, without a training.

    Attributes:
        kind: `average` of weights, or `ensemble` of outputs.
        members: The members, in the order of the config.
        how: How members were chosen or outputs averaged: `uniform`, `greedy`, `probabilities` or `logits`.
        batch_norms: Number of layers of an average whose running statistics were recomputed.
        batches: Number of training batches that each of these layers saw.
    """

    kind: Literal["average", "ensemble"]
    members: list[CombinedMember]
    how: Literal["uniform", "greedy", "probabilities", "logits"]
    batch_norms: int = 0
    batches: int = 0
