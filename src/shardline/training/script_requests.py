"""Answer requests that a script sends to its rank through `shardline_io`: verify a shard, record a resume.

Requests and answers are lines of JSON through a socket that the script inherits. The rank verifies
shards, since the script's environment may lack BLAKE3, and one verification serves all ranks of a node.
"""

import json
import math
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from shardline.core.error_texts import short_traceback
from shardline.core.errors import ShardlineError
from shardline.records.attempts import Attempt

Answer = Callable[[Any], None]  # its error is raised in the script


@contextmanager
def answered(answers: Mapping[str, Answer]) -> Iterator[int]:
    """Answer the requests of a script while it runs.

    Args:
        answers: Functions by name of the request; a request is `{name: value}`.

    Yields:
        File descriptor of the script's end of the socket.
    """
    near, far = socket.socketpair()
    thread = threading.Thread(target=_answer_all, args=(near, answers), daemon=True)
    thread.start()
    try:
        yield far.fileno()
    finally:
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)
        far.close()
        thread.join()
        near.close()


def _answer_all(near: socket.socket, answers: Mapping[str, Answer]) -> None:
    # suppress must enclose makefile, which flushes when it is closed
    with suppress(OSError), near.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            lines.write(json.dumps(_answer(line, answers)) + "\n")
            lines.flush()


def _answer(line: str, answers: Mapping[str, Answer]) -> str | None:
    try:
        for name, value in json.loads(line).items():
            answers.get(name, lambda _: None)(value)
    except ShardlineError as error:
        return str(error)
    except Exception as error:  # without an answer the script would wait forever
        return short_traceback(error)
    return None


def kept_until(attempts: list[Attempt], step: int, saved_s: float | None) -> dict[int, float]:
    """Return, for all attempts but the last, the seconds of work that are in the resumed checkpoint.

    Args:
        attempts: All attempts; the last one is running and resumes.
        step: Step of the checkpoint; 0: there is none.
        saved_s: Time of saving in seconds since the epoch; None: unknown, and no work counts as lost.
    """
    kept = {}
    if saved_s is None:
        saved_s = math.inf if step else 0.0
    for number, attempt in enumerate(attempts[:-1], 1):
        duration = attempt.duration_s
        if attempt.started_s >= saved_s:
            kept[number] = 0.0
        elif attempt.started_s + duration <= saved_s:  # its loss was recorded at the next resume
            kept[number] = duration - (attempt.lost_s or 0.0)
        else:
            kept[number] = saved_s - attempt.started_s
    return kept
