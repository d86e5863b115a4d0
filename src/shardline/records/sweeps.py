"""Files of a sweep, in `results/studies/{id}/`: proposals, results of trials, and the finished study."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record
from shardline.records.jobs import JobRecord

Row = list[int | float | None]
Unit = Literal["epoch", "step"]  # what rungs count


class Seen(Record, frozen=True, kw_only=True, array_like=True):
    """An earlier trial, as a later proposal knows it.

    Attributes:
        row: Its values in the order of `Proposal.keys`: a number, the place of a choice, or null.
        value: Its value; null for a trial that failed or was excluded.
        values: With rungs, its value at each rung that it has ended.
    """

    row: Row
    value: float | None = None
    values: list[float] = field(default_factory=list)


class Candidate(Record, frozen=True, kw_only=True):
    """A trial that may be promoted.

    Attributes:
        trial: Number of the trial.
        place: Number of the trial at its rung, in the order in which the rung began.
        value: Its value at the rung; null after a failure.
        failure: See `TrialResult`.
        runs: Id of the run of each training.
        is_final: For each training, see `TrialResult`.
    """

    trial: int
    place: int
    value: float | None = None
    failure: str = ""
    runs: list[str] = field(default_factory=list)
    is_final: list[bool] = field(default_factory=list)


class Proposal(Record, frozen=True, kw_only=True):
    """{trial}/proposal.json: the settings of one trial, or the choice of a trial that is promoted to a rung.

    Attributes:
        study: Id of the study.
        trial: Number of the trial, from 0.
        rung: Number of the rung, from 0; above 0 for a promotion.
        settings: Varied settings by dotted key.
        keys: Dotted keys of the values of `row`.
        row: The settings as numbers and places of choices; null where a condition does not apply.
        runs: Id of the run of each training; empty if the settings are excluded. With `stop.median`, of each rung.
        excluded: Why the settings are not trained; empty if they are.
        chosen: The trial at the rung before; only in a promotion.
        left: The candidates that were not promoted so far, the best first; only in a promotion.
        told: Earlier trials whose results were known, in order.
        in_flight: Rows of the earlier trials whose results were not waited for.
        parallel: Number of parallel trials so far, by the first trial that it applied to.
        before: Folder of the proposal that this one continues; empty for none.
        results: Folders of the results that this proposal is the first to know.
        action: Record of the job.
    """

    study: str
    trial: int
    settings: dict[str, Any]
    keys: list[str]
    row: Row
    rung: int = 0
    runs: list[str] = field(default_factory=list)
    excluded: str = ""
    chosen: Candidate | None = None
    left: list[Candidate] = field(default_factory=list)
    told: list[Seen] = field(default_factory=list)
    in_flight: list[Row] = field(default_factory=list)
    parallel: dict[str, int] = field(default_factory=dict)
    before: str = ""
    results: list[str] = field(default_factory=list)
    action: JobRecord | UnsetType = UNSET


class TrialResult(Record, frozen=True, kw_only=True):
    """{trial}/result-{repeat}.json: the end of one training of a trial.

    Attributes:
        study: Id of the study.
        trial: Number of the trial.
        repeat: Number of the training, from 0.
        run: Id of the run; empty if the settings were excluded.
        value: Best validation value of the objective; null after a failure.
        step: Optimiser step of that value.
        steps: Optimiser steps that were trained, without those of a shorter rung.
        seconds: Seconds of the training; null if unknown.
        failure: Why the training itself failed; empty if it did not.
        linked: Whether the run was sealed before, so that the trial cost nothing.
        rung: Number of the rung of the value.
        values: With `stop.median`, the values at the rungs before.
        is_final: Whether the training ended early, so that the value is the same at all longer rungs.
        action: Record of the job.
    """

    study: str
    trial: int
    rung: int = 0
    values: list[float] = field(default_factory=list)
    is_final: bool = False
    repeat: int = 0
    run: str = ""
    value: float | None = None
    step: int | None = None
    steps: int | None = None
    seconds: float | None = None
    failure: str = ""
    linked: bool = False
    action: JobRecord | UnsetType = UNSET


class Trial(Record, frozen=True, kw_only=True):
    """A trial of a study.

    Attributes:
        trial: Number of the trial, from 0.
        settings: Varied settings by dotted key.
        row: See `Proposal.row`.
        runs: Id of the run of each training.
        value: Mean value of the objective over the trainings; null after a failure.
        seconds: Seconds of all trainings; null if unknown.
        failure: Why the trial has no value; empty if it has one.
        linked: Whether all runs were sealed before.
        rung: Number of the last rung that the trial has ended, from 0.
        values: With rungs, the value at each of them.
        steps: With rungs, the optimiser steps of all trainings; null if unknown.
    """

    trial: int
    settings: dict[str, Any]
    row: Row
    runs: list[str] = field(default_factory=list)
    value: float | None = None
    seconds: float | None = None
    failure: str = ""
    linked: bool = False
    rung: int = 0
    values: list[float] = field(default_factory=list)
    steps: int | None = None


class Study(Record, frozen=True, kw_only=True):
    """The trials of a study.

    Attributes:
        study: Id of the study.
        metric: Metric of the objective.
        mode: `min` or `max`.
        keys: Varied settings.
        trials: Trials in order.
        best: Number of the best trial; null if none has a value.
        importance: Share of the values' variance that each setting explains (fANOVA); empty if unknown.
        rungs: Epochs or steps of each rung at which trials may end; empty if every trial trained to its end.
        unit: What the rungs count.
    """

    study: str
    metric: str
    mode: str
    keys: list[str]
    trials: list[Trial]
    best: int | None = None
    importance: dict[str, float] = field(default_factory=dict)
    rungs: list[int] = field(default_factory=list)
    unit: Unit = "epoch"


class StudyResult(Study, frozen=True, kw_only=True):
    """study-{trials}.json: a finished study.

    Attributes:
        folders: Folders of the trials and promotions.
        identity: What decides the proposals, see `config.sweeps`.
        action: Record of the job.
    """

    folders: list[str] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    action: JobRecord | UnsetType = UNSET


class ReportedStudy(Study, frozen=True, kw_only=True):
    """A study in `report.json`, with the trials that have ended.

    Attributes:
        name: Name of the sweep.
        sampler: Sampler of the sweep.
        planned: Number of trials in the config.
        kinds: Kind of values of each setting: `uniform`, `log`, `int`, `int_log` or `choices`.
        action: Id of the job that sealed the study; empty if trials are missing.
    """

    name: str
    sampler: str
    planned: int
    kinds: dict[str, str] = field(default_factory=dict)
    action: str = ""
