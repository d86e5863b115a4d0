"""Links from the config's names to results and logs that are named by identity."""

import os
from collections.abc import Iterator
from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.core.files import renamed_when_complete

_RULES_OF_RUN = ("resolve_run", "train", "run_preflight")
_RULES_OF_DATASET = (
    "prepare_data", "plan_splits", "build_shards", "seal_dataset", "register_data",
)  # fmt: skip


def publish(project: Project) -> None:
    """Update the links from the config's names to the current results and logs.

    The links are `results/latest/{name}` and its `evaluation.json`, `results/latest-datasets/{name}`,
    `results/report`, `results/tensorboard/{name}`, and the contents of `logs/latest/{name}` and
    `logs/latest-datasets/{name}`.
    """
    for link, target in (*_result_links(project), *_all_log_links(project)):
        if target.exists():
            _link(link, target)
    if "tensorboard" in project.runtime.tracking:
        for link, target in _tensorboard_links(project):
            _link(link, target)  # even without a target yet, so that TensorBoard finds it later


def _result_links(project: Project) -> Iterator[tuple[Path, Path]]:
    layout = project.layout
    yield layout.latest_report, project.report.parent
    for dataset in project.datasets.values():
        if dataset.manifest.exists():
            yield from (
                (layout.latest_datasets / n, dataset.manifest.parent) for n in dataset.names
            )
    for one in project.predictions.values():
        if one.file.exists():
            yield from (
                (layout.latest_predictions / f"{name}.parquet", one.file) for name in one.names
            )
    for key, run in project.runs.items():
        if not run.is_sealed:
            continue
        if key == run.id:
            yield run.folder / "evaluation.json", run.evaluation
        for name in run.names:
            yield layout.latest_runs / name, run.folder
            if key != run.id:  # another evaluation of the same training
                yield layout.latest_runs / f"{name}.evaluation.json", run.evaluation


def _tensorboard_links(project: Project) -> Iterator[tuple[Path, Path]]:
    """Yield a link per run name; TensorBoard shows the names of folders."""
    for run in project.runs.values():
        for name in run.names:
            yield (
                project.layout.tensorboard_links / name,
                project.layout.tracker("tensorboard") / run.id,
            )


def _all_log_links(project: Project) -> Iterator[tuple[Path, Path]]:
    layout = project.layout
    for dataset in project.datasets.values():
        for name in dataset.names:
            folder = layout.latest_dataset_logs / name
            yield from _log_links(layout, folder, _RULES_OF_DATASET, dataset.id)
    for run in project.runs.values():
        for name in run.names:
            folder = layout.latest_logs / name
            yield from _log_links(layout, folder, _RULES_OF_RUN, run.id)
            evaluation = layout.log("evaluate", f"{run.id}-{run.evaluation_id}")
            yield folder / "evaluate.log", evaluation


def _log_links(
    layout: ResultsLayout, folder: Path, rules: tuple[str, ...], identity: str
) -> Iterator[tuple[Path, Path]]:
    """Yield the log of each rule, and the folder of its ranks' or parts' logs."""
    for rule in rules:
        yield folder / f"{rule}.log", layout.log(rule, identity)
        yield folder / rule, layout.logs_of_parts(rule, identity)


def _link(link: Path, target: Path) -> None:
    relative = os.path.relpath(target, link.parent)
    if link.is_symlink() and link.readlink() == Path(relative):
        return
    if link.exists() and not link.is_symlink():
        return  # a user's own file or folder
    link.parent.mkdir(parents=True, exist_ok=True)
    with renamed_when_complete(link) as scratch:
        scratch.symlink_to(relative)
