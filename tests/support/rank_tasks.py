"""What ranks are given, with the settings that most tests want."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import convert, structs

from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.config.resolved import ActualGeometry, DatasetPlace, RunSpec
from shardline.core.world import World
from shardline.training.rank_task import (
    Check,
    CheckedDataset,
    ModelResult,
    RankRuntime,
    RankTask,
    Train,
    read_run,
)

ALONE = World(
    rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="127.0.0.1", master_port=0,
    launcher="none",
)  # fmt: skip
_RUNTIME = RankRuntime(
    log_every_steps=1,
    checkpoint=CheckpointPolicy(),
    ledger=True,
    verify="first",
    strict_env="error",
    watch_reads="off",
    oversubscribe=True,
    rendezvous_timeout_s=60,
    hang_timeout_s=0.0,
)


def rank_runtime(*, checkpoint: dict[str, Any] | None = None, **changes: Any) -> RankRuntime:
    """Return settings of ranks: one record a step, no watchdog, and what else is asked for."""
    saves = structs.replace(_RUNTIME.checkpoint, **(checkpoint or {}))
    changed = structs.asdict(structs.replace(_RUNTIME, checkpoint=saves, **changes))
    return convert(changed, RankRuntime)


def rank_task(
    folder: Path, *, run_json: Path, manifest: Path, shards: Path, runtime: RankRuntime = _RUNTIME,
    run: RunSpec | None = None, name: str = "", geometry: ActualGeometry | None = None,
    **changes: Any,
) -> RankTask:  # fmt: skip
    """Return what the ranks of a training in a folder of its own are given.

    Args:
        run: None: what `run_json` holds.
        name: what messages call it.
        changes: fields of `Train`.
    """
    return RankTask(
        run=run or read_run(run_json, name=name),
        action=Train(run_json=run_json, results=folder / "results", **changes),
        datasets=(DatasetPlace(manifest=manifest, shards=shards),),
        work=folder / "work",
        rank_logs=folder / "logs",
        runtime=runtime,
        geometry=geometry,
    )


def checked(
    run: RunSpec, dataset: CheckedDataset, folder: Path, *, callbacks: Sequence[Any] = (), **changes: Any
) -> ModelResult:  # fmt: skip
    """Return what the check of a run's model finds.

    Args:
        folder: for what is written meanwhile.
        callbacks: `runtime.callbacks`.
        changes: fields of `Check`.
    """
    from shardline.training.model_check import check_model

    action = Check(sources=(dataset,), output=folder / "result.json", **changes)
    task = RankTask(
        run=run, action=action, work=folder, rank_logs=folder / "logs",
        runtime=rank_runtime(callbacks=[*callbacks]),
    )  # fmt: skip
    return check_model(task, action, ALONE)
