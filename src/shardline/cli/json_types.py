"""Types of what each command prints with `--json`, for the reference; no command imports this module."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from shardline.cli.json_listings import (
    BestTrial,
    Deletion,
    GuessedDataset,
    ListedRun,
    ListedTrial,
    Why,
)
from shardline.cli.predict import Predicted
from shardline.drills.outcome import DrilledRun
from shardline.launch.preflight.preflight_table import PreflightReport
from shardline.provenance.nodes import FileNode
from shardline.records.found import FoundBatch, FoundRates
from shardline.results.check.found import Finding
from shardline.results.data_show import ShownDataset
from shardline.results.diff import Comparison
from shardline.results.export.export_run import Exported
from shardline.results.findings import VerifyResult
from shardline.results.replay.replay_run import Replay
from shardline.results.rerun import Rerun


class WrittenReport(TypedDict):
    """The report that was written.

    Attributes:
        report: File of the page.
        results: Number of runs with a result.
        outcomes: Number of other runs by state.
    """

    report: str
    results: int
    outcomes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Replayed(Replay):
    """Result of a replay.

    Attributes:
        equal: Whether every number is equal within the tolerance.
    """

    equal: bool


@dataclass(frozen=True, kw_only=True)
class Reran(Rerun):
    """Comparison of a rerun with the result.

    Attributes:
        equal: Whether the weights are bit-identical.
    """

    equal: bool


class TracedAction(TypedDict):
    """A job that wrote a file.

    Attributes:
        id: Rule and key of the job.
        inputs: Names of the files that it read.
        code: Digest of the job's code; empty if it is not recorded.
        record: Record of the job; an empty object if there is none.
    """

    id: str
    inputs: list[str]
    code: str
    record: dict[str, Any]


class Traced(TypedDict):
    """The files and actions behind one file.

    Attributes:
        file: Name of the traced file.
        problem: Sentence about the file if its bytes differ from the recorded ones; else empty.
        files: Files by name.
        actions: Actions by id.
    """

    file: str
    problem: str
    files: dict[str, FileNode]
    actions: dict[str, TracedAction]


class Crate(TypedDict, total=False):
    """The crate, and the zip file if it was packed.

    Attributes:
        metadata: File of the crate's metadata.
        exists: Whether the file exists.
        zip: Written file, with `--zip`.
        files: Number of packed files, with `--zip`.
        bytes: Size of the written file, with `--zip`.
    """

    metadata: Path
    exists: bool
    zip: Path
    files: int
    bytes: int


class Drilled(TypedDict):
    """Outcomes of a fault-injection test.

    Attributes:
        outcomes: Outcome of each run.
        certificate: File of the resume certificate; null without one.
    """

    outcomes: list[DrilledRun]
    certificate: Path | None


class AcceptedResults(TypedDict):
    """Accepted results.

    Attributes:
        accepted: Folders of the accepting results.
    """

    accepted: list[str]


# What a command prints with --json, by its name and the options that change the form.
OUTPUTS: dict[str, Any] = {
    "ls": list[ListedRun],
    "ls --study": list[ListedTrial],
    "best": BestTrial,
    "why": Why,
    "diff": Comparison,
    "table": list[dict[str, str | int | float | None]],
    "check": list[Finding],
    "data show": list[ShownDataset],
    "data init": GuessedDataset,
    "find lr": FoundRates,
    "find batch": FoundBatch,
    "gc": Deletion,
    "rm": Deletion,
    "verify": list[VerifyResult],
    "lineage": Traced,
    "report": WrittenReport,
    "crate": Crate,
    "preflight": dict[str, PreflightReport],
    "accept": AcceptedResults,
    "predict": Predicted,
    "export": Exported,
    "replay": Replayed,
    "rerun": Reran,
    "drill": Drilled,
}
