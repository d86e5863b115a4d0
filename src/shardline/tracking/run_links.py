"""The run's links: where each tracker shows the training, and what was sent."""

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardline.core.files import write_json
from shardline.records.runs import Places

FOLDER = "tracking"
_MOMENT_S = 2.0  # a tracker's client may take as long to import as a short training takes


class RunLinks:
    """`work/{run}/tracking/{tracker}.json`, which one process writes.

    Its `where` names the training in the tracker (what provenance.json records), `ended` how the
    training ended once the tracker knows, and `not_sent` what the tracker lacks then; null for
    nothing.

    Args:
        work: the run's folder in the store.
    """

    def __init__(self, work: str | Path, tracker: str) -> None:
        self._path = Path(work, FOLDER, f"{tracker}.json")
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Return the file's content; empty if there is no file."""
        try:
            links: dict[str, Any] = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return links

    def write(self, **changes: Any) -> None:
        """Change some keys."""
        with self._lock:  # metrics and files are sent by a thread each
            write_json(self._path, {**self.read(), **changes})


def read_places(work: Path, trackers: Iterable[str], *, wait_s: float = _MOMENT_S) -> Places:
    """Return where each tracker has a training, as provenance.json records it.

    Args:
        work: the run's folder in the store.
        trackers: `runtime.tracking`.
        wait_s: seconds to wait for what is not known yet.

    Returns:
        tracker -> name -> value; null what is unknown, as with a service that does not answer.
    """
    names = list(trackers)
    deadline = time.monotonic() + wait_s
    while True:
        places = {name: RunLinks(work, name).read().get("where") for name in names}
        known = all(place and None not in place.values() for place in places.values())
        if known or time.monotonic() > deadline:
            return places
        time.sleep(0.1)
