"""Training scripts as models (`script: path/to/train.py --lr 0.1`), and their environments."""

import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET

from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import Environment, RunSettings
from shardline.core.canonical import short_digest
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest
from shardline.identity import load_lock
from shardline.identity.interpreter import Interpreter, ask
from shardline.identity.package_lock import content_of, read_pins

_PREFIX = "script:"
ARGUMENT = "argument:"  # a Python file among the arguments: `argument: train.py run.py`
_CLASS = re.compile(r"script:[^\W\d]\w*")  # `script:Net` is a class in a module `script`


def is_script(model: str) -> bool:
    """Return whether a cell of the column `model`, or a resolved model, is a script."""
    return model.startswith(_PREFIX) and not _CLASS.fullmatch(model)


def is_file(path: str) -> bool:
    """Return whether a resolved program is a Python file: a script or one of its arguments."""
    return is_script(path) or path.startswith(ARGUMENT)


def split_script(model: str) -> list[str]:
    """Return a script's path and its arguments, split as a shell does.

    Args:
        model: A script, or a text that begins with `ARGUMENT`.

    Raises:
        ValueError: A quotation mark is not closed.
    """
    return shlex.split(model.partition(":")[2])


def resolve_script(model: str, workdir: Path, where: str) -> str:
    """Return a script in normal form: path relative to the project folder, and quoted arguments.

    Args:
        model: Cell for which `is_script` is true.
        workdir: Folder of the project, without links.
        where: File, row and column, the start of messages.

    Raises:
        ConfigError: The path is missing, not in the project folder, or not a Python file.
    """
    shown = f"{where}={model}"
    try:
        words = split_script(model)
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}; close its quotes") from None
    if not words:
        raise ConfigError(
            f"{shown} names no file; write script: path/to/train.py and its arguments"
        )
    path = (
        workdir / words[0]
    ).resolve()  # Python resolves links before it looks for imports beside the script
    if not path.is_relative_to(workdir):
        raise ConfigError(
            f"{shown}: {words[0]} is outside the project folder {workdir}, so its changes "
            "would not be detected; move it into the folder"
        )
    if not path.is_file():
        beside = [str(f.relative_to(workdir)) for f in sorted(path.parent.glob("*.py"))]
        hint = suggest(words[0], beside) if beside else "check the path"
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{shown}: {words[0]} {what} in {workdir}; {hint}")
    if path.suffix != ".py":
        raise ConfigError(
            f"{shown}: {words[0]} is not a Python file (.py); start it from one that is"
        )
    return f"{_PREFIX} {shlex.join([path.relative_to(workdir).as_posix(), *words[1:]])}"


Kind = Literal["venv", "conda", "image", "python"]
KINDS: tuple[Kind, ...] = ("venv", "conda", "image")  # keys that make a table an environment
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VERSION = re.compile(r"3\.\d{1,3}")


@dataclass(frozen=True, kw_only=True)
class ScriptEnvironment:
    """The environment of a training script.

    Attributes:
        kind: Kind of the environment.
        where: Name in messages, such as `environment.venv=requirements.lock`.
        python: Version such as `3.12`; empty if unknown before the build.
        packages: Versions of the packages that count, by name.
        requirements: Packages to install, as lines for pip.
        file: Lock or pin file, if any.
        address: Digest of the environment to build or pull; empty if it exists.
        interpreter: Interpreter of an existing environment.
        image: Name and digest of a container image.
        is_of_nodes: Whether each node builds the environment outside the store.
    """

    kind: Kind
    where: str
    python: str
    packages: dict[str, str] = field(default_factory=dict)
    requirements: list[str] = field(default_factory=list)
    file: Path | None = None
    address: str = ""
    interpreter: Interpreter | None = None
    image: str = ""
    is_of_nodes: bool = False

    @property
    def counted(self) -> dict[str, Any]:
        """The part that counts in identity documents, without paths and the form of the lock."""
        return {"kind": self.kind, "python": self.python, "packages": self.packages}

    @property
    def locked(self) -> dict[str, Any]:
        """The part in `run.json`, against which the interpreter of the script is verified."""
        image = {"image": self.image} if self.image else {}
        return {
            "kind": self.kind, "python": self.python, "requirements": self.requirements, **image
        }  # fmt: skip

    @property
    def has_rule(self) -> bool:
        """Whether the rule `build_environment` builds the environment."""
        return bool(self.address) and not self.is_of_nodes

    @property
    def folder_name(self) -> str:
        """The name of the folder of the built environment."""
        return f"{self.kind}-{self.address}"


