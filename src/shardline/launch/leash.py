"""A command that ends with its standard input: `python -m shardline.launch.leash [--read-variables] COMMAND...`.

A remote shell that dies leaves what it started running. Its standard input,
though, closes, and that ends the command with all that it started. Its first
line may bring variables of the command that no command line may hold, as JSON.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress

from shardline.core.process import die_with_parent, kill_group

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
    kill_group(child.pid)  # what it left behind
    return code if code >= 0 else 128 - code


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (read := os.read(0, 1)):
        line += read
    return line or b"{}"


def _end_with_input(child: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):  # none at all, or a connection that broke
        while os.read(0, 4096):
            pass
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    kill_group(child.pid)


if __name__ == "__main__":
    sys.exit(main())
