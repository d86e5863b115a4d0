"""What the ranks of a training and its trackers get."""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from shardline import __version__
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.scripts import is_script
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.git import git_commit
from shardline.core.nested import flatten
from shardline.data.folds import of_fold
from shardline.environments.installed import MODULES
from shardline.environments.python import built_on_nodes, python_of_script
from shardline.pipeline.bases import init_of, read_bases
from shardline.pipeline.job_frame import REMAKE
from shardline.pipeline.members import members_of, seen_members
from shardline.pipeline.started_ranks import Inputs, files_of, places_of
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.training.rank_task import RankRuntime, RankTask, Train, read_run

if TYPE_CHECKING:
    from shardline.tracking import TrackingContext


def training_task(
    project: Project, run: RunPlan, inputs: Inputs, work: Path, rule: str, *, results: Path
) -> tuple[RankTask, Train]:
    """Return the task for the ranks of a training, and its action."""
    run_json, given = files_of(run, inputs)["spec"], inputs.get("script_environment")
    action = Train(
        run_json=run_json,
        results=results,
        set_by_row=tuple(run.set_by_row),
        script_python=python_of_script(
            project, run, str(given) if given else None, modules=work / MODULES
        ),
        script_environment=built_on_nodes(run.environment, project.layout),
    )
    # run.json dates from the first run with this identity: classes may have moved, or workers changed
    environment, init = read_run(run_json).environment, init_of(run, inputs, work)
    spec = structs.replace(
        run.spec,
        environment=environment,
        init=init,
        bases=read_bases(run, inputs, init),
        members=members_of(run, inputs),
    )
    task = RankTask(
        run=seen_members(spec, work),
        action=action,
        datasets=places_of(run, inputs),
        work=work,
        rank_logs=project.layout.declared.logs_of_parts(rule, run.id),
        runtime=RankRuntime.of(project.runtime),
    )
    return task, action


def check_evaluated_rows(run: RunPlan, task: RankTask) -> None:
    """Reject a run that cannot be evaluated, before it is trained.

    Raises:
        DataError: The split of the evaluation has no rows.
    """
    split = run.settings.evaluation.split
    known = [one for one in task.datasets if one.manifest.exists()]
    if is_script(run.model_class) or len(known) < len(task.datasets):
        return
    manifests = [
        of_fold(read_record(one.manifest, Manifest, remedy=REMAKE), one.fold) for one in known
    ]
    if not any(manifest.splits[split] for manifest in manifests):
        raise DataError(
            f"dataset {manifests[0].dataset}: the {split} split has no rows to evaluate {run.name}; give "
            "it a share in the dataset's `splits`, define test_dataloader of the data module, or set "
            "evaluation.split: validation"
        )


def tracking_context(
    run: RunPlan, store: Path, task: RankTask, model: str, group: str
) -> "TrackingContext":
    """Return the context that trackers get of a training."""
    from shardline.tracking import TrackingContext

    ids = ", ".join(part.dataset.id for part in run.parts)
    manifests = [one.manifest for one in task.datasets if one.manifest.exists()]
    tags = {
        "shardline.identity": digest(run.document),
        "shardline.dataset": ids,
        "shardline.manifest": ", ".join(map(file_sha256, manifests)),
        "shardline.commit": git_commit(Path.cwd()),
        "shardline.version": __version__,
        "shardline.sweep": group,
    }
    return TrackingContext(
        run=run.id,
        name=run.name,
        dataset=ids,
        dataset_name=run.dataset_name,
        store=str(store),
        work=str(task.work),
        metrics=str(task.work / ("output" if is_script(run.model_class) else "") / "metrics.jsonl"),
        model=model,
        params={
            "model": run.row.model,
            "dataset": run.dataset_name,
            **flatten(as_plain(run.settings)),
        },
        tags={key: value for key, value in tags.items() if value},
        group=group,
    )
