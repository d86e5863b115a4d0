"""What ranks are given, with the settings that most tests want."""

from pathlib import Path
from typing import Any

from msgspec import convert, structs

from shardline.checkpoints.folder import CheckpointPolicy
from shardline.config.run_spec import DatasetPlace
from shardline.training.rank_spec import RankRuntime, RankSpec

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


def rank_spec(
    folder: Path, *, run_json: Path, manifest: Path, shards: Path, runtime: RankRuntime = _RUNTIME,
    **changes: Any,
) -> RankSpec:  # fmt: skip
    """Return what the ranks of a training in a folder of its own are given."""
    return RankSpec(
        run_json=run_json,
        datasets=(DatasetPlace(manifest=manifest, shards=shards),),
        work=folder / "work",
        results=folder / "results",
        rank_logs=folder / "logs",
        runtime=runtime,
        **changes,
    )
