"""The command `accept`, which accepts an earlier result."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from shardline.cli.app import (
    AsJson,
    OnProfile,
    SetResources,
    Yes,
    app,
    ask,
    resource_arguments,
)
from shardline.cli.display.evidence_views import show_candidates
from shardline.cli.display.terminal import say, say_json
from shardline.config.load import load_project
from shardline.config.plans import DatasetPlan
from shardline.config.project import Project
from shardline.core.errors import ConfigError
from shardline.core.package import check_unlocked
from shardline.core.visible import from_here
from shardline.results.accept.candidates import Candidate, find_by_cause, find_candidate
from shardline.results.accept.first_steps import compare_first_steps
from shardline.results.select import find_dataset, find_run

_DATASET = "dataset:"
# parts of an identity document that may differ, by the value of --cause
_CAUSES = {"environment": {"environment"}, "code": {"code", "code_files", "sample_code"}}


@app.command("accept")
def accept(
    context: typer.Context,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="TEXT", help="Why the difference is harmless; recorded."),
    ],
    what: Annotated[
        str | None,
        typer.Argument(metavar="RUN|dataset:NAME", help="Name or id of a run or dataset."),
    ] = None,
    earlier: Annotated[
        str | None,
        typer.Option("--from", metavar="ID", help="Earlier result; default: the nearest."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", metavar="", help="Accept all that differ only by --cause.")
    ] = False,
    cause: Annotated[
        Literal["environment", "code"] | None,
        typer.Option("--cause", help="With --all: the only part that may differ."),
    ] = None,
    evaluations: Annotated[
        Literal["again", "accept"],
        typer.Option(help="Evaluate the model again, or accept the earlier evaluation too."),
    ] = "again",
    after_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="First train N steps again, and compare all recorded values.",
        ),
    ] = None,
    profile: OnProfile = "profiles/local",
    set_resources: SetResources = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Accept an earlier result in place of the one that the config now describes.

    Prints the differences first, as `why` does. Links the earlier files under the
    present identity, and records in `accepted.json` who accepted them, when, why,
    and what differs. verify, replay, diff, lineage, report and crate show this.
    A model or schema of another shape is rejected. Existing files do not change.
    """
    # it imports NumPy, which other commands do not need
    from shardline.results.accept.take import accept_dataset, accept_run

    sys.path.insert(0, str(Path.cwd()))  # the user's modules
    project = load_project(config_file=context.obj)
    check_unlocked(project.workdir)
    if after_steps and what and what.startswith(_DATASET):
        raise ConfigError(
            f"--after-steps: {what} is a dataset, and only a run has steps; remove --after-steps"
        )
    if not reason.strip():
        raise ConfigError("--reason is empty; write why the difference is harmless")
    found = list(_candidates(project, what, earlier, every=every, cause=cause))
    if not as_json:
        show_candidates(found)
    if found and not yes:
        ask("Accept?", "accept", "accepts", quiet=as_json)
    arguments = resource_arguments(set_resources)
    folders = []
    for one in found:
        if isinstance(one.asked, DatasetPlan):
            folder = accept_dataset(project, one, reason=reason)
        else:
            first_steps = None
            if after_steps:
                first_steps = compare_first_steps(
                    one, after_steps, config=context.obj, profile=profile, arguments=arguments
                )
            folder = accept_run(
                project,
                one,
                reason=reason,
                with_evaluation=evaluations == "accept",
                first_steps=first_steps,
            )
        folders.append(from_here(str(folder)))
        if not as_json:
            say(f"accepted {one.earlier_title} as {one.title}: {folders[-1]}")
    if as_json:
        say_json({"accepted": folders})


def _candidates(
    project: Project, what: str | None, earlier: str | None, *, every: bool, cause: str | None
) -> Iterator[Candidate]:
    if every == (what is not None) or every != (cause is not None) or (every and earlier):
        raise ConfigError(
            "accept expects RUN or dataset:NAME (with --from ID for another result than the nearest), or --all --cause "
            "environment, or --all --cause code; use one of these"
        )
    if every:
        yield from find_by_cause(project, _CAUSES[str(cause)])
    elif what and what.startswith(_DATASET):
        yield find_candidate(find_dataset(project, what.removeprefix(_DATASET)), earlier)
    elif what:
        yield find_candidate(find_run(project, what), earlier, project.runs)
