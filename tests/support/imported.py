"""What user code truly does: a fresh interpreter imports it and calls it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Each case runs in a fork of an interpreter that has imported nothing of any case.
_PROGRAM = """
import builtins, functools, importlib, json, os, pathlib, pkgutil, runpy, site, sys, typing

def run(case):
    try:
        sys.dont_write_bytecode = True
        os.chdir(case["roots"][0])
        sys.path[:0] = case["roots"]
        return repr(importlib.import_module(case["entry"]).call())
    except Exception as error:
        return type(error).__name__

for line in sys.stdin:
    end, start = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(start, run(json.loads(line)).encode())
        os._exit(0)
    os.close(start)
    with open(end, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    print(json.dumps(text), flush=True)
"""


class Interpreter:
    """Imports modules and calls their `call`, each time as if Python had just been started."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-W", "ignore", "-c", _PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def call(self, entry: str, roots: Sequence[Path]) -> str:
        """Return what `entry.call()` returns, as text, or the name of the error that it raised.

        Args:
            entry: a module's dotted name.
            roots: the first entries of `sys.path`; the first is the working directory.
        """
        assert self._process.stdin
        assert self._process.stdout
        case = {"entry": entry, "roots": [str(root) for root in roots]}
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the interpreter."""
        self._process.communicate()
