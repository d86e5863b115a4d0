"""`launch`, used by a rule of the job: run one command on every process of the job."""

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from snakemake_executor_plugin_azureml.node.child_process import POLL_S, Child, Stop, log
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.job_environment import CONTROL, FOLDER
from snakemake_executor_plugin_azureml.node.shared_files import (
    read_files,
    relative_to_working_folder,
)
from snakemake_executor_plugin_azureml.node.wire import LARGEST_TEXT, Connection, LostError

# The leader may be sending files to others; a Unix socket reports its end at once.
_SILENCE_S = 3600.0


def launch(command: Sequence[str], files: Sequence[str], names: Sequence[str]) -> int:
    """Run a command on every process of the job; return the exit code of the first that fails.

    Args:
        command: a program and its arguments, without a shell.
        files: small files to copy to the other processes, at the same relative path.
        names: variables of this process's environment to pass to the other processes.

    Raises:
        NodeError: there is no command, a file or variable is missing, or a process rejects the launch or is lost.
    """
    if not command:
        raise NodeError("launch got no command; write: launch [options] -- COMMAND ...")
    here = Path.cwd()
    home = Path(os.environ.get(FOLDER, here))
    entries, payload = read_files(files, here)
    if unset := [name for name in names if name not in os.environ]:
        raise NodeError(f"--env {unset[0]}, but {unset[0]} is not set; set it, or remove --env")
    control = os.environ.get(CONTROL)
    if not control:  # a single process
        _exec(command)
    request = {
        "type": "launch",
        "command": list(command),
        "env": {name: os.environ[name] for name in names},
        "files": entries,
        "folder": relative_to_working_folder(str(here), home),
    }
    size = len(json.dumps(request))
    if size > LARGEST_TEXT:
        raise NodeError(
            f"the launch's command and variables have {size} bytes, more than {LARGEST_TEXT}; "
            "pass large values as a file (--file) or on a mount"
        )
    stop = Stop()
    connection = _connect(control or "")
    try:
        connection.send(request, payload)
        return _run(command, connection, stop)
    except (LostError, ValueError) as error:
        raise NodeError(
            f"the connection to the node program was lost: {error}; see the log of rank 0"
        ) from None


def _exec(command: Sequence[str]) -> None:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise NodeError(
            f"{command[0]} cannot be started ({error.strerror}); fix its name or PATH"
        ) from None


def _connect(control: str) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(control)
    except OSError as error:
        raise NodeError(
            f"cannot connect to {CONTROL}={control} ({error.strerror}); launch from the job that the node "
            "program of rank 0 runs, while it runs"
        ) from None
    return Connection(sock, silence_s=_SILENCE_S)


def _run(command: Sequence[str], connection: Connection, stop: Stop) -> int:
    """Run the command's process on rank 0, which ends together with all others."""
    child: Child | None = None
    is_reported = is_stopped = False
    try:
        while True:
            for document, _ in connection.receive() if connection.is_ready(POLL_S) else ():
                kind = document["type"]
                if kind == "refused":
                    raise NodeError(f"no process was started: {document['reason']}")
                if kind == "done":
                    if document["reason"]:
                        log(f"{document['reason']}; all other processes were ended")
                    return int(document["code"])
                if kind == "start":
                    child = Child(command, env=os.environ, grace_s=document["grace_s"])
                elif kind == "stop" and child is not None:
                    child.end()
            if child is not None and (code := child.poll()) is not None and not is_reported:
                is_reported = True
                connection.send({"type": "ended", "code": code})
            if stop.number and not is_stopped:
                is_stopped = True
                connection.send({"type": "stop", "code": stop.code})
    finally:
        if child is not None:
            child.end()
            child.wait()
