"""`rank.json`: what the program of a rank is given, whatever it does; see `shardline.training.rank`.

msgspec reads it, since it checks names and types by the classes below, and takes 40 ms to import.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from shardline.checkpoints.folder import CheckpointPolicy
from shardline.config.resolved import ActualGeometry, DatasetPlace, RunSpec
from shardline.config.scripts import ScriptEnvironment
from shardline.config.settings.config import Runtime
from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.records.base import read_record
from shardline.records.runs import ResolvedRun
from shardline_io.order import VERSION as ORDER_VERSION


class RankRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The settings under `runtime` that ranks read. None of them changes a result.

    Attributes:
        log_every_steps: optimiser steps between two metric records.
        ledger: write which rows each step consumed.
        verify: when a shard is verified against its checksum.
        strict_env: what to do where installed packages differ from the lock.
        watch_reads: what to do about files that are read and count in no identity.
        oversubscribe: allow ranks to share devices and cores.
        rendezvous_timeout_s: seconds that ranks wait for one another.
        hang_timeout_s: seconds without progress after which a rank counts as hung; 0 for never.
        check_sealed: what to do where a fresh model with the best weights does not repeat their validation.
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

    @classmethod
    def of(cls, runtime: Runtime) -> "RankRuntime":
        """Return the part of the profile's settings that ranks read."""
        return msgspec.convert(msgspec.to_builtins(runtime), cls)


class _Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    """What the ranks do with the run; its tag is the class in lower case."""


class ShortTraining(msgspec.Struct, frozen=True, kw_only=True):
    """A training that ends after some steps and seals nothing.

    Attributes:
        num_steps: optimiser steps.
        metrics: file for the metrics of each.
    """

    num_steps: int
    metrics: Path


class Train(_Action, frozen=True, kw_only=True):
    """Train the run, and seal the results.

    Attributes:
        run_json: the resolved run's file, which a training script reads.
        results: folder for the sealed files.
        attempt: number of the attempt that the job has begun; 0: rank 0 begins one.
        set_by_row: settings that the run's own row sets; rejected where the model ignores them.
        tracking: trackers whose links go into the provenance.
        first_steps: None: train to the end.
        script_python: words that start the Python of an environment that the script has of its own.
        script_environment: that environment, where each node builds it.
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
        model: the sealed weights.
        output: file for what is found.
        has_test_step: whether the evaluation is by `test_step`.
        has_samples: whether the model describes samples.
    """

    model: Path
    output: Path
    has_test_step: bool
    has_samples: bool


class Predict(_Action, frozen=True, kw_only=True):
    """Predict rows with a sealed model.

    Attributes:
        model: the sealed weights.
        rows: where the dataset is that is predicted; the task's own are those of the training.
        split: which of its rows.
        parts: what the ranks compute.
        folder: for the parts.
    """

    model: Path
    rows: DatasetPlace
    split: str
    parts: tuple[int, ...]
    folder: Path


class Preflight(_Action, frozen=True, kw_only=True):
    """Run the preflight check alone.

    Attributes:
        output: file for what is found.
    """

    output: Path


class CheckedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of a run, sealed or not.

    Attributes:
        id: of its identity.
        name: as people read it.
        manifest: where its manifest is, once it is sealed.
        shards: folder of its shards.
        source_class: import path of the source.
        source: its settings.
        num_shards: files that it is cut into.
        files: what the source reads.
        weight: its share of a mix, as in `DatasetPlace`.
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
        sources: the run's datasets, in the place of the task's.
        output: file for a `ModelResult`.
        has_test_step: whether the evaluation is by `test_step`.
        set_by_row: settings that the run's own row sets.
        memory_bytes: what the program may allocate; a model that needs more is not checked.
        is_elsewhere: whether jobs have packages of their own, so that one missing here tells nothing.
    """

    sources: tuple[CheckedDataset, ...]
    output: Path
    has_test_step: bool = False
    set_by_row: tuple[str, ...] = ()
    memory_bytes: int = 0
    is_elsewhere: bool = False


class RankTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank does: an action on a run, and where.

    Attributes:
        run: the resolved run; classes that it names are where they lie now.
        action: what is done with it.
        datasets: where the datasets are, in the order in which their weights are added up.
        work: folder in the store, where a rank that fails records its error.
        rank_logs: folder for the logs of all ranks but the first.
        runtime: how the work is done.
        geometry: the ranks that are started; as planned where it is None.
    """

    run: RunSpec
    action: Train | Evaluate | Predict | Check | Preflight
    datasets: tuple[DatasetPlace, ...] = ()
    work: Path
    rank_logs: Path
    runtime: RankRuntime
    geometry: ActualGeometry | None = None


class ModelResult(msgspec.Struct, kw_only=True):
    """What a `Check` has found of a model.

    Attributes:
        problems: a sentence for each mistake.
        not_checked: a sentence for each thing that could not be checked here, and why.
        weights_bytes: size of the sealed model; 0 where it is not known.
        state_bytes: size of a training checkpoint; 0 where it is not known.
        inferred: what the files of each dataset say, by its name, see `data.inferred`.
        num_rows: of the one dataset, all splits together; None of several, and where counting would take long.
    """

    problems: list[str] = []
    not_checked: list[str] = []
    weights_bytes: int = 0
    state_bytes: int = 0
    inferred: dict[str, dict[str, Any]] = {}
    num_rows: int | None = None


def write_result(path: Path, result: ModelResult) -> None:
    """Write what a check has found, all or nothing."""
    write_bytes(path, msgspec.json.encode(result) + b"\n")


def read_result(path: Path) -> ModelResult | None:
    """Read what a check has found of a model; None where that was not written to its end."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelResult)
    except (OSError, msgspec.DecodeError):
        return None


def write_task(path: Path, task: RankTask) -> None:
    """Write what a rank is given, all or nothing."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(task, enc_hook=str)) + b"\n")


def read_task(path: Path) -> RankTask:
    """Read what a rank is given.

    Raises:
        DataError: the file cannot be read, or a field is missing, unknown or of another type.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankTask, dec_hook=_to_path)
    except (OSError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read ({why}); start the run again to write it") from None


def _to_path(kind: type, value: Any) -> Any:
    return kind(value)


def read_run(run_json: Path, *, name: str = "") -> RunSpec:
    """Return a resolved run.

    Args:
        name: what messages call it, which the file does not hold.

    Raises:
        DataError: the file cannot be read, or has another order of samples.
    """
    document = read_record(
        run_json, ResolvedRun, remedy="run the pipeline again to resolve the run"
    )
    if document.order != ORDER_VERSION:
        raise DataError(
            f"{run_json} has the order of samples of version {document.order}, expected {ORDER_VERSION}, this "
            "Shardline's; delete the run's folder beside it to resolve it again, or use the Shardline that wrote it"
        )
    return RunSpec.of(document, name=name)
