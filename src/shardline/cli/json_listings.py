"""Types of what commands that list something print with `--json`, for the reference; no command imports this module."""

from pathlib import Path
from typing import Any, Literal, TypedDict

from shardline.config.causes import Cause
from shardline.core.intervals import Interval
from shardline.records.failures import Failure
from shardline.records.model_warnings import ModelWarning
from shardline.records.sweeps import Trial
from shardline.results.gc import Garbage
from shardline.results.running import Progress

_State = Literal["done", "trained", "running", "failed", "stopped", "stale", "new"]


class ListedBase(TypedDict):
    """A run or a file whose weights another run uses.

    Attributes:
        kind: How the weights are used.
        source: Text of the config.
        name: Name of the run; empty for a file.
        run: Id of the run; empty for a file.
        state: Which weights of the run.
        identity: Identity of the run, or the digest of the file.
    """

    kind: str
    source: str
    name: str
    run: str
    state: str
    identity: str


class Headline(TypedDict):
    """The metric that ranks a run.

    Attributes:
        metric: Name of the metric.
        mode: `min` or `max`: which value is best; null if the record cannot be read.
        value: Value on the held-out rows; null if the record cannot be read.
    """

    metric: str
    mode: Literal["min", "max"] | None
    value: float | None


class Mean(TypedDict):
    """Mean over runs that differ only in seed or fold.

    Attributes:
        name: Common name of the runs.
        metric: Headline metric.
        mean: Mean of the values.
        sd: Standard deviation of the values; null if unknown.
        interval: Ends of the 95 % confidence interval of the mean; null if unknown.
        over: What the mean is over, such as `5 folds x 3 seeds`.
    """

    name: str
    metric: str
    mean: float
    sd: float | None
    interval: Interval | None
    over: str


class ListedRun(TypedDict):
    """A run of the config.

    Attributes:
        run: Names, separated by commas.
        names: All names in the table.
        id: Id: the first digits of the identity's digest.
        dataset: Names of the datasets.
        model: Model as the table names it.
        bases: Runs and files whose weights the run uses.
        state: State of the run.
        step: Last optimiser step of a stopped training; else null.
        progress: Progress of a training that runs now; else null.
        failure: First failure of a failed run; else null.
        headline: Headline metric of an evaluated run; else null.
        warnings: Why the sealed model is suspect.
        folder: Folder of the sealed files.
        mean: Mean over the repeats of the run; null if it is not repeated.
    """

    run: str
    names: list[str]
    id: str
    dataset: str
    model: str
    bases: list[ListedBase]
    state: _State
    step: int | None
    progress: Progress | None
    failure: Failure | None
    headline: Headline | None
    warnings: list[ModelWarning]
    folder: Path
    mean: Mean | None


class ListedTrial(Trial, frozen=True, kw_only=True):
    """A trial of a sweep.

    Attributes:
        study: Name of the sweep.
        epochs: Epochs of the rung that the trial has reached; null without rungs of epochs, and before the first value.
        state: State of the trial.
        best: Whether it is the best trial so far.
    """

    study: str
    epochs: int | None
    state: Literal["done", "stopped", "waiting", "failed", "excluded", "proposed", "new"]
    best: bool


class BestTrial(Trial, frozen=True, kw_only=True):
    """The best trial of a sweep.

    Attributes:
        study: Name of the sweep.
        ended: Number of trials that have ended.
        row: Cells of a row for the run table, by column.
    """

    study: str
    ended: int
    row: dict[str, str]  # type: ignore[assignment]  # cells, in place of numbers


class Why(TypedDict):
    """Why a run is in its state.

    Attributes:
        run: Id of the run.
        state: State of the run.
        compared_with: File of the nearest older identity document; null without one.
        causes: Kind and text of each difference from that document.
        failure: First failure of a failed run; else null.
        progress: Progress of a training that runs now; else null.
        variables: Recorded environment variables whose values have changed.
        edited: Sentence about edited code of Shardline that the run uses; empty without.
        length: Sentence about the shorter run that the training will continue; empty without.
    """

    run: str
    state: _State
    compared_with: Path | None
    causes: list[Cause]
    failure: Failure | None
    progress: Progress | None
    variables: list[str]
    edited: str
    length: str


class Deletion(TypedDict):
    """Files that are listed, or deleted with `--delete`.

    Attributes:
        deleted: Whether `--delete` was given.
        bytes: Size of all items.
        items: The files, folders and links.
        dependents: Sentences about runs that depend on the items.
    """

    deleted: bool
    bytes: int
    items: list[Garbage]
    dependents: list[str]


class GuessedDataset(TypedDict):
    """A guessed entry of `datasets`.

    Attributes:
        name: Name of the dataset.
        settings: Settings of the entry.
        comments: Comments on settings, by key.
        notes: Further comments.
    """

    name: str
    settings: dict[str, Any]
    comments: dict[str, str]
    notes: list[str]
