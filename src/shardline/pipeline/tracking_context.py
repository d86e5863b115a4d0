"""What trackers get of a training."""

from pathlib import Path

from shardline import __version__
from shardline.config.resolved import as_plain
from shardline.config.run import Run
from shardline.config.scripts import is_script
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.git import git_commit
from shardline.core.nested import flatten
from shardline.tracking import TrackingContext


def tracking_context_of(
    run: Run, store: Path, work: Path, *, manifest: Path, model: str
) -> TrackingContext:
    """Return what trackers get of a training."""
    tags = {
        "shardline.identity": digest(run.document),
        "shardline.dataset": run.dataset.id,
        "shardline.manifest": file_sha256(manifest) if manifest.exists() else None,
        "shardline.commit": git_commit(Path.cwd()),
        "shardline.version": __version__,
    }
    return TrackingContext(
        run=run.id,
        name=run.name,
        dataset=run.dataset.id,
        dataset_name=run.dataset.name,
        store=str(store),
        work=str(work),
        metrics=str(work / ("output" if is_script(run.model_class) else "") / "metrics.jsonl"),
        model=model,
        params={
            "model": run.row.model,
            "dataset": run.dataset.name,
            **flatten(as_plain(run.settings)),
        },
        tags={key: value for key, value in tags.items() if value},
    )
