"""A client of the service in a separate process, called from this process.

Calls and outcomes are pickled and sent over a socket that only these two processes have. The child exits
when the socket is closed, so also when this process is killed.
"""

import itertools
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from snakemake_executor_plugin_azureml.errors import AzureMLError, SdkError, whole_text_of
from snakemake_executor_plugin_azureml.service_retries import (
    ClientGoneError,
    is_transient,
    retry_after_s,
    status_code,
)

_THREADS = 16  # more than the executor's simultaneous calls


class ChildProcess:
    """A child process that runs `serve` in a module of this plugin; it ends with this object."""

    def __init__(self, module: str, **arguments: Any) -> None:
        """Start the child, and make the client in it with these arguments.

        Raises:
            Exception: making the client failed; see `call`.
        """
        self._module = module
        ours, theirs = socket.socketpair()
        with theirs:
            # Its own session, so that the child can still cancel jobs after Ctrl-C. -P: without the
            # working folder in the module path, where a user's file might shadow a module.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        weakref.finalize(self, _end, process)
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        threading.Thread(
            target=_receive, args=(self._connection, self._pending, module), daemon=True
        ).start()
        self.call("make", **arguments)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client, from any thread.

        Raises:
            AzureMLError: as the client raised it, like an ImportError.
            SdkError: any other error that the client raised.
            ClientGoneError: the child process has ended.
        """
        number, outcome = next(self._numbers), Future[Any]()
        self._pending[number] = outcome
        try:
            with self._sending:
                self._connection.send((number, method, arguments, options))
        except OSError:
            raise ClientGoneError(f"the process of {self._module} has ended") from None
        return outcome.result()


def serve(make: Callable[..., Any]) -> None:
    """Carry out the parent's calls, of which the first makes the client; never return.

    Args:
        make: function that returns the client; called with the arguments of `ChildProcess`.
    """
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    sending = threading.Lock()

    def carry_out(number: int, function: Callable[..., Any], arguments: Any, options: Any) -> Any:
        outcome: Any = None
        error: Exception | None = None
        try:
            outcome = function(*arguments, **options)
        except (AzureMLError, ImportError) as own:
            error = own
        except Exception as other:
            error = SdkError(
                type(other).__name__, whole_text_of(other),
                status_code(other), retry_after_s(other), is_transient(other),
            )  # fmt: skip
        with sending:
            connection.send((number, None if number == 0 else outcome, error))
        return outcome

    try:
        number, _, arguments, options = connection.recv()
        client = carry_out(number, make, arguments, options)
        pool = ThreadPoolExecutor(_THREADS)
        while True:
            number, method, arguments, options = connection.recv()
            pool.submit(carry_out, number, getattr(client, method), arguments, options)
    except (EOFError, OSError):
        os._exit(0)  # at once: no caller waits for the calls in progress


def _receive(connection: Connection, pending: dict[int, "Future[Any]"], module: str) -> None:
    try:
        while True:
            number, outcome, error = connection.recv()
            if error is None:
                pending.pop(number).set_result(outcome)
            else:
                pending.pop(number).set_exception(error)
    except (EOFError, OSError):
        for number in list(pending):
            gone = ClientGoneError(f"the process of {module} ended without an answer")
            pending.pop(number).set_exception(gone)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
