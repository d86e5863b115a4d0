"""Tracker processes, the job's side: each is started before the ranks and ended after them."""

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

# How long the job waits for what is not yet sent; a sealed run is not followed again.
_LIMIT_S: Mapping[End, float] = {"sealed": 120.0, "failed": 15.0, "stopped": 15.0}
_GRACE_S = 10.0  # to report what was not sent
_LAST_LINES_S = 10.0  # to read a process's last lines on a busy machine


@contextmanager
def tracked(
    trackers: Sequence[str], context: TrackingContext, *, limits_s: Mapping[End, float] = _LIMIT_S
) -> Iterator[None]:
    """Track the training that happens within the block.

    Each tracker has a process of its own: a client that hangs, even one that holds the
    interpreter's lock, then holds up neither the training nor another tracker, and what it prints,
    reads of the environment or leaves running stays its own. Whatever goes wrong is a warning.

    Args:
        trackers: `runtime.tracking`.
        limits_s: by how the training ended, seconds to wait for what is not yet sent.

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
    """Refuse to begin where nothing could ever be tracked.

    Raises:
        ConfigError: a package is missing; the message names the extra that has it.
    """
    for module, package, extra in _needs(tracker, env.get("MLFLOW_TRACKING_URI", "")):
        if not _is_installed(module):
            raise ConfigError(
                f"runtime.tracking=[{tracker}] needs the package {package}, which is not installed; "
                f"pip install 'shardline[{extra}]', or drop {tracker} from runtime.tracking"
            )


def _needs(tracker: str, uri: str) -> list[tuple[str, str, str]]:
    """Return module, package and extra of what a tracker needs.

    Args:
        uri: MLflow's server; empty for the local store.
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
    # mlflow-skinny has no local store, but all of its modules
    return [
        ("alembic", "mlflow (for its local store, since MLFLOW_TRACKING_URI is not set)", "mlflow")
    ]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it lies in
        return False


class _Child:
    """One tracker's process: its client may hang, print, or keep its threads alive."""

    def __init__(self, tracker: str, context: TrackingContext) -> None:
        self._tracker = tracker
        self._process = subprocess.Popen(
            # the project's folder may hold a module of a package's name
            [sys.executable, "-P", "-m", "shardline.tracking.tracker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a client's own output may hold secrets
            text=True,
            preexec_fn=die_with_parent,
            start_new_session=True,  # a terminal's Ctrl-C reaches it through us alone
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=_pass_on, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        # no setting may be a secret: a tracker gets these alone
        params, tags = mask_values(context.params), mask_values(context.tags)
        masked = structs.replace(context, params=params, tags=tags)
        self.send({"tracker": tracker, "context": encode(masked)})

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a line of JSON to the process."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which `wait` reports
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def wait(self, until: float) -> None:
        """Wait for the process's end until a time of the monotonic clock."""
        try:
            if code := self._process.wait(max(0.0, until - time.monotonic())):
                _warn(
                    f"the process of {self._tracker} has ended with code {code}; not all was sent"
                )
        except subprocess.TimeoutExpired:
            _warn(
                f"the process of {self._tracker} did not end in time and is killed; not all was sent"
            )

    def kill(self) -> None:
        """Kill the process and those that it started."""
        kill_group(self._process.pid)
        self._process.wait()
        self._reader.join(_LAST_LINES_S)


def _end(children: Sequence[_Child], how: End, limit_s: float) -> None:
    """Let all trackers send the rest, wait at most `limit_s` for them, and kill those that remain.

    Raises:
        KeyboardInterrupt: the job was asked to stop meanwhile, and nothing is sealed.
    """
    for child in children:
        child.send({"ended": how, "limit_s": limit_s})
    until = time.monotonic() + limit_s + _GRACE_S
    try:
        with sigterm_as_interrupt():
            for child in children:
                child.wait(until)
    except KeyboardInterrupt:
        _warn("asked to stop before everything was sent to the trackers")
        if how != "sealed":
            raise
    finally:
        for child in children:
            child.kill()


def _pass_on(stream: IO[str]) -> None:
    """Pass on the process's messages: to the job's log, and warnings to standard error too."""
    for line in stream:
        message = json.loads(line)
        (_warn if message["is_warning"] else logging.info)(message["text"])


def _warn(text: str) -> None:
    logging.warning("%s", text)
    print(f"Warning: {text}", file=sys.stderr, flush=True)
