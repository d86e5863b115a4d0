"""A process in the place of Snakemake's, with whose end the servers of warm ranks end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HOLDER = "import os; r, w = os.pipe(); print(os.getpid(), r, os.fstat(r).st_ino, sep=':', flush=True); os.read(0, 1)"


@contextmanager
def held() -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Provide the process, and the value of the variable by which jobs find it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout
    try:
        yield holder, holder.stdout.readline().strip()
    finally:
        holder.kill()
        holder.communicate()
