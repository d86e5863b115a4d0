"""Links of a run: where each tracker shows the training, and what was sent."""

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardline.core.files import write_json
from shardline.records.trainings import Places

FOLDER = "tracking"
_ANSWER_S = 60.0  # a short training can end before the client of a tracker is imported


class RunLinks:
    """Content of `work/{run}/tracking/{tracker}.json`, which one process writes.

    Keys: `where` locates the training in the tracker and goes into provenance.json, `failed` is true if the
    tracker could not be opened at the first try, `ended` is how the training ended, and `not_sent` describes what
    was not sent (null: everything was sent).

    Args:
        work: the run's folder in the store.
    """

    def __init__(self, work: str | Path, tracker: str) -> None:
        self._path = Path(work, FOLDER, f"{tracker}.json")
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Return the content of the file; empty if there is no file."""
        try:
            links: dict[str, Any] = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return links

    def write(self, **changes: Any) -> None:
        """Change some keys."""
        with self._lock:  # one thread sends metrics, another sends files
            write_json(self._path, {**self.read(), **changes})


def read_places(work: Path, trackers: Iterable[str], *, wait_s: float = _ANSWER_S) -> Places:
    """Return where each tracker shows a training, as provenance.json records it.

    An unknown place is waited for until the tracker was opened or failed to be opened.

    Args:
        work: the run's folder in the store.
        trackers: trackers of `runtime.tracking`.
        wait_s: maximum time to wait, in seconds, for example if a service does not answer.

    Returns:
        Values by tracker and name; None for an unknown value.
    """
    names = list(trackers)
    deadline = time.monotonic() + wait_s
    while True:
        links = {name: RunLinks(work, name).read() for name in names}
        if time.monotonic() > deadline or all(map(_is_settled, links.values())):
            return {name: link.get("where") for name, link in links.items()}
        time.sleep(0.1)


def _is_settled(links: dict[str, Any]) -> bool:
    """Return whether a tracker has said where the training is, or that it does not know."""
    place = links.get("where") or {None: None}
    return bool(links.get("failed")) or None not in place.values()
