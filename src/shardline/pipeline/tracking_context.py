"""What trackers get of a training."""

from collections.abc import Sequence
from pathlib import Path

from shardline import __version__
from shardline.config.plans import RunPlan
from shardline.config.resolved import as_plain
from shardline.config.run_spec import DatasetPlace
from shardline.config.scripts import is_script
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.git import git_commit
from shardline.core.nested import flatten
from shardline.tracking import TrackingContext


def tracking_context_of(
    run: RunPlan, store: Path, work: Path, *, datasets: Sequence[DatasetPlace], model: str
) -> TrackingContext:
    """Return what trackers get of a training."""
    ids = ", ".join(part.dataset.id for part in run.parts)
    manifests = [one.manifest for one in datasets if one.manifest.exists()]
    tags = {
        "shardline.identity": digest(run.document),
        "shardline.dataset": ids,
        "shardline.manifest": ", ".join(map(file_sha256, manifests)),
        "shardline.commit": git_commit(Path.cwd()),
        "shardline.version": __version__,
    }
    return TrackingContext(
        run=run.id,
        name=run.name,
        dataset=ids,
        dataset_name=run.dataset_name,
        store=str(store),
        work=str(work),
        metrics=str(work / ("output" if is_script(run.model_class) else "") / "metrics.jsonl"),
        model=model,
        params={
            "model": run.row.model,
            "dataset": run.dataset_name,
            **flatten(as_plain(run.settings)),
        },
        tags={key: value for key, value in tags.items() if value},
    )
