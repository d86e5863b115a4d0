"""The interpreter of a training script that has an environment of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardline.config.script_environment import ScriptEnvironment
from shardline.environments.installed import find_differences
from shardline.environments.python import interpreter
from shardline.environments.venv import make_venv
from shardline.identity.interpreter import Interpreter, ask


def make_environment(folder: Path, environment: ScriptEnvironment) -> dict[str, Any]:
    """Make what a script runs in, unless it is there; see `venv.make_venv`.

    Args:
        folder: of all environments, absolute.
    """
    return make_venv(folder, environment)


def python_of_script(environment: ScriptEnvironment | None, file: str | None) -> tuple[str, ...]:
    """Return the words that start a script's Python; none where it is its rank's own.

    Args:
        file: what was written of the environment, where it was built.

    Raises:
        DataError: the environment is not there any more.
    """
    if environment is None:
        return ()
    if environment.interpreter:
        return environment.interpreter.words
    return interpreter(Path(file)) if file else ()


def found_by_rank(words: Sequence[str]) -> Interpreter:
    """Return the interpreter of a script as a rank finds it on its machine.

    Raises:
        ConfigError: it is not there.
    """
    return ask(Path(words[0]), f"environment: {words[0]}")


def differences_of(locked: Mapping[str, Any], script: Interpreter | None) -> list[str]:
    """Return how what is installed for a training differs from what is locked, a sentence for each package.

    Args:
        locked: `environment` of `run.json`.
        script: the interpreter of a script with an environment of its own.
    """
    return find_differences(locked["python"], locked["requirements"], script)
