"""Run a command, and end it when standard input closes.

Usage: `python -m shardline.launch.exit_on_stdin_close [--read-variables] COMMAND...`

When a remote shell dies, the processes that it started keep running. Its standard
input closes, so this program ends the command and all processes of the command.
With `--read-variables`, the first line of standard input contains environment
variables as JSON: secrets that must not appear on a command line.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress

from shardline.core.process import die_with_parent, end_group, kill_group

READ_VARIABLES = "--read-variables"
_GRACE_S = 5.0


def main() -> int:
    """Run the command until it exits or standard input closes; return its exit code."""
    command = sys.argv[1:]
    if command[:1] == [READ_VARIABLES]:
        command = command[1:]
        os.environ.update(json.loads(_first_line()))
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    code = child.wait()
    kill_group(child.pid)  # processes that the command left behind
    return code if code >= 0 else 128 - code


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (read := os.read(0, 1)):
        line += read
    return line or b"{}"


def _end_with_input(child: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):  # closed, or a broken connection
        while os.read(0, 4096):
            pass
    end_group(child, _GRACE_S)


if __name__ == "__main__":
    sys.exit(main())
