"""The study that a sweep was before its settings changed."""

import re
from pathlib import Path

from shardline.config.layout import names_that_have_been
from shardline.config.load import load_variant
from shardline.config.project import Project
from shardline.config.sweep_values import notes_of
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ShardlineError
from shardline.results.states import read_if_sound
from shardline.results.sweeps.study_causes import texts_of
from shardline.results.sweeps.trials import read_proposal

_SHOWN = 4  # differences


def all_notes(project: Project, plan: SweepPlan) -> list[str]:
    """Return what is odd about a sweep, and which study it was before."""
    return [*filter(None, [note_on_earlier(project, plan)]), *notes_of(project, plan, load_variant)]


def note_on_earlier(project: Project, plan: SweepPlan) -> str:
    """Return a sentence about the study that a sweep was before, if the present one has no trial yet; else nothing."""
    layout = project.layout
    if plan.proposal(layout, 0).exists() or not layout.folder_of("study").is_dir():
        return ""
    named = names_that_have_been(layout, "run")
    first = re.compile(re.escape(plan.name) + r"-0(\.0)?(-[es]\d+)?")
    found = []
    for folder in layout.folder_of("study").iterdir():
        path = folder / "0/proposal.json"
        if folder.name in project.sweeps or not path.exists():
            continue
        try:
            runs = read_proposal(path).runs
        except ShardlineError:
            continue  # `shardline verify` reports it
        if any(first.fullmatch(name) for run in runs for name in named.get(run, ())):
            found.append((path.stat().st_mtime, folder))
    if not found:
        return ""
    folder = max(found)[1]
    trials = sum(one.name.isdecimal() for one in folder.iterdir())
    return (
        f"sweeps.{plan.name} is another study than {layout.name_of(folder)} with {trials} proposed trials"
        f"{_why(folder, plan)}; trials with the settings of an earlier run are linked to it, and the others are trained"
    )


def _why(folder: Path, plan: SweepPlan) -> str:
    """Return what differs, if the earlier study was sealed."""
    for file in sorted(folder.glob("study-*.json")):
        old = read_if_sound(file).get("identity")
        if isinstance(old, dict):
            texts = texts_of(old, plan.document)
            if old.get("base") != plan.document["base"]:
                texts = ["the base run changed", *texts]
            more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
            return f" ({', '.join([*texts[:_SHOWN], *more])})" if texts else ""
    return ""
