"""`rank.json`: what the ranks of one attempt are given beside the resolved run, a file for each attempt.

msgspec reads it, since it checks names and types by the classes below, and takes 40 ms to import.
"""

import argparse
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from shardline.checkpoints.folder import CheckpointPolicy
from shardline.config.geometry import ActualGeometry
from shardline.config.run_spec import DatasetPlace
from shardline.config.script_environment import ScriptEnvironment
from shardline.config.settings.run import Data, RunSettings
from shardline.core.errors import DataError
from shardline.core.files import write_bytes

_Spec = TypeVar("_Spec", "RankSpec", "PreflightSpec", "EvaluationSpec", "PredictionSpec")


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


class FirstSteps(msgspec.Struct, frozen=True, kw_only=True):
    """A training that ends after some steps and seals nothing.

    Attributes:
        num_steps: optimiser steps.
        metrics: file for the metrics of each.
    """

    num_steps: int
    metrics: Path


class RankSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ranks of one attempt are given.

    Attributes:
        run_json: the resolved run.
        model_class: import path of the model now, which may have moved since `run_json` was
            written; empty: as resolved.
        data: the run's `data` settings now: classes that they name may have moved as well, and how
            many workers there are does not count; None: as resolved.
        datasets: where the datasets are, in the order in which their weights are added up.
        work: folder of the run in the store.
        results: folder for the sealed files.
        rank_logs: folder for the logs of all ranks but the first.
        runtime: how the work is done.
        geometry: what the job has for the run; as planned where it is None.
        attempt: number of the attempt that the job has begun; 0: rank 0 begins one.
        set_by_row: settings that the run's own row sets; rejected where the model ignores them.
        tracking: trackers whose links go into the provenance.
        first_steps: None: train to the end.
        script_python: words that start the Python of an environment that the script has of its own.
        script_environment: that environment, where each node builds it.
    """

    run_json: Path
    model_class: str = ""
    data: Data | None = None
    datasets: tuple[DatasetPlace, ...]
    work: Path
    results: Path
    rank_logs: Path
    runtime: RankRuntime
    geometry: ActualGeometry | None = None
    attempt: int = 0
    set_by_row: tuple[str, ...] = ()
    tracking: tuple[str, ...] = ()
    first_steps: FirstSteps | None = None
    script_python: tuple[str, ...] = ()
    script_environment: ScriptEnvironment | None = None


class PreflightSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ranks of a preflight check are given.

    Attributes:
        run: named in messages.
        accelerator: setting of the run.
        work: folder in the store, where a rank that fails records its error.
        rank_logs: folder for the logs of all ranks but the first.
        output: file for what they found.
        oversubscribe: allow ranks to share devices and cores.
        rendezvous_timeout_s: seconds that ranks wait for one another.
        geometry: the ranks that are started.
    """

    run: str
    accelerator: str
    work: Path
    rank_logs: Path
    output: Path
    oversubscribe: bool
    rendezvous_timeout_s: int
    geometry: ActualGeometry


class EvaluationSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ranks of an evaluation are given.

    Attributes:
        run: its id, as is `name` what messages call it.
        model_class: import path of the model now.
        settings: of the run.
        has_test_step: whether its evaluation is by `test_step`.
        has_samples: whether the model describes samples.
        model: the sealed weights.
        datasets: where the datasets are.
        work: folder in the store, where a rank that fails records its error.
        rank_logs: folder for the logs of all ranks but the first.
        output: file for what they found.
        verify: when a shard is verified against its checksum.
        watch_reads: what to do about files that are read and count in no identity.
        oversubscribe: allow ranks to share devices and cores.
        rendezvous_timeout_s: seconds that ranks wait for one another.
        geometry: the ranks that are started.
    """

    run: str
    name: str
    model_class: str
    settings: RunSettings
    has_test_step: bool
    has_samples: bool
    model: Path
    datasets: tuple[DatasetPlace, ...]
    work: Path
    rank_logs: Path
    output: Path
    verify: Literal["off", "first", "always"]
    watch_reads: Literal["off", "warn", "error"]
    oversubscribe: bool
    rendezvous_timeout_s: int
    geometry: ActualGeometry


class PredictionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ranks of a prediction are given.

    Attributes:
        run: its id, as is `name` what messages call it.
        model_class: import path of the model now.
        settings: of the run.
        model: the sealed weights.
        datasets: where the datasets are that the run was trained on.
        rows: where the dataset is that is predicted.
        split: which of its rows.
        parts: what the ranks compute.
        folder: for the parts.
        work: folder in the store, where a rank that fails records its error.
        rank_logs: folder for the logs of all ranks but the first.
        verify: when a shard is verified against its checksum.
        oversubscribe: allow ranks to share devices and cores.
        rendezvous_timeout_s: seconds that ranks wait for one another.
        geometry: the ranks that are started.
    """

    run: str
    name: str
    model_class: str
    settings: RunSettings
    model: Path
    datasets: tuple[DatasetPlace, ...]
    rows: DatasetPlace
    split: str
    parts: tuple[int, ...]
    folder: Path
    work: Path
    rank_logs: Path
    verify: Literal["off", "first", "always"]
    oversubscribe: bool
    rendezvous_timeout_s: int
    geometry: ActualGeometry


AnySpec = RankSpec | PreflightSpec | EvaluationSpec | PredictionSpec
# the module of shardline.training that each is given to
PROGRAMS: dict[type, str] = {
    RankSpec: "worker",
    PreflightSpec: "preflight",
    EvaluationSpec: "evaluation_worker",
    PredictionSpec: "prediction_worker",
}


def write_spec(path: Path, spec: AnySpec) -> None:
    """Write what ranks are given, all or nothing."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(spec, enc_hook=str)) + b"\n")


def read_spec(path: Path, kind: type[_Spec]) -> _Spec:
    """Read what ranks are given.

    Raises:
        DataError: the file cannot be read, or a field is missing, unknown or of another type.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_to_path)
    except (OSError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read ({why}); start the run again to write it") from None


def spec_of_command(kind: type[_Spec], program: str, description: str | None) -> _Spec:
    """Read what the command line of a rank's program names, see `read_spec`."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("spec", type=Path, help=f"what the ranks are given, see `{kind.__name__}`")
    return read_spec(parser.parse_args().spec, kind)


def _to_path(kind: type, value: Any) -> Any:
    return kind(value)
