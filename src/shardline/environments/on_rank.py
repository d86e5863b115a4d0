"""The environment of a training script, as a rank finds it on its machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardline.environments.installed import find_differences
from shardline.identity.interpreter import Interpreter, ask

MODULES = "modules"  # of a run's folder in the store: what every script can import


def found_by_rank(locked: Mapping[str, Any], words: Sequence[str]) -> Interpreter | None:
    """Return the interpreter of a script as a rank finds it on its machine.

    Args:
        locked: `environment` of `run.json`.
        words: start it; none: the script has this process's.

    Returns:
        None also of an image, whose digest tells what is in it.

    Raises:
        ConfigError: it is not there.
    """
    if not words or locked.get("kind") == "image":
        return None
    return ask(Path(words[0]), f"environment: {words[0]}")


def differences_of(locked: Mapping[str, Any], script: Interpreter | None) -> list[str]:
    """Return how what is installed for a training differs from what is locked, a sentence for each package.

    Args:
        locked: `environment` of `run.json`.
        script: the interpreter of a script with an environment of its own.
    """
    if locked.get("kind") == "image":
        return []
    return find_differences(locked["python"], locked["requirements"], script)


def observed_of_script(locked: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return what is recorded of the environment that a script ran in; arguments as of `found_by_rank`."""
    found = found_by_rank(locked, words)
    if found is None:
        return {"kind": locked["kind"], "image": locked["image"]}
    return {"kind": locked["kind"], "python": found.python, "packages": found.packages}
