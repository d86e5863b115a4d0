"""Another Python interpreter: its version, search path and installed packages."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.core.errors import ConfigError
from shardline.identity.package_lock import normalize

if TYPE_CHECKING:
    from importlib.metadata import Distribution

OLDEST = (3, 9)  # shardline_io uses the syntax of this version
_LIMIT_S = 60.0
_PATH = "give the path of a Python interpreter, such as /opt/tf/bin/python"
_TELL = "import json, sys; print(json.dumps([sys.version_info[:3], sys.implementation.name, sys.path[1:]]))"
_VERSION = re.compile(r"^Version:[ \t]*(\S+)\s*$", re.MULTILINE)
_NAME = re.compile(r"^Name:[ \t]*(\S+)\s*$", re.MULTILINE)
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
    """Python interpreter of a training script.

    Attributes:
        words: command line that starts the interpreter, with an absolute path.
        version: version, such as `(3, 12, 4)`.
        implementation: implementation, such as `cpython`.
        path: folders of its `sys.path`, in order.
        where: start of the messages.
        limit_s: time limit of an answer, in seconds.
    """

    words: tuple[str, ...]
    version: tuple[int, ...]
    implementation: str
    path: tuple[str, ...]
    where: str
    limit_s: float = _LIMIT_S

    @property
    def python(self) -> str:
        """Version in locks and identities, such as `3.12`."""
        return f"{self.version[0]}.{self.version[1]}"

    @cached_property
    def packages(self) -> dict[str, str]:
        """Version of each installed distribution by its normalised name."""
        return installed_versions(self.path)

    @property
    def markers(self) -> dict[str, str]:
        """Values for environment markers of `packaging` that differ from this process."""
        whole = ".".join(map(str, self.version))
        name = self.implementation
        return {
            "python_version": self.python, "python_full_version": whole,
            "implementation_name": name, "implementation_version": whole,
        }  # fmt: skip

    def lacks(self, modules: Collection[str]) -> list[str]:
        """Return the top-level modules that the interpreter cannot find."""
        command = [*self.words, "-c", _FIND, *sorted(modules)]
        return list(_answer(command, self.where, _PATH, self.limit_s))


def ask(path: Path, where: str) -> Interpreter:
    """Start an interpreter, and return its version and search path.

    Args:
        path: path of the interpreter; links are not resolved, since they decide on the environment.
        where: start of the messages, such as `config.yaml: environments.tf.python=/opt/tf/bin/python`.

    Raises:
        ConfigError: the program does not exist, is not Python, or is too old.
    """
    return ask_words((os.path.abspath(path),), where)  # noqa: PTH100


def ask_words(
    words: Sequence[str], where: str, *, remedy: str = _PATH, limit_s: float = _LIMIT_S
) -> Interpreter:
    """Start the interpreter of a command line, and return its version and search path.

    Args:
        words: command line, to which arguments of Python can be appended.
        where: start of the messages.
        remedy: end of the message if the command cannot be started.
        limit_s: time limit of an answer, in seconds.

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


def installed_versions(path: Sequence[str]) -> dict[str, str]:
    """Return the version of each distribution installed in the folders of `path`, by its normalised name."""
    from importlib.metadata import distributions

    found = {}
    # of two distributions with one name, Python imports the first
    for one in reversed([*distributions(path=[*path])]):
        name, version = _name_and_version(one)
        if name:
            found[normalize(name)] = version
    return dict(sorted(found.items()))


def plain_versions(names: Iterable[str], path: Sequence[str]) -> dict[str, str]:
    """Return the versions of distributions that are installed as usual: in a folder of metadata on `path`.

    `importlib.metadata` finds the same versions. It also finds distributions that are left out here, such as those in
    archives, but its import and its searches take 0.05 s of each job.

    Args:
        names: names of distributions, in any spelling.
        path: folders as in `sys.path`.
    """
    if [one for one in sys.meta_path if hasattr(one, "find_distributions")] != [PathFinder]:
        return {}
    found, left = {}, {normalize(name): name for name in names}
    for folder in dict.fromkeys(path):
        try:
            children = os.listdir(folder or ".")  # noqa: PTH208, pathlib takes several times as long
        except FileNotFoundError:
            continue
        except OSError:  # an archive
            return {}
        if folder.lower().rstrip("/").endswith(".egg"):
            return {}
        for key, (child, *more) in _metadata(children, left).items():
            name = left.pop(key)
            is_usual = child.endswith(".dist-info") and not more
            text = _text(f"{folder or '.'}/{child}/METADATA") if is_usual else ""
            if match := _VERSION.search(text):
                found[name] = match[1]
    return found


def _metadata(children: Sequence[str], wanted: Collection[str]) -> dict[str, list[str]]:
    """Return the files and folders of metadata by normalised name, as `importlib.metadata` reads their names."""
    found: dict[str, list[str]] = {}
    for child in children:
        if child.lower().endswith((".dist-info", ".egg-info")):
            key = normalize(child.rpartition(".")[0].partition("-")[0])
            if key in wanted:
                found.setdefault(key, []).append(child)
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def version_of(one: "Distribution") -> str:
    """Return the version of a distribution as `importlib.metadata` does, in a twentieth of its time."""
    return _name_and_version(one)[1]


def _name_and_version(one: "Distribution") -> tuple[str, str]:
    text = one.read_text("METADATA") or one.read_text("PKG-INFO") or ""
    # the parser of `metadata` reads the whole file as an email, for each of the fields
    name, version = _NAME.search(text), _VERSION.search(text)
    return name[1] if name else one.name, version[1] if version else one.version


def _answer(command: list[str], where: str, remedy: str, limit_s: float) -> list:  # type: ignore[type-arg]
    """Run a command, and return the list that it prints as JSON."""
    # PYTHONPATH is meant for Shardline's own Python
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
