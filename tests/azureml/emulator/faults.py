"""What the service is told to get wrong, and how often."""

import re
import threading
from dataclasses import dataclass, field
from typing import Any

REQUEST_KINDS = {
    "429": "too many requests; option retry_after, in seconds",
    "500": "an internal error",
    "slow": "the answer comes late; option seconds",
    "drop": "the request is carried out, then the connection ends without an answer",
    "hang": "no answer ever comes; nothing is carried out, and the client is what ends it",
    "expired-token": "401, as if the bearer token were too old",
}
JOB_KINDS = {
    "missing-node": "a node never starts; option node, its number",
}


@dataclass
class Fault:
    """One thing that goes wrong `left` more times."""

    match: re.Pattern[str]
    kind: str
    left: int
    options: dict[str, Any] = field(default_factory=dict)


class Faults:
    """The faults that are still to happen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, match: str, kind: str, times: int, options: dict[str, Any]) -> None:
        """Let something go wrong.

        Args:
            match: Regular expression; for kinds of requests it is searched in `METHOD URL`
                (without query), for kinds of jobs in the job's name.
            kind: A key of REQUEST_KINDS or JOB_KINDS.
            times: How often.
            options: What the kind says.

        Raises:
            ValueError: there is no such kind.
        """
        if kind not in REQUEST_KINDS | JOB_KINDS:
            known = ", ".join(REQUEST_KINDS | JOB_KINDS)
            raise ValueError(f'kind="{kind}" is no fault; known are {known}')
        with self._lock:
            self._faults.append(Fault(re.compile(match), kind, times, options))

    def take(self, subject: str, kinds: dict[str, str]) -> Fault | None:
        """Return the first fault for a subject, once less often to come; None if there is none."""
        with self._lock:
            for fault in self._faults:
                if fault.left > 0 and fault.kind in kinds and fault.match.search(subject):
                    fault.left -= 1
                    return fault
        return None

    def left(self) -> list[Fault]:
        """Return the faults that did not happen as often as they were to."""
        with self._lock:
            return [fault for fault in self._faults if fault.left > 0]

    def mend(self) -> None:
        """Let nothing more go wrong."""
        with self._lock:
            self._faults.clear()