def environment_of_run(
    settings: RunSettings, model: str, runtime: Runtime, named: Mapping[str, Environment],
    where: str, load: Callable[[Environment, str], ScriptEnvironment],
) -> ScriptEnvironment | None:  # fmt: skip
    """Return the environment of the script of a run; None for the environment of Shardline.

    Args:
        model: Resolved model.
        named: `environments` of the config.
        where: File and row, the start of messages.
        load: Cached `load_environment` of the project.

    Raises:
        ConfigError: The name is unknown, the model is not a script, or the profile does not support
            environments of scripts; see also `load_environment`.
    """
    given = settings.environment
    if given == "":
        return None
    shown = f"{where}: environment"
    if isinstance(given, str):
        shown += f"={given}"
        if given not in named:
            known = suggest(given, named) if named else "add it to `environments` of the config"
            raise ConfigError(f"{shown} is not in environments; {known}")
        given = named[given]
    if not is_script(model):
        raise ConfigError(
            f"{shown}: the model is a LightningModule, which runs in Shardline's own environment, expected a script; "
            "pin its packages in `lock`, or leave environment empty for this run"
        )
    if runtime.environment == "image":
        raise ConfigError(
            f"{shown}: runtime.environment=image starts ranks in an image, in which no other environment can be "
            "made; install the script's packages there, and leave environment empty"
        )
    if runtime.launcher != "azureml":
        return load(given, shown)
    if given.venv is UNSET:
        raise ConfigError(
            f"{shown}: under runtime.launcher=azureml each node builds its environment, expected venv; write a lock"
        )
    return replace(load(given, shown), is_of_nodes=True)


def load_environment(given: Environment, where: str, root: Path) -> ScriptEnvironment:
    """Return an environment as its lock, pins, image or interpreter defines it.

    Args:
        where: Start of messages.
        root: Folder of the project.

    Raises:
        ConfigError: Not exactly one kind is named, or its lock or interpreter is invalid.
    """
    kinds = [kind for kind in KINDS if getattr(given, kind) is not UNSET]
    if not kinds and given.python is not UNSET:
        return _of_interpreter(str(given.python), where, root)
    if len(kinds) != 1 or (given.python is not UNSET and kinds != ["venv"]):
        names = [name for name in (*KINDS, "python") if getattr(given, name) is not UNSET]
        found = " and ".join(names) or "nothing"
        raise ConfigError(
            f"{where}: names {found}, expected one of venv, conda, image and python (beside venv, python is a "
            "version); name one"
        )
    return _LOADERS[kinds[0]](given, where, root)


def _of_interpreter(path: str, where: str, root: Path) -> ScriptEnvironment:
    where = f"{where}.python={path}"
    # a version such as `python: "3.12"` is not a path
    found = ask(root / Path(path).expanduser(), where)
    return ScriptEnvironment(
        kind="python",
        where=where,
        python=found.python,
        packages=found.packages,
        requirements=[f"{name}=={version}" for name, version in found.packages.items()],
        interpreter=found,
    )


def _of_lock(given: Environment, where: str, root: Path) -> ScriptEnvironment:
    lock = load_lock(
        root / str(given.venv), str(given.venv), setting=f"{where}.venv", is_whole=True
    )
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if given.python is not UNSET:
        python = str(given.python)
        if not _VERSION.fullmatch(python):
            raise ConfigError(
                f'{where}.python={python} is not a version such as "3.12"; beside venv write one, in quotes'
            )
    file = root / str(given.venv)
    content = {
        "lock": file.read_text(encoding="utf-8"),
        "python": python,
        "platform": sysconfig.get_platform(),
    }
    return ScriptEnvironment(
        kind="venv",
        where=f"{where}.venv={given.venv}",
        python=python,
        packages=dict(sorted(lock.versions.items())),
        requirements=lock.requirements(sorted(lock.versions)),
        file=file,
        address=short_digest(content),
    )


def _of_pins(given: Environment, where: str, root: Path) -> ScriptEnvironment:
    where = f"{where}.conda={given.conda}"
    remedy = "write it with `conda list --explicit --sha256` or `micromamba env export --explicit --sha256`"
    try:
        pins = read_pins(root / str(given.conda), remedy=remedy)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    python = next((pin.version for pin in pins if pin.name == "python"), "")
    if not python:
        raise ConfigError(f"{where}: pins no python; {remedy}")
    return ScriptEnvironment(
        kind="conda",
        where=where,
        python=".".join(python.split(".")[:2]),
        packages={
            pin.name: f"{pin.version} {pin.build}" for pin in sorted(pins, key=lambda pin: pin.name)
        },
        file=root / str(given.conda),
        address=short_digest(content_of(pins)),
    )


def _of_image(given: Environment, where: str, root: Path) -> ScriptEnvironment:
    reference = str(given.image)
    where = f"{where}.image={reference}"
    name, _, digest = reference.rpartition("@")
    if not name or not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"{where}: names no digest, expected name@sha256: and 64 hex digits, as a tag may move; "
            "`podman image inspect` and `docker image inspect` show it as RepoDigests"
        )
    return ScriptEnvironment(
        kind="image",
        where=where,
        python="",
        packages={"image": digest},
        address=short_digest({"image": reference}),
        image=reference,
    )


_LOADERS: dict[str, Callable[[Environment, str, Path], ScriptEnvironment]] = {
    "venv": _of_lock,
    "conda": _of_pins,
    "image": _of_image,
}
