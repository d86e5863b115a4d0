"""Program of a tracker process: `python -m shardline.tracking.tracker_process`.

The process reads two lines of JSON from standard input: the tracker's name with a TrackingContext, and later how
the training ended. It writes one line of JSON per message to standard output.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import convert

from shardline.records.tracking import TrackingContext
from shardline.tracking.backends.csv import CsvFile
from shardline.tracking.backends.mlflow import MlflowRun
from shardline.tracking.backends.tensorboard import TensorBoardFolder
from shardline.tracking.backends.wandb import WandbRun
from shardline.tracking.metric_batches import MetricBatch, Records
from shardline.tracking.run_links import RunLinks
from shardline.tracking.tracker import Say, Tracker, shorten

_TRACKERS: Mapping[str, type[Tracker]] = {
    "csv": CsvFile,
    "mlflow": MlflowRun,
    "tensorboard": TensorBoardFolder,
    "wandb": WandbRun,
}

_TRIES = 3  # once the training has ended
_LONGEST_PAUSE_S = 60.0


def main() -> None:
    """Track a training until its job reports the end or ends itself."""
    os.nice(10)  # the ranks have priority
    say = _speaker()
    begin = json.loads(sys.stdin.readline())
    process = TrackerProcess(begin["tracker"], convert(begin["context"], TrackingContext), say)
    worker = threading.Thread(target=process.run, daemon=True)
    worker.start()
    line = sys.stdin.readline()
    if line:  # otherwise the job was killed, and this process ends, too
        end = json.loads(line)
        process.end(end["ended"])
        if process.has_begun():
            worker.join(end["limit_s"])
        process.report()
    os._exit(0)  # do not wait for threads of a client, which may hang


def _speaker() -> Say:
    """Reserve standard output for messages, since clients print, too."""
    mine = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(text: str, is_warning: bool) -> None:
        mine.write(json.dumps({"text": text, "is_warning": is_warning}) + "\n")

    return say


class SendErrors:
    """Report once when sending fails, and once when it works again.

    Args:
        what: what is sent, such as "metrics".
        label: label of the tracker.
    """

    def __init__(self, what: str, label: str, say: Say) -> None:
        self._what, self._label, self._say = what, label, say
        self.reason = ""
        self.count = 0  # failures in a row

    def failed(self, error: Exception) -> None:
        """Record a failure."""
        self.reason = shorten(error)
        self.count += 1
        if self.count == 1:
            self._say(
                f"{self._what} cannot be sent to {self._label} at present; Shardline tries again "
                f"until the training ends: {self.reason}",
                True,
            )

    def succeeded(self) -> None:
        """Record a success."""
        if self.count:
            self._say(f"{self._what} can be sent to {self._label} again", True)
        self.count, self.reason = 0, ""


class TrackerProcess:
    """Send new metrics and files of a training to a tracker.

    Args:
        tracker: a tracker of `runtime.tracking`.
        say: sends a message to the job.
    """

    def __init__(self, tracker: str, context: TrackingContext, say: Say) -> None:
        self._context = context
        self._say = say
        self._records = Records(Path(context.metrics))
        links = RunLinks(context.work, tracker)
        links.write(failed=None, ended=None, not_sent=None)
        self._tracker = _TRACKERS[tracker](context, links)
        self._place = ""  # as last reported
        self._sent = -1  # the last step
        self._started: float | None = None
        self._is_open = self._was_open = self._is_closed = False
        self._how = ""
        self._is_over, self._is_known = threading.Event(), threading.Event()
        label = self._tracker.label
        self._metrics, self._files = (SendErrors(what, label, say) for what in ("metrics", "files"))
        self._tries: dict[str, int] = {}

    def run(self) -> None:
        """Send metrics and files in two threads until the training has ended and both are sent."""
        files = threading.Thread(target=self._follow_files, daemon=True)
        files.start()
        self._follow_metrics()
        files.join()
        try:
            self._tracker.close(self._how)
            self._is_closed = True
        except Exception as error:  # whatever a client raises
            self._metrics.reason = shorten(error)

    def end(self, how: str) -> None:
        """Set how the training ended, so that the rest is sent."""
        self._how = how
        self._is_over.set()

    def has_begun(self) -> bool:
        """Return whether the training has begun, so that there is something to send or close."""
        return self._was_open or bool(self._num_records_left())

    def report(self) -> None:
        """Report and record what was not sent."""
        left = []
        if records := self._num_records_left():
            left.append(f"{records} metric records")
        if files := [file.name for file, _ in self._files_left()]:
            left.append(f"{len(files)} files ({', '.join(files)})")
        if self._was_open and not self._is_closed:
            left.append(self._tracker.closing)
        if left:
            reason = self._metrics.reason or self._files.reason or "it did not answer in time"
            self._say(f"not sent to {self._tracker.label}: {' and '.join(left)}: {reason}", True)
        self._tracker.links.write(ended=self._how, not_sent=" and ".join(left) or None)

    def _follow_metrics(self) -> None:
        self._repeat(self._send_records, self._metrics)
        self._is_known.set()  # or will never be known

    def _follow_files(self) -> None:
        self._is_known.wait()
        self._repeat(self._send_files, self._files)

    def _repeat(self, send: Callable[[], bool], errors: SendErrors) -> None:
        """Send new data until the training is over, then retry a few times until sending succeeds."""
        looks_left = _TRIES
        while looks_left:
            is_over = self._is_over.is_set()  # read first: the last call sends all
            goes = send()
            if is_over and goes:
                break
            if is_over:
                looks_left -= 1
                time.sleep(self._context.look_s)
            else:
                pause = self._context.look_s * 2 ** min(errors.count, 9)
                self._is_over.wait(min(pause, _LONGEST_PAUSE_S))

    def _send_records(self) -> bool:
        """Send new records, and return whether that succeeded."""
        try:
            if not self._is_open:
                self._open()
            for batch in self._batches(self._records):
                if self._started is None:
                    self._started = self._records.started()
                self._tracker.send(batch, self._started)
                self._sent = batch.step
        except Exception as error:  # whatever a client raises
            self._is_open = False  # `open` then asks the tracker again what has arrived
            self._metrics.failed(error)
            if not self._was_open:
                self._tracker.links.write(failed=True)
            return False
        self._metrics.succeeded()
        return True

    def _open(self) -> None:
        tracker = self._tracker
        self._sent = tracker.open()
        self._records.restart()
        self._is_open = self._was_open = True
        if tracker.place != self._place:
            self._place = tracker.place
            self._say(f"{tracker.label} {tracker.place}", False)
        if tracker.warning:
            self._say(tracker.warning, True)
            tracker.warning = ""
        self._is_known.set()

    def _send_files(self) -> bool:
        """Send files until one fails, and return whether all succeeded."""
        while self._was_open and (left := self._files_left()):
            file, folder = left[0]
            self._tries[file.name] = self._tries.get(file.name, 0) + 1
            try:
                self._tracker.upload(file, folder)
            except Exception as error:  # whatever a client raises
                if file.exists():  # otherwise a better checkpoint has replaced it
                    self._files.failed(error)
                    return False
            else:
                self._files.succeeded()
        return True

    def _files_left(self) -> list[tuple[Path, str]]:
        """Return the files to send, each with its folder in the tracker's run.

        The order is sealed model, then checkpoints from newest to oldest. Files that failed before come last.
        """
        folder = Path(self._context.work, "checkpoints")
        found = folder.glob("best-*.safetensors") if self._tracker.takes_checkpoints else []
        files = [(file, "checkpoints") for file in sorted(found, key=_changed, reverse=True)]
        if self._how == "sealed" and self._tracker.takes_model:
            files.insert(0, (Path(self._context.model), ""))
        left = [
            file for file in files if file[0].exists() and file[0].name not in self._tracker.files
        ]
        return sorted(left, key=lambda file: self._tries.get(file[0].name, 0))

    def _num_records_left(self) -> int:
        fresh = Records(Path(self._context.metrics))
        return sum(batch.records for batch in self._batches(fresh))

    def _batches(self, records: Records) -> Iterator[MetricBatch]:
        return records.batches(
            self._sent, is_whole=self._how == "sealed", size=self._tracker.values_at_once
        )


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # a better checkpoint has just replaced it
        return 0.0


if __name__ == "__main__":
    main()
