"""Process that transforms samples for its parent, and ends with its parent.

The parent runs `python -m shardline.data.worker_process FD [LIGHTNING]`. Messages go through a socket,
whose far end is FD, with arrays as raw bytes. LIGHTNING is the package of Lightning that the parent has
loaded. The process ends when its standard input closes, which always happens when the parent ends.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from shardline.core import errors
from shardline.core.errors import ConfigError, DataError
from shardline.core.one_lightning import keep, loaded

# Schedulers and terminals send these to all processes, but the rank still needs samples to save first.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_END_S = 5.0


class SampleError(Exception):
    """A sample could not be transformed.

    Attributes:
        place: index of the sample in the request.
        error: error to raise, whose message lacks the sample's description.
    """

    def __init__(self, place: int, error: ConfigError | DataError) -> None:
        super().__init__(str(error))
        self.place, self.error = place, error


class WorkerProcess:
    """Worker process, as its parent sees it.

    Args:
        spec: picklable object whose `make()` returns a function of key and sample.
    """

    setting, fewer = "data.workers", "use fewer processes or data.workers=threads:n"

    def __init__(self, spec: Any) -> None:
        self._connection, far = Pipe()
        command = [sys.executable, "-m", __name__, str(far.fileno()), *filter(None, [loaded()])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(far.fileno(),))
        far.close()
        with suppress(BrokenPipeError):  # the first request raises the error
            _send(self._connection, (sys.path, spec))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def transform(self, samples: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Transform samples, given with their keys, in the process.

        Raises:
            SampleError: a sample cannot be transformed.
            DataError: the process has ended; states its exit code or signal.
        """
        try:
            _send(self._connection, list(samples))
            results, failure = _receive(self._connection)
        except (EOFError, OSError):
            raise DataError(self._how_it_ended()) from None
        if failure:
            place, kind, message = failure
            raise SampleError(place, getattr(errors, kind)(message))
        found: list[Any] = results
        return found

    def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by signal {-code} ({signal.Signals(-code).name})"
        return (
            f"{self.setting}: process {self.pid} ended {how} while it transformed samples, expected its results; if "
            f"memory ran out (signal 9), {self.fewer}, else read its output in the log"
        )

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _send(connection: Connection, message: Any) -> None:
    """Send an object, without copying its arrays into the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(pickle.dumps((content, len(buffers))))
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def _receive(connection: Connection) -> Any:
    """Receive an object; its arrays are read-only."""
    content, count = pickle.loads(connection.recv_bytes())
    return pickle.loads(content, buffers=[connection.recv_bytes() for _ in range(count)])


def _answer(steps: Any, samples: Sequence[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    results = []
    for place, (key, sample) in enumerate(samples):
        try:
            results.append(steps(key, sample))
        except (ConfigError, DataError) as error:
            return [], (place, type(error).__name__, str(error))
    return results, None


def _serve(connection: Connection) -> None:
    sys.path[:], spec = _receive(connection)
    steps = None
    while True:
        samples = _receive(connection)
        steps = steps or spec.make()
        answer = _answer(steps, samples)
        try:
            _send(connection, answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = (
                f"{spec.what} returned a value that cannot be sent to another process ({error}), expected arrays, "
                "bytes or text; return these, or set data.workers=threads:n"
            )
            _send(connection, ([], (0, "DataError", message)))


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock Python would wait for at exit
        pass
    os._exit(0)


def _main() -> None:
    keep(sys.argv[2:])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionResetError, BrokenPipeError):  # the parent has ended
        _serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    _main()
