"""The node program: `run` for every process that Azure ML starts for a job, `launch` in the job's rules."""

import argparse
import base64
import binascii
import os
import sys
from collections.abc import Sequence

from snakemake_executor_plugin_azureml.node.child_process import (
    Stop,
    adopt_orphans,
    end_descendants,
    log,
)
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.follower import follow
from snakemake_executor_plugin_azureml.node.job_environment import NodeSettings, parse_mounts
from snakemake_executor_plugin_azureml.node.launch import launch
from snakemake_executor_plugin_azureml.node.leader import lead
from snakemake_executor_plugin_azureml.node.place import find_place


def main(arguments: Sequence[str]) -> int:
    """Run the action of the command line; return the exit code."""
    words = [*arguments, "--"]  # the command of `launch` follows the first --
    at = words.index("--")
    args, command = _parser().parse_args(words[:at]), words[at + 1 : -1]
    try:
        return _run(args) if args.action == "run" else launch(command, args.file, args.env)
    except NodeError as error:
        log(str(error))
        return 1


def _run(args: argparse.Namespace) -> int:
    place, stop = find_place(os.environ), Stop()
    settings = NodeSettings(
        mounts=parse_mounts(args.mount),
        wait_s=args.wait_s,
        grace_s=args.grace_s,
        silence_s=args.silence_s,
    )
    log(f"rank {place.rank} of {place.size}, node {place.node} (from {place.origin})")
    adopt_orphans()
    try:
        if place.rank == 0:
            return lead(place, args.job, settings, stop)
        return follow(place, args.follower_command, settings, stop)
    finally:
        end_descendants()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m snakemake_executor_plugin_azureml.node", description=__doc__
    )
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser(
        "run", help="rank 0 runs the job; the others wait for launches and end with its exit code"
    )
    run.add_argument("job", type=_decoded, help="the job's shell command, base64-encoded")
    run.add_argument(
        "--wait-s", type=float, required=True, help="seconds in which all processes must join"
    )
    run.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="variable for a mounted folder",
    )
    run.add_argument(
        "--follower-command",
        type=_decoded,
        help="shell command, base64-encoded, that all ranks but 0 run beside the job",
    )
    run.add_argument(
        "--grace-s",
        type=float,
        default=25.0,
        help="seconds between the request to end and SIGKILL",
    )
    run.add_argument(
        "--silence-s",
        type=float,
        default=60.0,
        help="seconds after which a silent node counts as gone",
    )
    start = actions.add_parser(
        "launch", help="start a command on every process: launch [options] -- COMMAND ..."
    )
    start.add_argument(
        "--file",
        action="append",
        default=[],
        help="small file to copy to the other processes, at the same relative path",
    )
    start.add_argument(
        "--env", action="append", default=[], help="variable to pass to the other processes"
    )
    return parser


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise argparse.ArgumentTypeError("is not base64-encoded text") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
