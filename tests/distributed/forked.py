"""A launcher that imports torch and Lightning once: `python -m tests.distributed.forked 4 -m shardline.worker ...`.

Each rank, and torchrun's agent too, would import them for some seconds. For tests
of what ranks do, whoever starts them; others have the real launchers.
"""

import os
import signal
import socket
import sys
import traceback
from contextlib import suppress

# what the worker imports on its way
import shardline.launch.rehearsal
import shardline.ledger
import shardline.metrics
import shardline.provenance
import shardline.script
import shardline.train  # noqa: F401
from shardline import worker


def main() -> int:
    """Start the ranks; the first that fails ends the others, and its exit code is ours."""
    size, module, arguments = int(sys.argv[1]), sys.argv[3], sys.argv[4:]
    assert module == "shardline.worker"
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if size > 1 else {}
    ranks = {_start(rank, size, address, arguments) for rank in range(size)}
    worst = 0
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not worst:
            worst = code if code > 0 else 128 - code
            for other in ranks:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    return worst


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _start(rank: int, size: int, address: dict[str, str], arguments: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if size > 1:
            numbers = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": size,
                "LOCAL_WORLD_SIZE": size,
            }
            os.environ.update({**address, **{name: str(value) for name, value in numbers.items()}})
        sys.argv = ["shardline.worker", *arguments]
        code = worker.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
