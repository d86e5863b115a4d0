"""What a script asks and tells its rank by `shardline_io`: whether a shard is damaged, and where it resumes.

A line of JSON each way, through a socket whose far end the script inherits. The rank verifies, since
BLAKE3 is in no environment that has NumPy alone, and one verification serves all ranks of a node.
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

Answer = Callable[[Any], None]  # raises what the script is to raise


@contextmanager
def answered(answers: Mapping[str, Answer]) -> Iterator[int]:
    """Answer a script while it runs.

    Args:
        answers: by what is asked; a request is `{name: value}`.

    Yields:
        The descriptor of the script's end.
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
    # suppressed around the file too, which writes once more when it is closed
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
    except Exception as error:  # a script that waits for ever would be worse
        return short_traceback(error)
    return None


def kept_until(attempts: list[Attempt], step: int, saved_s: float | None) -> dict[int, float]:
    """Return, by attempt but the last, the seconds whose work is in the checkpoint that the last one resumes from.

    Args:
        attempts: all of them; the last one is running.
        step: of the checkpoint; 0: there is none.
        saved_s: when it was saved, seconds since the epoch; None: not known, and no work counts as lost.
    """
    kept = {}
    if saved_s is None:
        saved_s = math.inf if step else 0.0
    for number, attempt in enumerate(attempts[:-1], 1):
        duration = attempt.duration_s
        if attempt.started_s >= saved_s:
            kept[number] = 0.0
        elif (
            attempt.started_s + duration <= saved_s
        ):  # its loss is known since the next one resumed
            kept[number] = duration - (attempt.lost_s or 0.0)
        else:
            kept[number] = saved_s - attempt.started_s
    return kept
