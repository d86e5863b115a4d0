"""Run a command until standard input closes: `python guard.py COMMAND...`.

This is the first program in a container. It ends all processes in the container when the process
that started the container ends. It imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

_GRACE_S = 5.0


def main() -> int:
    """Run the command to its end or until standard input closes, and return its exit code."""
    shared = [os.environ.get(f"SHARDLINE_{name}", "") for name in ("HEARTBEAT", "REQUESTS")]
    inherited = tuple(int(value) for value in shared if value.isdigit())
    child = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=inherited
    )
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _end_with_input(child: subprocess.Popen[bytes]) -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # closed, or a broken connection
        pass
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(_GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return


if __name__ == "__main__":
    sys.exit(main())
