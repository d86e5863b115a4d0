"""The program of the process that tracks: `python -m shardline.tracking.follow`.

Standard input brings two lines of JSON, a Story and later how the training has
ended; standard output gets one line of JSON for each thing to be told.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardline.tracking.records import Batch, Records
from shardline.tracking.to_mlflow import VALUES_AT_ONCE, MlflowRun

Say = Callable[[str, bool], None]

_TRIES = 3  # once the training has ended
_LONGEST_PAUSE_S = 60.0
_SECRETS = re.compile(
    r"(?i)(?<=://)[^/@\s]+@|(?<=bearer )\S+|(?<=[?&;\s](?:sig|key)=)[^&;\s'\"]+"
    r"|(?<=token=)[^&;\s'\"]+|(?<=password=)[^&;\s'\"]+|(?<=secret=)[^&;\s'\"]+"
)
_SECRET_VARIABLES = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "AZUREML_RUN_TOKEN")
_REASON_CHARACTERS = 300


def main() -> None:
    """Follow a training until its job says that it has ended, or is no more."""
    os.nice(10)  # the ranks come first
    say = _speaker()
    follower = Follower(json.loads(sys.stdin.readline()), say)
    worker = threading.Thread(target=follower.run, daemon=True)
    worker.start()
    line = sys.stdin.readline()
    if line:  # else the job was killed, and we with it
        end = json.loads(line)
        follower.end(end["ended"])
        if follower.has_begun():
            worker.join(end["limit_s"])
        follower.report()
    os._exit(0)  # a client's threads, which may hang, are not waited for


def _speaker() -> Say:
    """Keep standard output for ourselves: clients print too."""
    mine = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(text: str, is_warning: bool) -> None:
        mine.write(json.dumps({"text": text, "is_warning": is_warning}) + "\n")

    return say


class Trouble:
    """Says once that something has begun to fail, and once that it goes again."""

    def __init__(self, what: str, say: Say) -> None:
        self._what, self._say = what, say
        self.reason = ""
        self.count = 0  # failures in a row

    def failed(self, error: Exception) -> None:
        """Note a failure."""
        self.reason = shorten(error)
        self.count += 1
        if self.count == 1:
            self._say(
                f"{self._what} cannot be sent to MLflow at present, and will be tried again while "
                f"the training goes on: {self.reason}",
                True,
            )

    def went(self) -> None:
        """Note that it goes."""
        if self.count:
            self._say(f"{self._what} can be sent to MLflow again", True)
        self.count, self.reason = 0, ""


class Follower:
    """Sends what a training leaves in its folder, as it comes.

    Args:
        story: the fields of `shardline.tracking.Story`.
        say: tells the job something.
    """

    def __init__(self, story: Mapping[str, Any], say: Say) -> None:
        self._story = story
        self._say = say
        self._records = Records(Path(story["metrics"]))
        self._run = MlflowRun(story)
        self._sent = -1  # the last step
        self._started: float | None = None
        self._is_open = self._was_open = False
        self._how = ""
        self._is_over, self._is_known = threading.Event(), threading.Event()
        self._metrics, self._files = Trouble("metrics", say), Trouble("files", say)
        self._tries: dict[str, int] = {}

    def run(self) -> None:
        """Send metrics and files, each at its own pace, until the end of the training and of both."""
        files = threading.Thread(target=self._follow_files, daemon=True)
        files.start()
        self._follow_metrics()
        files.join()
        try:
            self._run.close(self._how)
        except Exception as error:  # whatever a client raises
            self._metrics.failed(error)

    def end(self, how: str) -> None:
        """Say how the training has ended; what is left is sent."""
        self._how = how
        self._is_over.set()

    def has_begun(self) -> bool:
        """Return whether there is anything to end; not if the ranks never came to train."""
        return self._was_open or bool(self._num_records_left())

    def report(self) -> None:
        """Tell what was not sent, if anything."""
        left = []
        if records := self._num_records_left():
            left.append(f"{records} metric records")
        if files := [file.name for file, _ in self._files_left()]:
            left.append(f"{len(files)} files ({', '.join(files)})")
        if left:
            reason = self._metrics.reason or self._files.reason or "it did not answer in time"
            self._say(f"not sent to MLflow: {' and '.join(left)}: {reason}", True)

    def _follow_metrics(self) -> None:
        self._repeat(self._send_records, self._metrics)
        self._is_known.set()  # or will never be

    def _follow_files(self) -> None:
        self._is_known.wait()
        self._repeat(self._send_files, self._files)

    def _repeat(self, send: Callable[[], bool], trouble: Trouble) -> None:
        """Send what there is until the training is over, and then until it went well, or not for long."""
        looks_left = _TRIES
        while looks_left:
            is_over = self._is_over.is_set()  # before the look, which then sees all
            goes = send()
            if is_over and goes:
                break
            if is_over:
                looks_left -= 1
                time.sleep(self._story["look_s"])
            else:
                pause = self._story["look_s"] * 2 ** min(trouble.count, 9)
                self._is_over.wait(min(pause, _LONGEST_PAUSE_S))

    def _send_records(self) -> bool:
        """Send what is new, and return whether that went well."""
        try:
            if not self._is_open:
                self._open()
            for batch in self._batches(self._records):
                if self._started is None:
                    self._started = self._records.started()
                self._run.send(batch, self._started)
                self._sent = batch.step
        except Exception as error:  # whatever a client raises
            self._is_open = False  # what came through is asked anew
            self._metrics.failed(error)
            return False
        self._metrics.went()
        return True

    def _open(self) -> None:
        is_known = self._run.run_id
        self._sent = self._run.open()
        self._records.restart()
        self._is_open = self._was_open = True
        if self._run.run_id != is_known:
            self._say(f"MLflow run {self._run.run_id}", False)
        self._is_known.set()

    def _send_files(self) -> bool:
        """Send one file after the other until one fails; returns whether none did."""
        while self._was_open and (left := self._files_left()):
            file, folder = left[0]
            self._tries[file.name] = self._tries.get(file.name, 0) + 1
            try:
                self._run.upload(file, folder)
            except Exception as error:  # whatever a client raises
                if file.exists():  # else a better one has taken its place
                    self._files.failed(error)
                    return False
            else:
                self._files.went()
        return True

    def _files_left(self) -> list[tuple[Path, str]]:
        """Return what is still to be sent, as file and folder in the run.

        The sealed model comes first, then checkpoints, the newest first; what has failed, last.
        """
        found = sorted(
            Path(self._story["work"], "checkpoints").glob("best-*.ckpt"), key=_changed, reverse=True
        )
        files = [(file, "checkpoints") for file in found]
        if self._how == "sealed":
            files.insert(0, (Path(self._story["model"]), ""))
        left = [file for file in files if file[0].exists() and file[0].name not in self._run.files]
        return sorted(left, key=lambda file: self._tries.get(file[0].name, 0))

    def _num_records_left(self) -> int:
        fresh = Records(Path(self._story["metrics"]))
        return sum(batch.records for batch in self._batches(fresh))

    def _batches(self, records: Records) -> Iterator[Batch]:
        return records.batches(self._sent, is_whole=self._how == "sealed", size=VALUES_AT_ONCE)


def shorten(error: Exception) -> str:
    """Return an error as one line of limited length, without secrets."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    for name in _SECRET_VARIABLES:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    text = _SECRETS.sub("***", text)
    half = _REASON_CHARACTERS // 2  # the cause stands at the end
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # a better one has just taken its place
        return 0.0


if __name__ == "__main__":
    main()
