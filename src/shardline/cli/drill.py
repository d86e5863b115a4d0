"""The command `drill`, which injects faults into a training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from shardline.cli.app import AsJson, OnProfile, SetResources, app, resource_arguments
from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import say, say_json
from shardline.core.errors import DataError

if TYPE_CHECKING:
    from shardline.drills.outcome import DrilledRun

_Name = Literal[
    "resume", "preempt", "timeout", "kill-rank", "stop-rank", "kill-controller", "disk-full"
]


@app.command("drill")
def drill(
    context: typer.Context,
    name: Annotated[_Name, typer.Argument(metavar="DRILL", help="Fault to inject.")],
    profile: OnProfile = "profiles/local",
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines.")] = 1,
    devices: Annotated[int, typer.Option(min=1, help="Ranks per machine.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed for the steps of the faults.")] = 0,
    interruptions: Annotated[
        int, typer.Option(min=1, help="Interruptions of each training, for `resume`.")
    ] = 3,
    timeout_s: Annotated[float, typer.Option(help="Time limit of the test, in seconds.")] = 1800.0,
    keep: Annotated[
        bool, typer.Option("--keep", metavar="", help="Keep the test's folder.")
    ] = False,
    set_resources: SetResources = None,
    as_json: AsJson = False,
) -> None:
    """Inject faults into a tiny training on the profile's machines, and check that it survives.

    resume           SIGKILL of all ranks, several times; writes a certificate
    kill-rank        SIGKILL of one rank
    stop-rank        SIGSTOP of one rank
    preempt          the scheduler preempts the job
    timeout          the job's time limit ends during the training
    kill-controller  SIGKILL of Snakemake while its job trains
    disk-full        the store's disk is full (a small disk made for the test)

    Weights, optimiser state and samples must be bit-identical to an
    uninterrupted training. The test runs in `drills/` and does not touch your
    runs. Exits with code 3 if the training did not survive.
    """
    from shardline.drills.fault_injection import FaultTest, drilled
    from shardline.drills.outcome import certify
    from shardline.provenance.actions import Action

    order = FaultTest(
        name=name,
        config=context.obj,
        profile=profile,
        size=(nodes, devices),
        seed=seed,
        interruptions=interruptions,
        timeout_s=timeout_s,
        keep=keep,
        arguments=resource_arguments(set_resources),
        report=(lambda line: None) if as_json else (lambda line: say(f"{name}: {line}")),
    )
    action = Action(id=f"drill/{name}")
    with drilled(order) as found:
        certificate = certify(found, action) if name == "resume" else None
    outcomes = [one for one, _ in found]
    if as_json:
        say_json({"outcomes": outcomes, "certificate": certificate})
    else:
        show_drill(outcomes, certificate)
    if any(outcome.reasons for outcome in outcomes):
        raise typer.Exit(DataError.exit_code)


_FIGURES = ("steps_done", "steps_lost", "seconds_lost", "attempts", "commands")


def show_drill(outcomes: Sequence["DrilledRun"], certificate: Path | None) -> None:
    """Print the outcome of a fault-injection test, one column for each run."""
    sizes = (f"{one.ranks} rank{'s' if one.ranks > 1 else ''}" for one in outcomes)
    rows: list[list[str | Text]] = [["profile", *(one.profile for one in outcomes)]]
    styles = ("bold red" if one.reasons else "green" for one in outcomes)
    verdicts = [Text(one.verdict, style) for one, style in zip(outcomes, styles, strict=True)]
    rows.append(["verdict", *verdicts])
    for figure in _FIGURES:
        values = (getattr(one, figure) for one in outcomes)
        shown = ("-" if value is None else str(value) for value in values)
        rows.append([figure.replace("_", " "), *shown])
    compared = (
        ", ".join(name if is_same else f"not {name}" for name, is_same in one.compared.items()) for one in outcomes
    )  # fmt: skip
    rows.append(["the same", *compared])
    say("")
    show_rows((outcomes[0].drill, *sizes), rows)
    for one in outcomes:
        for reason in one.reasons:
            say(f"{one.ranks} ranks: {reason}")
    if certificate:
        say(f"certificate: {certificate}")
    if kept := outcomes[0].folder:
        say(f"kept: {kept}")
