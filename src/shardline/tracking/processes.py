"""Start tracker processes before the ranks, and end them after the ranks."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import IO, Any, Literal

from msgspec import structs

from shardline.core.errors import ConfigError
from shardline.core.process import die_with_parent, kill_group, sigterm_as_interrupt
from shardline.core.redaction import mask_values
from shardline.records.base import encode
from shardline.records.tracking import TrackingContext

End = Literal["sealed", "failed", "stopped"]

# Time limit for sending the rest. A sealed run gets more time, since no later attempt sends the rest.
_LIMIT_S: Mapping[End, float] = {"sealed": 120.0, "failed": 15.0, "stopped": 15.0}
_GRACE_S = 10.0  # for the report of what was not sent
_LAST_LINES_S = 10.0  # for reading the last lines of a process on a busy machine


@contextmanager
def tracked(
    trackers: Sequence[str], context: TrackingContext, *, limits_s: Mapping[End, float] = _LIMIT_S
) -> Iterator[None]:
    """Track the training inside the `with` block.

    Each tracker has its own process. So a client that hangs, prints, changes the environment or leaves
    threads running affects neither the training nor another tracker. Every error becomes a warning.

    Args:
        trackers: trackers of `runtime.tracking`.
        limits_s: time limit for sending the rest, in seconds, by how the training ended.

    Raises:
        ConfigError: a package is missing.
    """
    for tracker in trackers:
        check_packages(tracker, os.environ)
    children = [_Child(tracker, context) for tracker in trackers]
    try:
        yield
    except KeyboardInterrupt:
        _end(children, "stopped", limits_s["stopped"])
        raise
    except BaseException:
        _end(children, "failed", limits_s["failed"])
        raise
    _end(children, "sealed", limits_s["sealed"])


def check_packages(tracker: str, env: Mapping[str, str]) -> None:
    """Check that the packages of a tracker are installed.

    Raises:
        ConfigError: a package is missing; the message names the extra to install.
    """
    for module, package, extra in _needs(tracker, env.get("MLFLOW_TRACKING_URI", "")):
        if not _is_installed(module):
            raise ConfigError(
                f"runtime.tracking=[{tracker}] needs the package {package}, which is not installed; "
                f"pip install 'shardline[{extra}]', or remove {tracker} from runtime.tracking"
            )


def _needs(tracker: str, uri: str) -> list[tuple[str, str, str]]:
    """Return module, package and extra of each package that a tracker needs.

    Args:
        uri: address of the MLflow server; empty for the local store.
    """
    if tracker == "csv":
        return []
    if tracker != "mlflow":
        return [(tracker, tracker, tracker)]
    if uri.startswith("azureml:"):
        return [
            ("mlflow", "mlflow-skinny", "azureml"),
            ("azureml.mlflow", "azureml-mlflow", "azureml"),
        ]
    if uri:
        return [("mlflow", "mlflow-skinny", "mlflow")]
    # mlflow-skinny contains the modules of the local store, but not its dependencies
    return [
        ("alembic", "mlflow (for its local store, since MLFLOW_TRACKING_URI is not set)", "mlflow")
    ]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False


class _Child:
    """Process of one tracker, whose client may hang, print, or keep threads alive."""

    def __init__(self, tracker: str, context: TrackingContext) -> None:
        self._tracker = tracker
        self._process = subprocess.Popen(
            # the project's folder may contain a module with the name of a package
            [sys.executable, "-P", "-m", "shardline.tracking.tracker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the output of a client may contain secrets
            text=True,
            preexec_fn=die_with_parent,
            start_new_session=True,  # only this process forwards Ctrl-C
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=_pass_on, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        # no setting sent to a tracker may be a secret
        params, tags = mask_values(context.params), mask_values(context.tags)
        masked = structs.replace(context, params=params, tags=tags)
        self.send({"tracker": tracker, "context": encode(masked)})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the process as a line of JSON."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended, which `wait` reports
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def wait(self, until: float) -> None:
        """Wait until the process ends, at most until a time of the monotonic clock."""
        try:
            if code := self._process.wait(max(0.0, until - time.monotonic())):
                _warn(
                    f"the process of {self._tracker} ended with code {code}; some data was not sent"
                )
        except subprocess.TimeoutExpired:
            _warn(
                f"the process of {self._tracker} did not end in time and was killed; some data was not sent"
            )

    def kill(self) -> None:
        """Kill the process and its descendants."""
        kill_group(self._process.pid)
        self._process.wait()
        self._reader.join(_LAST_LINES_S)


def _end(children: Sequence[_Child], how: End, limit_s: float) -> None:
    """Let all trackers send the rest for at most `limit_s`, then kill the remaining processes.

    Raises:
        KeyboardInterrupt: the job was stopped meanwhile, and the run is not sealed.
    """
    for child in children:
        child.send({"ended": how, "limit_s": limit_s})
    until = time.monotonic() + limit_s + _GRACE_S
    try:
        with sigterm_as_interrupt():
            for child in children:
                child.wait(until)
    except KeyboardInterrupt:
        _warn("the job was stopped before everything was sent to the trackers")
        if how != "sealed":
            raise
    finally:
        for child in children:
            child.kill()


def _pass_on(stream: IO[str]) -> None:
    """Copy messages of the process to the log of the job, and warnings to standard error, too."""
    for line in stream:
        message = json.loads(line)
        (_warn if message["is_warning"] else logging.info)(message["text"])


def _warn(text: str) -> None:
    logging.warning("%s", text)
    print(f"Warning: {text}", file=sys.stderr, flush=True)
