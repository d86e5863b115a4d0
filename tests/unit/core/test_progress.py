"""The progress of a job's shards, as a terminal shows it and as a log keeps it."""

import io
import logging
import os
import pty
import re
import subprocess
import sys

from shardline.core.progress import ShardProgress

LINE = r"shards 00000-00031: {}/3, [\d.]+( [kMG])? rows/s, {}"


def write_three(stream, every_s):
    with ShardProgress("shards 00000-00031", 3, stream=stream, every_s=every_s) as progress:
        for rows in (1000, 2000, 3000):
            progress.advance(rows)


def test_without_a_terminal_each_line_says_shards_rate_and_time_left(caplog):
    caplog.set_level(logging.INFO)
    stream = io.StringIO()
    write_three(stream, every_s=0)
    lines = stream.getvalue().splitlines()
    time = r"\d+:\d\d:\d\d"
    expected = [LINE.format(1, f"{time} left"), LINE.format(2, f"{time} left")]
    expected.append(LINE.format(3, f"took {time}"))
    assert len(lines) == 3
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), line
    assert caplog.messages == lines, "the log gets the same"


def test_lines_keep_their_distance_and_the_last_always_comes():
    stream = io.StringIO()
    write_three(stream, every_s=3600)
    assert re.fullmatch(LINE.format(3, ".*\n"), stream.getvalue())


def test_a_terminal_gets_a_bar_with_rate_and_time_left():
    program = (
        "from shardline.core.progress import ShardProgress\n"
        "with ShardProgress('shards 00000-00031', 3) as progress:\n"
        "    progress.advance(1000); progress.advance(2000)\n"
    )
    terminal, inside = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=inside,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
    ) as process:
        os.close(inside)
        shown = b""
        while chunk := _read(terminal):
            shown += chunk
    os.close(terminal)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert re.search(r"shards 00000-00031 \S+ 2/3 [\d.]+( [kMG])? rows/s [\d:-]+", text), text


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # what Linux says once the other side is closed
        return b""
