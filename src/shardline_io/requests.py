"""What a program asks and tells its rank: a line of JSON each way, through a socket that it inherits."""

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
    """The way to the rank."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._lock = threading.Lock()

    def ask(self, name: str, value: Any) -> None:
        answer = ""
        with self._lock, suppress(OSError):  # a pipe that broke is an answer that is missing
            self._lines.write(json.dumps({name: value}) + "\n")
            self._lines.flush()
            answer = self._lines.readline()
        if not answer:
            raise DataError("this program's rank has ended; start the pipeline again")
        if found := json.loads(answer):
            raise DataError(found)


@lru_cache(maxsize=1)
def _rank() -> _Rank | None:
    descriptor = os.environ.get("SHARDLINE_REQUESTS")
    return _Rank(int(descriptor)) if descriptor else None


def ask(name: str, value: Any) -> None:
    """Ask the rank, and return once it agrees; at once where there is no rank to ask.

    Raises:
        DataError: the rank found something wrong; the message is its own.
    """
    if rank := _rank():
        rank.ask(name, value)
