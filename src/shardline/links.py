"""Links by fixed names to what is named by identity."""

import os
from pathlib import Path

from shardline.config import Project


def publish(project: Project) -> None:
    """Point the fixed names at the present results: what people and bookmarks use.

    `results/latest/{name}`, `results/runs/{run}/evaluation.json` and
    `results/report` are links; what they point at is named by identity.
    """
    for run in project.runs.values():
        if run.is_sealed:
            _link(run.folder / "evaluation.json", run.evaluation)
            _link(Path("results/latest") / run.name, run.folder)
    if project.report.exists():
        _link(Path("results/report"), project.report.parent)


def _link(link: Path, target: Path) -> None:
    relative = os.path.relpath(target, link.parent)
    if link.is_symlink() and link.readlink() == Path(relative):
        return
    if link.exists() and not link.is_symlink():
        return  # somebody's own file or folder
    link.parent.mkdir(parents=True, exist_ok=True)
    scratch = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(relative)
    scratch.replace(link)
