"""The task of a rank, as `rank.json` contains it; see `shardline.training.rank`.

msgspec reads the file: it checks names and types by the classes below, and imports in 40 ms.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.config.resolved import ActualGeometry, DatasetPlace, RunSpec
from shardline.config.scripts import ScriptEnvironment
from shardline.config.settings.config import Runtime
from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.records.base import read_record
from shardline.records.runs import ResolvedRun
from shardline_io.order import VERSION as ORDER_VERSION

PROGRAM = "shardline.training.rank"  # the program of a rank, as after `python -m`


class RankRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The settings under `runtime` that ranks read. None of them changes a result.

    Attributes:
        log_every_steps: Optimiser steps between two metric records.
        checkpoint: When training checkpoints are saved, and how many are kept.
        ledger: Whether to write which rows each step consumed.
        verify: When a shard is verified against its checksum.
        strict_env: What to do if installed packages differ from the lock.
        watch_reads: What to do about files that a training reads and no identity contains.
        oversubscribe: Whether ranks may share devices and cores.
        rendezvous_timeout_s: Seconds that ranks wait for one another.
        hang_timeout_s: Seconds without progress after which a rank counts as hung; 0 for never.
        check_sealed: What to do if a fresh model with the best weights does not repeat their validation.
        profiler: Profiler of the training.
        detect_anomaly: Whether to find the operation whose gradient is NaN.
        model_summary: Whether to print the layers of the model.
        callbacks: Callbacks of the training that change no result.
    """

    log_every_steps: int
    checkpoint: CheckpointPolicy
    ledger: bool
    verify: Literal["off", "first", "always"]
    strict_env: Literal["error", "warn"]
    watch_reads: Literal["off", "warn", "error"]
    oversubscribe: bool
    rendezvous_timeout_s: int
    hang_timeout_s: float
    check_sealed: Literal["error", "warn"] = "error"
    profiler: Literal["off", "simple", "advanced", "pytorch"] = "off"
    detect_anomaly: bool = False
    model_summary: bool = False
    callbacks: list[str | dict[str, Any]] = []

    @classmethod
    def of(cls, runtime: Runtime) -> "RankRuntime":
        """Return those settings of a profile's `runtime` that ranks read."""
        return msgspec.convert(msgspec.to_builtins(runtime), cls)


class _Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    """An action of the ranks on the run; its tag in JSON is the class name in lower case."""


class ShortTraining(msgspec.Struct, frozen=True, kw_only=True):
    """A training that ends after some steps and seals nothing.

    Attributes:
        num_steps: Number of optimiser steps.
        metrics: File to write, with the metrics of each step.
    """

    num_steps: int
    metrics: Path


class Train(_Action, frozen=True, kw_only=True):
    """Train the run, and seal the results.

    Attributes:
        run_json: File of the resolved run, which a training script reads.
        results: Folder for the sealed files.
        attempt: Number of the attempt that the job has begun; 0: rank 0 begins an attempt.
        set_by_row: Settings in the run's own row; rejected if the model ignores them.
        tracking: Trackers whose links go into the provenance.
        first_steps: Only train these steps; None: train to the end.
        script_python: Command that starts Python in the script's own environment; empty if it has none.
        script_environment: The script's own environment, if each node builds it.
    """

    run_json: Path
    results: Path
    attempt: int = 0
    set_by_row: tuple[str, ...] = ()
    tracking: tuple[str, ...] = ()
    first_steps: ShortTraining | None = None
    script_python: tuple[str, ...] = ()
    script_environment: ScriptEnvironment | None = None


class Evaluate(_Action, frozen=True, kw_only=True):
    """Evaluate a sealed model.

    Attributes:
        model: File of the sealed weights.
        output: File to write, with the evaluation.
        has_test_step: Whether the model's source defines `test_step`.
        has_samples: Whether the model describes samples.
    """

    model: Path
    output: Path
    has_test_step: bool
    has_samples: bool


class Find(_Action, frozen=True, kw_only=True):
    """Try settings on a few steps, and keep nothing.

    Attributes:
        what: Learning rates, or the memory of the global batch.
        output: File to write, with `FoundRates` or a `MeasuredBatch`.
    """

    what: Literal["lr", "batch"]
    output: Path


class Predict(_Action, frozen=True, kw_only=True):
    """Predict rows with a sealed model.

    Attributes:
        model: File of the sealed weights.
        rows: The dataset to predict; the task's `datasets` are those of the training.
        split: Split of `rows` to predict.
        parts: Numbers of the parts that all ranks together compute.
        folder: Folder for the parts.
    """

    model: Path
    rows: DatasetPlace
    split: str
    parts: tuple[int, ...]
    folder: Path


