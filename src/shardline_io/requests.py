"""Requests of a script to its rank: one line of JSON each way, through an inherited socket."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from functools import lru_cache
from typing import Any

from shardline_io.errors import DataError


class _Rank:
    """Connection to the rank."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._lock = threading.Lock()

    def ask(self, name: str, value: Any) -> None:
        answer = ""
        with self._lock, suppress(OSError):  # a broken socket counts as a missing answer
            self._lines.write(json.dumps({name: value}) + "\n")
            self._lines.flush()
            answer = self._lines.readline()
        if not answer:
            raise DataError(
                "the rank that started this script does not answer, expected it to run as long as the script; start "
                "the pipeline again"
            )
        if found := json.loads(answer):
            raise DataError(found)


@lru_cache(maxsize=1)
def _rank() -> _Rank | None:
    descriptor = os.environ.get("SHARDLINE_REQUESTS")
    return _Rank(int(descriptor)) if descriptor else None


def ask(name: str, value: Any) -> None:
    """Send a request to the rank and wait until it agrees; return at once if there is no rank.

    Raises:
        DataError: the rank found a problem; carries the rank's message.
    """
    if rank := _rank():
        rank.ask(name, value)
