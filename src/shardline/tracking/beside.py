"""The job's side: the process that tracks is started before the ranks and ended after them."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import IO, Any, Literal

from shardline.errors import ConfigError
from shardline.launch.process import die_with_parent, kill_group
from shardline.supervise import sigterm_as_interrupt

End = Literal["sealed", "failed", "stopped"]

# How long the job waits for what is not yet sent; a sealed run is not followed again.
_LIMIT_S: Mapping[End, float] = {"sealed": 120.0, "failed": 15.0, "stopped": 15.0}
_GRACE_S = 10.0  # to say what was not sent


@dataclass(frozen=True, kw_only=True)
class Story:
    """What is told of a training, and where it is found.

    Attributes:
        run: the run's name and digest.
        work: the run's folder in the store.
        metrics: file of metric records that the training appends to.
        model: where the sealed model is to be.
        params: name -> value of each setting.
        tags: name -> value of what else tells the run from others.
        look_s: seconds between two looks at the folder.
    """

    run: str
    name: str
    work: str
    metrics: str
    model: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    look_s: float = 5.0


@contextmanager
def tracked(
    trackers: Sequence[str], story: Story, *, limits_s: Mapping[End, float] = _LIMIT_S
) -> Iterator[None]:
    """Track the training that happens within the block.

    Whatever goes wrong with a service is told as a warning.

    Args:
        trackers: `runtime.tracking`.
        limits_s: by how the training ended, seconds to wait for what is not yet sent.

    Raises:
        ConfigError: it is not said where to, or a package is missing.
    """
    if not trackers:
        yield
        return
    check_mlflow(os.environ)
    follower = _Follower(story)
    try:
        yield
    except KeyboardInterrupt:
        follower.end("stopped", limits_s["stopped"])
        raise
    except BaseException:
        follower.end("failed", limits_s["failed"])
        raise
    follower.end("sealed", limits_s["sealed"])


def check_mlflow(env: Mapping[str, str]) -> None:
    """Refuse to begin where nothing could ever be tracked.

    Raises:
        ConfigError: MLFLOW_TRACKING_URI is not set, or a package is missing.
    """
    uri = env.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise ConfigError(
            "runtime.tracking=[mlflow], but MLFLOW_TRACKING_URI is not set; Azure ML sets it in its "
            "jobs, elsewhere name a server (https://...) or drop mlflow from runtime.tracking"
        )
    needs = [("mlflow", "mlflow-skinny", "mlflow")]
    if uri.startswith("azureml:"):
        needs.append(("azureml.mlflow", "azureml-mlflow", "azureml"))
    for module, package, extra in needs:
        if not _is_installed(module):
            raise ConfigError(
                f"runtime.tracking=[mlflow] needs the package {package}, which is not installed; "
                f"pip install 'shardline[{extra}]', or drop mlflow from runtime.tracking"
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it lies in
        return False


class _Follower:
    """The process that tracks: a service's client may hang, print, or keep its threads alive."""

    def __init__(self, story: Story) -> None:
        self._process = subprocess.Popen(
            # the project's folder may hold a module of a package's name
            [sys.executable, "-P", "-m", "shardline.tracking.follow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a client's own words may hold secrets
            text=True,
            preexec_fn=die_with_parent,
            start_new_session=True,  # a terminal's Ctrl-C reaches it through us alone
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=_pass_on, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self._tell(asdict(story))

    def end(self, how: End, limit_s: float) -> None:
        """Let it send the rest, wait for it that long, and see that nothing is left of it.

        Raises:
            KeyboardInterrupt: told to stop meanwhile, though nothing is sealed.
        """
        self._tell({"ended": how, "limit_s": limit_s})
        try:
            with sigterm_as_interrupt():
                code = self._process.wait(limit_s + _GRACE_S)
            if code:
                _warn(f"the tracking process has ended with code {code}; not all was sent")
        except subprocess.TimeoutExpired:
            _warn("the tracking process did not end in time and was killed; not all was sent")
        except KeyboardInterrupt:
            _warn("told to stop before all was sent to the tracking service")
            if how != "sealed":
                raise
        finally:
            kill_group(self._process.pid)
            self._process.wait()
            self._reader.join(1)  # what it left running may hold its output

    def _tell(self, words: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which its exit code tells
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()


def _pass_on(stream: IO[str]) -> None:
    """Pass on what the process says: facts to the job's log, warnings to standard error too."""
    for line in stream:
        words = json.loads(line)
        (_warn if words["is_warning"] else logging.info)(words["text"])


def _warn(text: str) -> None:
    logging.warning("%s", text)
    print(f"Warning: {text}", file=sys.stderr, flush=True)
