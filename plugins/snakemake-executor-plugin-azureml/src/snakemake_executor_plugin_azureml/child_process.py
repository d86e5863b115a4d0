"""A client of the service in a process of its own, called from this one.

Calls and outcomes are pickled and travel over a socket that only these two processes have. The child ends
when the socket is closed, hence also when this process is killed.
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

_THREADS = 16  # more than the executor has calls under way at a time


class ChildProcess:
    """A child that runs `serve` in a module of ours; its end is this object's."""

    def __init__(self, module: str, **arguments: Any) -> None:
        """Start the child, and have it make the client with these arguments.

        Raises:
            Exception: what making the client raised there, as `call` does.
        """
        self._module = module
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own, so that Ctrl-C leaves the child able to cancel jobs; without the
            # working folder among the places of modules, where a user's file might be taken for one.
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
        """Call a method of the client; any number of threads may.

        Raises:
            AzureMLError: as the client raised it, like an ImportError.
            SdkError: any other error that the client raised.
            ClientGoneError: the child has ended.
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
    """Carry out the calls of the parent process, the first of which makes the client; never returns.

    Args:
        make: called with the arguments of `ChildProcess`; returns the client.
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
