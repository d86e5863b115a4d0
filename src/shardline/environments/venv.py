"""Virtual environments of training scripts, which uv creates from a lock, completely or not at all."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from filelock import FileLock
from packaging.specifiers import SpecifierSet

from shardline.config.scripts import ScriptEnvironment
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import make_folder
from shardline.core.redaction import mask
from shardline.environments.installed import find_differences
from shardline.identity.interpreter import Interpreter, ask
from shardline.records.environments import VirtualEnvironment

AGAIN = "run the pipeline again"
# uv's variable for each key of pip's config: a site with a pip config need not configure uv too.
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
_SEPARATORS = {"UV_FIND_LINKS": ","}
_PLACES = ("global", "install", ":env:")
_PIP_LINE = re.compile(r"(?P<place>global|install|:env:)\.(?P<key>[\w-]+)=(?P<value>'.*'|\".*\")")
_FRAME = re.compile(r"[×╰╭│├─▶]+|\bhint: ")


def make_venv(folder: Path, environment: ScriptEnvironment) -> VirtualEnvironment:
    """Create the virtual environment of a lock, unless it exists; of several jobs, one creates it.

    Args:
        folder: folder of all environments.

    Raises:
        ConfigError: the lock's Python is missing, or its packages cannot be installed.
        DataError: the folder is not writable, or the environment was changed by hand.
    """
    prefix = folder / environment.folder_name
    make_whole(prefix, partial(_build, environment))
    interpreter = ask(prefix / "bin" / "python", f"{environment.where}: {prefix}")
    if changed := find_differences(environment.python, environment.requirements, interpreter):
        raise DataError(
            f"{prefix} differs from {environment.where} ({'; '.join(changed[:3])}): it was changed by hand; "
            f"delete it, and {AGAIN}"
        )
    return VirtualEnvironment(
        kind=environment.kind,
        prefix=str(prefix),
        python=".".join(map(str, interpreter.version)),
        packages=interpreter.packages,
        made_by={"uv": importlib.metadata.version("uv")},
    )


def make_whole(prefix: Path, build: Callable[[Path], None]) -> None:
    """Build an environment under a temporary name and rename it, unless it exists; of several jobs, one builds it.

    Raises:
        DataError: the folder cannot be written.
    """
    make_folder(prefix.parent)
    scratch = prefix.with_name(f".{prefix.name}.tmp")
    with FileLock(prefix.with_name(f".{prefix.name}.lock")):
        if prefix.exists():
            return
        try:
            # left behind by a killed job, whose lock this job has now
            shutil.rmtree(scratch, ignore_errors=True)
            build(scratch)
            scratch.rename(prefix)
        except OSError as error:
            raise DataError(f"{prefix} cannot be made ({error}); fix that, and {AGAIN}") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def make_on_node(environment: ScriptEnvironment) -> tuple[str, ...]:
    """Create the virtual environment of a lock on a rank's machine; of its ranks, one creates it.

    Returns:
        The command that starts its Python.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = make_venv(cache / "shardline" / "envs", environment)
    return (str(Path(made.prefix) / "bin" / "python"),)


def _build(environment: ScriptEnvironment, scratch: Path) -> None:
    """Install into a folder that is renamed afterwards, so no file may contain its path."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    version = sys.executable if environment.python == own else environment.python
    python, lock = scratch / "bin" / "python", Path(environment.file or "").absolute()
    _uv(environment, ["venv", "--relocatable", "--no-project", "--python", version, str(scratch)])
    install = ["pip", "install", "--no-deps", "--compile-bytecode", "--python", str(python)]
    _uv(environment, [*install, "--requirement", str(lock)])
    _check_python(environment, ask(python, environment.where))


def _program() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):  # conda installs the program without the module
        return shutil.which("uv") or "uv"


def _check_python(environment: ScriptEnvironment, interpreter: Interpreter) -> None:
    """Reject packages for another Python, which uv installs when it resolves nothing."""
    version = ".".join(map(str, interpreter.version))
    for one in importlib.metadata.distributions(path=list(interpreter.path)):
        wanted = one.metadata["Requires-Python"]
        if wanted and not SpecifierSet(wanted).contains(version, prereleases=True):
            name = f"{one.name} {one.version}"
            raise _not_installable(environment, f"{name} is for Python {wanted}, not {version}")


def _not_installable(environment: ScriptEnvironment, why: str) -> ConfigError:
    return ConfigError(
        f"{environment.where} cannot be installed: {mask(why)}; write the lock for Python {environment.python} "
        f"and this platform, with `uv pip compile --python-version {environment.python}`"
    )


def _uv(environment: ScriptEnvironment, words: list[str]) -> None:
    config = pip_config()
    if words[0] == "pip" and config.get("no-index", "0").lower() in ("1", "true", "yes", "on"):
        words = [*words, "--no-index"]  # uv has no variable for this option
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
        message = " ".join(_FRAME.sub(" ", done.stderr).split())
        raise _not_installable(environment, message or f"uv ended with code {done.returncode}")


def pip_config() -> dict[str, str]:
    """Return the indexes and other settings of this Python's pip, by key; empty without pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    found = (_PIP_LINE.fullmatch(line.strip()) for line in sorted(done.stdout.splitlines()))
    # pip's order: variables before the command's section, and that before the global section
    by_place = sorted(filter(None, found), key=lambda match: _PLACES.index(match["place"]))
    return {match["key"]: str(ast.literal_eval(match["value"])) for match in by_place}


def uv_variables(env: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for uv.

    uv gets pip's indexes, unless its own are set. As variables, their credentials
    do not appear on a command line.

    Args:
        env: environment of this process.
        config: pip's config, by key.
    """
    given = {
        variable: _SEPARATORS.get(variable, " ").join(config[key].split())
        for key, variable in _OF_PIP.items()
        if config.get(key)
    }
    # the pinned version may be in any index, not only in the first one that has the package
    given["UV_INDEX_STRATEGY"] = "unsafe-first-match"
    return {**given, **env}
