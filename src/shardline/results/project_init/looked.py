"""What a process found out about the classes of a project, and the start of this process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shardline.core.errors import ConfigError
from shardline.core.rank_environment import without_place
from shardline.core.variables import cleaned

_LIMIT_S = 300.0


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a constructor.

    Attributes:
        name: Its name.
        is_required: Whether it has no default.
        value: Default, or an object of the class that the annotation names; unset if a config cannot contain it.
        shown: Default or annotation, for a comment.
    """

    name: str
    is_required: bool
    value: Any | UnsetType = UNSET
    shown: str = ""


class LookedClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class or function, as its module defines it.

    Attributes:
        path: Import path.
        arguments: Arguments of the constructor.
        logged: Names that methods pass to `self.log`, in order.
        unpacks: Whether a method takes its batch apart by position.
        methods: Names that the class and its bases define, without those of Lightning and torch.
        problem: Why the class cannot be looked at; empty if it can.
    """

    path: str
    arguments: list[Argument] = msgspec.field(default_factory=list)
    logged: list[str] = msgspec.field(default_factory=list)
    unpacks: bool = False
    methods: list[str] = msgspec.field(default_factory=list)
    problem: str = ""


def look(paths: Sequence[str], folder: Path) -> list[LookedClass]:
    """Import classes in another process, as a job does, and return what they are.

    Args:
        paths: Import paths.
        folder: Folder of the project.

    Raises:
        ConfigError: A class does not import, or the process fails.
    """
    env, _ = without_place(os.environ)
    with TemporaryDirectory() as place:
        output = Path(place) / "found.json"
        found_in = os.pathsep.join(filter(None, (str(folder), env.get("PYTHONPATH"))))
        command = [
            sys.executable,
            "-B",
            "-m",
            "shardline.results.project_init.look",
            str(output),
            *paths,
        ]
        try:
            done = subprocess.run(
                command, cwd=folder, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**cleaned(env), "PYTHONPATH": found_in, "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"importing {' and '.join(paths)} took longer than {_LIMIT_S:g} s, expected classes that import "
                "without work; move the work into a function"
            ) from None
        if not output.exists():
            last = "\n".join(done.stdout.splitlines()[-5:])
            raise ConfigError(
                f"importing {' and '.join(paths)} ended the process with code {done.returncode}: {last}"
            )
        found = msgspec.json.decode(output.read_bytes(), type=list[LookedClass])
    if problems := [one.problem for one in found if one.problem]:
        raise ConfigError("\n".join(problems))
    return found
