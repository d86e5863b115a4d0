"""Virtual environments of training scripts, made by uv from a lock: there whole, or not at all."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from packaging.specifiers import SpecifierSet

from shardline.config.script_environment import ScriptEnvironment
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import make_folder
from shardline.core.redaction import mask
from shardline.environments.installed import find_differences
from shardline.identity.interpreter import Interpreter, ask

_AGAIN = "run the pipeline again"
# uv's variable for each key of pip's config: a site that has configured pip need not configure uv.
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
_SEPARATORS = {"UV_FIND_LINKS": ","}
_PIP_LINE = re.compile(r"(?:global|install|:env:)\.(?P<key>[\w-]+)=(?P<value>'.*'|\".*\")")
_FRAME = re.compile(r"[×╰╭│├─▶]+|\bhint: ")


def make_venv(folder: Path, environment: ScriptEnvironment) -> dict[str, Any]:
    """Make the virtual environment of a lock, unless it is there; of several jobs one makes it.

    Args:
        folder: of all environments.

    Returns:
        What it is: `kind`, `prefix`, `python`, `packages` and what made it.

    Raises:
        ConfigError: the lock's Python is not here, or its packages cannot be installed.
        DataError: the folder cannot be written, or somebody has installed into the environment.
    """
    prefix = folder / environment.folder_name
    make_folder(folder)
    with FileLock(folder / f".{prefix.name}.lock"):
        if not prefix.exists():
            _build(prefix, environment)
    interpreter = ask(prefix / "bin" / "python", f"{environment.where}: {prefix}")
    if changed := find_differences(environment.python, environment.requirements, interpreter):
        raise DataError(
            f"{prefix} differs from {environment.where} ({'; '.join(changed[:3])}): it was changed by hand; "
            f"delete it, and {_AGAIN}"
        )
    return {
        "kind": environment.kind,
        "prefix": str(prefix),
        "python": ".".join(map(str, interpreter.version)),
        "packages": interpreter.packages,
        "made_by": {"uv": importlib.metadata.version("uv")},
    }


def make_on_node(environment: ScriptEnvironment) -> tuple[str, ...]:
    """Make the virtual environment of a lock on a rank's own machine; of its ranks one makes it.

    Returns:
        The words that start its Python.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = make_venv(cache / "shardline" / "envs", environment)
    return (str(Path(made["prefix"]) / "bin" / "python"),)


def _build(prefix: Path, environment: ScriptEnvironment) -> None:
    """Build beside its place, and rename: nothing in it holds its path."""
    scratch = prefix.with_name(f".{prefix.name}.tmp")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = sys.executable if environment.python == own else environment.python
    try:
        shutil.rmtree(scratch, ignore_errors=True)  # of a job that was killed; its lock is ours now
        _uv(
            environment, ["venv", "--relocatable", "--no-project", "--python", python, str(scratch)]
        )
        install = [
            "pip",
            "install",
            "--no-deps",
            "--compile-bytecode",
            "--python",
            str(scratch / "bin" / "python"),
        ]
        _uv(environment, [*install, "--requirement", str(Path(environment.file or "").absolute())])
        _check_python(environment, ask(scratch / "bin" / "python", environment.where))
        scratch.rename(prefix)
    except OSError as error:
        raise DataError(f"{prefix} cannot be made ({error}); fix that, and {_AGAIN}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _program() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):  # of conda, which may have the program alone
        return shutil.which("uv") or "uv"


def _check_python(environment: ScriptEnvironment, interpreter: Interpreter) -> None:
    """Refuse packages that are for another Python, which uv installs where it resolves nothing."""
    version = ".".join(map(str, interpreter.version))
    for one in importlib.metadata.distributions(path=list(interpreter.path)):
        wanted = one.metadata["Requires-Python"]
        if wanted and not SpecifierSet(wanted).contains(version, prereleases=True):
            name = f"{one.name} {one.version}"
            raise _not_installable(environment, f"{name} is for Python {wanted}, not {version}")


def _not_installable(environment: ScriptEnvironment, why: str) -> ConfigError:
    return ConfigError(
        f"{environment.where} cannot be installed: {mask(why)}; write the lock for Python {environment.python} "
        f"and this platform, by `uv pip compile --python-version {environment.python}`"
    )


def _uv(environment: ScriptEnvironment, words: list[str]) -> None:
    config = pip_config()
    if words[0] == "pip" and config.get("no-index", "0").lower() in ("1", "true", "yes", "on"):
        words = [*words, "--no-index"]  # which no variable of uv asks for
    command = [_program(), *words, "--quiet", "--no-python-downloads", "--no-config"]
    done = subprocess.run(
        command,
        env=uv_variables(os.environ, config),
        cwd="/",
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        message = (
            " ".join(_FRAME.sub(" ", done.stderr).split())
            or f"uv ended with code {done.returncode}"
        )
        raise _not_installable(environment, message)


def pip_config() -> dict[str, str]:
    """Return where pip of this Python looks for packages, by key of its config; nothing without pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    found = (_PIP_LINE.fullmatch(line.strip()) for line in sorted(done.stdout.splitlines()))
    by_place = [
        (match["key"], str(ast.literal_eval(match["value"])), match[0]) for match in found if match
    ]
    # as pip does: a variable before a section of the command, and that before the global one
    order = ("global.", "install.", ":env:.")
    by_place.sort(
        key=lambda item: next(n for n, place in enumerate(order) if item[2].startswith(place))
    )
    return {key: value for key, value, _ in by_place}


def uv_variables(env: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that uv is started with.

    uv is given pip's places, where it has none of its own; credentials in them then stand on no
    command line.

    Args:
        env: of this process.
        config: pip's, by key.
    """
    given = {
        variable: _SEPARATORS.get(variable, " ").join(config[key].split())
        for key, variable in _OF_PIP.items()
        if config.get(key)
    }
    # a pinned version may lie in any of the indexes, and not in the first that knows the package
    given["UV_INDEX_STRATEGY"] = "unsafe-first-match"
    return {**given, **env}
