"""Run a command that exits when standard input closes.

Usage: `python -m shardline.launch.exit_on_stdin_close [--read-variables] COMMAND...`

A remote shell that dies leaves the processes that it started. Standard input
closes then, and this program ends the command with all its processes. The first
line of standard input may hold environment variables of the command as JSON:
secrets that must not appear on a command line.
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
    """Run the command until it ends, or until standard input closes."""
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
    kill_group(child.pid)  # processes that the command left
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
