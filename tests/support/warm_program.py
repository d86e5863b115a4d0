"""Program of a warm rank, for tests: `python -m tests.support.warm_program ACTION ...`."""

import atexit
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

KEPT: list[Any] = []


def describe() -> dict[str, object]:
    """Return what a program may notice of how it was started."""
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "cwd": str(Path.cwd()),
        "temporary": tempfile.gettempdir(),
        "umask": os.umask(0o077),
        "env": {name: value for name, value in os.environ.items() if name != "_"},
        "flags": repr(sys.flags),
        "hash": hash("shardline"),
        "name": __name__,
        "spec": getattr(sys.modules["__main__"].__spec__, "name", None),
        "signals": {number: str(signal.getsignal(number)) for number in range(1, 65)},
        "blocked": [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))],
        "limits": [resource.getrlimit(number) for number in range(16)],
        "cpus": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "threads": [one.name for one in threading.enumerate()],
        "main": threading.current_thread() is threading.main_thread(),
        "streams": [Path(f"/proc/self/fd/{fd}").readlink().name.split(":")[0] for fd in (0, 1, 2)],
        "encodings": [(one.encoding, getattr(one, "write_through", None)) for one in (sys.stdout, sys.stderr)],
        "leads": os.getsid(0) == os.getpgid(0),
    }  # fmt: skip


def say(line: str) -> None:
    """Print a line in one piece: several ranks share the output."""
    os.write(1, f"{line}\n".encode())


def end(number: int, frame: object) -> None:
    """Say that this rank was told to end, and do so."""
    say("told to end")
    sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 5)


def main() -> int:
    """Do what the first argument asks for."""
    action, *rest = sys.argv[1:]
    if action == "describe":
        print(json.dumps(describe()), flush=True)
    elif action == "exit":
        print("on stderr", file=sys.stderr)
        return int(rest[0])
    elif action == "leave-open":
        KEPT.append(Path(rest[0]).open("w"))  # noqa: SIM115, never closed
        KEPT[0].write("written")
        atexit.register(print, "at exit")
        print("no line", end="")
        threading.Thread(target=lambda: (time.sleep(0.3), print("a thread"))).start()
        return 4
    elif action == "raise":
        raise ValueError(rest[0])
    elif action == "kill":
        os.kill(os.getpid(), int(rest[0]))
    elif action == "burn":
        while time.process_time() < float(rest[0]):
            pass
    elif action == "first-fails":
        if os.environ["RANK"] == "1":
            if rest[0].startswith("-"):
                os.kill(os.getpid(), -int(rest[0]))
            return int(rest[0])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        time.sleep(600)
    elif action == "wait":
        signal.signal(signal.SIGTERM, end)
        Path(rest[0]).write_text(str(os.getpid()))
        say("waits")
        time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