class Preflight(_Action, frozen=True, kw_only=True):
    """Run the preflight check alone.

    Attributes:
        output: File to write, with the found ranks, devices and libraries.
    """

    output: Path


class CheckedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of a run, sealed or not.

    Attributes:
        id: First characters of the dataset's identity.
        name: Name of the dataset in the config.
        manifest: File of the manifest; exists once the dataset is sealed.
        shards: Folder of the shards.
        source_class: Import path of the source class.
        source: Settings of the source.
        num_shards: Number of shards.
        files: Files that the source reads.
        weight: Weight in a mix, as in `DatasetPlace`.
    """

    id: str
    name: str
    manifest: Path
    shards: Path
    source_class: str
    source: dict[str, Any]
    num_shards: int
    files: list[Path]
    weight: str = "1"


class Check(_Action, frozen=True, kw_only=True):
    """Try the run's model for one step on the first rows of its datasets, which need not be built.

    Attributes:
        sources: Datasets of the run, used instead of the task's `datasets`.
        output: File to write, with a `ModelResult`.
        has_test_step: Whether the model's source defines `test_step`.
        set_by_row: Settings in the run's own row.
        memory_bytes: Memory limit of the program; a model that needs more is not checked.
        is_elsewhere: Whether jobs run in another environment. A package missing here is then no problem.
    """

    sources: tuple[CheckedDataset, ...]
    output: Path
    has_test_step: bool = False
    set_by_row: tuple[str, ...] = ()
    memory_bytes: int = 0
    is_elsewhere: bool = False


class RankTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The task of a rank: an action on a run, and where its files are.

    Attributes:
        run: The resolved run, with the current import paths of its classes.
        action: What to do with the run.
        datasets: Places of the run's datasets, in the order in which their weights are added up.
        work: The run's folder in the store, where a failing rank records its error.
        rank_logs: Folder for the logs of all ranks except rank 0.
        runtime: Settings that do not change results.
        geometry: Nodes and devices that are started; None if they are as planned.
    """

    run: RunSpec
    action: Train | Evaluate | Find | Predict | Check | Preflight
    datasets: tuple[DatasetPlace, ...] = ()
    work: Path
    rank_logs: Path
    runtime: RankRuntime
    geometry: ActualGeometry | None = None


class ModelResult(msgspec.Struct, kw_only=True):
    """The result of a `Check` of a model.

    Attributes:
        problems: A sentence for each mistake.
        not_checked: A sentence for each check that this machine cannot do, with the reason.
        weights_bytes: Size of the sealed model; 0 if unknown.
        state_bytes: Size of a training checkpoint; 0 if unknown.
        inferred: Properties inferred from the files of each dataset, by its name, see `data.inferred`.
        num_rows: Rows of the only dataset, all splits together; None for several datasets or if unknown.
        own_optimizer: Whether the model has its own `configure_optimizers`.
    """

    problems: list[str] = []
    not_checked: list[str] = []
    weights_bytes: int = 0
    state_bytes: int = 0
    inferred: dict[str, dict[str, Any]] = {}
    num_rows: int | None = None
    own_optimizer: bool = False


def write_result(path: Path, result: ModelResult) -> None:
    """Write the result of a check, all or nothing."""
    write_bytes(path, msgspec.json.encode(result) + b"\n")


def read_result(path: Path) -> ModelResult | None:
    """Read the result of a check; None if the file is missing or incomplete."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelResult)
    except (OSError, msgspec.DecodeError):
        return None


def write_task(path: Path, task: RankTask) -> None:
    """Write the task of a rank, all or nothing."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(task, enc_hook=str)) + b"\n")


def read_task(path: Path) -> RankTask:
    """Read the task of a rank.

    Raises:
        DataError: The file cannot be read, or a field is missing, unknown or has another type.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankTask, dec_hook=_to_path)
    except (OSError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read ({why}); start the run again to write it") from None


def _to_path(kind: type, value: Any) -> Any:
    return kind(value)


def read_run(run_json: Path, *, name: str = "") -> RunSpec:
    """Read a resolved run.

    Args:
        name: Name of the run in messages, which the file does not contain.

    Raises:
        DataError: The file cannot be read, or has another version of the sample order.
    """
    document = read_record(
        run_json, ResolvedRun, remedy="run the pipeline again to resolve the run"
    )
    if document.order != ORDER_VERSION:
        raise DataError(
            f"{run_json} has version {document.order} of the sample order, expected {ORDER_VERSION}, as in this "
            f"Shardline; delete {run_json.parent} to resolve the run again, or use the Shardline that wrote the file"
        )
    return RunSpec.of(document, name=name)
