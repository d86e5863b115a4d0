"""Another Python interpreter: its version, where it looks for packages, and what is installed there."""

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardline.core.errors import ConfigError
from shardline.identity.package_lock import normalize

OLDEST = (3, 9)  # whose syntax shardline_io keeps to
_LIMIT_S = 60.0
_PATH = "give the path of a Python interpreter, such as /opt/tf/bin/python"
_TELL = "import json, sys; print(json.dumps([sys.version_info[:3], sys.implementation.name, sys.path[1:]]))"
_FIND = """
import importlib.util, json, sys
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps([name for name in sys.argv[1:] if not there(name)]))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that a training script runs in.

    Attributes:
        words: start it, as an absolute path.
        version: such as `(3, 12, 4)`.
        implementation: such as `cpython`.
        path: folders in which it looks for packages, in order.
        where: begins the messages.
        limit_s: how long it may take to answer.
    """

    words: tuple[str, ...]
    version: tuple[int, ...]
    implementation: str
    path: tuple[str, ...]
    where: str
    limit_s: float = _LIMIT_S

    @property
    def python(self) -> str:
        """The version as locks and identities name it, such as `3.12`."""
        return f"{self.version[0]}.{self.version[1]}"

    @cached_property
    def packages(self) -> dict[str, str]:
        """The version of each installed distribution by its normalised name."""
        # the first of two with one name is the one that is imported
        found = reversed(list(importlib.metadata.distributions(path=list(self.path))))
        return dict(sorted((normalize(one.name), one.version) for one in found if one.name))

    @property
    def markers(self) -> dict[str, str]:
        """What `packaging` evaluates environment markers with, where it differs from this process's."""
        whole = ".".join(map(str, self.version))
        name = self.implementation
        return {
            "python_version": self.python, "python_full_version": whole,
            "implementation_name": name, "implementation_version": whole,
        }  # fmt: skip

    def lacks(self, modules: Collection[str]) -> list[str]:
        """Return those of these top-level modules that it cannot find."""
        command = [*self.words, "-c", _FIND, *sorted(modules)]
        return list(_answer(command, self.where, _PATH, self.limit_s))


def ask(path: Path, where: str) -> Interpreter:
    """Return what an interpreter tells of itself.

    Args:
        path: of the interpreter; links stay, since they decide on the environment.
        where: begins the messages, such as `config.yaml: environments.tf.python=/opt/tf/bin/python`.

    Raises:
        ConfigError: there is no such program, it is no Python, or one that is too old.
    """
    return ask_words((os.path.abspath(path),), where)  # noqa: PTH100


def ask_words(
    words: Sequence[str], where: str, *, remedy: str = _PATH, limit_s: float = _LIMIT_S
) -> Interpreter:
    """Return what the Python that these words start tells of itself.

    Args:
        words: a command line that arguments of Python can follow.
        where: begins the messages.
        remedy: ends the message where nothing can be started.
        limit_s: how long it may take to answer.

    Raises:
        ConfigError: see `ask`.
    """
    version, implementation, folders = _answer([*words, "-c", _TELL], where, remedy, limit_s)
    found = Interpreter(
        words=tuple(words),
        version=tuple(version),
        implementation=implementation,
        path=tuple(folder for folder in folders if folder),
        where=where,
        limit_s=limit_s,
    )
    if found.version[:2] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"{where}: is Python {found.python}, expected {oldest} or newer; name another interpreter"
        )
    return found


def _answer(command: list[str], where: str, remedy: str, limit_s: float) -> list:  # type: ignore[type-arg]
    """Return what a short program of ours prints as JSON."""
    # what is meant for Shardline's own Python would be looked into as well
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip
        if done.returncode == 0:
            answer = json.loads(done.stdout)
            if isinstance(answer, list):
                return answer
        why = (done.stderr.strip().splitlines() or [f"it exited with code {done.returncode}"])[-1]
    except OSError as error:
        why = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {limit_s:g} s"
    except ValueError:
        why = "it is not a Python interpreter"
    raise ConfigError(f"{where}: cannot be started ({why}); {remedy}")
