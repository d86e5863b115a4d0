"""The command that injects faults into a training: `drill`."""

from typing import Annotated, Literal

import typer

from shardline.cli.app import AsJson, OnProfile, SetResources, app, resource_arguments
from shardline.cli.display.drills import show_drill
from shardline.cli.display.terminal import say, say_json
from shardline.core.errors import DataError

_Name = Literal[
    "resume", "preempt", "timeout", "kill-rank", "stop-rank", "kill-controller", "disk-full"
]


@app.command("drill")
def drill(
    context: typer.Context,
    name: Annotated[_Name, typer.Argument(metavar="DRILL", help="The fault to inject.")],
    profile: OnProfile = "profiles/local",
    nodes: Annotated[int, typer.Option(min=1, help="Machines of the training.")] = 1,
    devices: Annotated[int, typer.Option(min=1, help="Ranks on each machine.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the steps at which faults are injected.")] = 0,
    interruptions: Annotated[
        int, typer.Option(min=1, help="How often `resume` interrupts each training.")
    ] = 3,
    timeout_s: Annotated[float, typer.Option(help="Seconds that the test may take.")] = 1800.0,
    keep: Annotated[
        bool, typer.Option("--keep", metavar="", help="Keep the test's folder.")
    ] = False,
    set_resources: SetResources = None,
    as_json: AsJson = False,
) -> None:
    """Inject faults into a tiny training on the profile's real machines, and check that nothing is lost.

    resume           SIGKILL of all ranks, several times; writes the resume certificate
    kill-rank        SIGKILL of one rank
    stop-rank        SIGSTOP of one rank
    preempt          the job is preempted
    timeout          the job's time limit falls into the training
    kill-controller  SIGKILL of Snakemake while its job trains
    disk-full        the store's disk is full (a small disk made for the test)

    Weights, the optimiser's state and samples must be bit-identical to those of an uninterrupted training.
    The test lies in `drills/`; your own runs are not touched. Exit code 3 if the training did not survive.
    """
    from shardline.drills.outcome import certify
    from shardline.drills.run import Order, drilled
    from shardline.provenance.actions import Action

    order = Order(
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
    with drilled(order) as outcomes:
        certificate = certify(outcomes, action) if name == "resume" else None
    if as_json:
        say_json({"outcomes": [one.to_json() for one in outcomes], "certificate": certificate})
    else:
        show_drill(outcomes, certificate)
    if any(outcome.reasons for outcome in outcomes):
        raise typer.Exit(DataError.exit_code)
