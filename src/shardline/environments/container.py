"""Ranks inside of the image: the command that starts Python there, and the end of a container with its rank.

`python -m shardline.environments.container podman run ...` runs a container in
place of a rank. The container gets the variables that the launcher gave this
process, and ends with this process, even if it is killed.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.config.project import Project
from shardline.config.settings.config import Image, Runtime
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, LaunchError
from shardline.core.process import die_with_parent
from shardline.core.rank_environment import PLACE, rank_variables
from shardline.core.redaction import PASSED
from shardline.environments.context import code_digest
from shardline.environments.image import check_no_login, find_tool
from shardline.records.base import read_record
from shardline.records.environments import BuiltImage, NamedImage

_DESCRIPTORS = ("SHARDLINE_HEARTBEAT", "SHARDLINE_REQUESTS")
_STACKS = ("SHARDLINE_STACKS", "SHARDLINE_STACKS_SIGNAL")
_FIRST = 3  # first descriptor after the standard ones
RUNNERS = ("podman", "docker", "apptainer")
# Beside the place of the rank: what a scheduler grants each process, and the user.
_GRANTED = re.compile(
    r"(CUDA|NVIDIA|ROCR|HIP|GPU|ZE)_\w+|SHARDLINE_(?!IMAGE_DIGEST)\w+|USER|LOGNAME"
)
_GPUS = {
    "podman": "--device=nvidia.com/gpu=all",  # a CDI name, which nvidia-ctk defines
    "docker": "--gpus=all",
    "apptainer": "--nv",
}


def image_python(
    document: Path, *, settings: Image, runtime: Runtime,
    lock: Path, folders: Sequence[Path], gpus: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Return the command that starts Python inside of the image; its arguments follow it.

    Args:
        document: file that `build_image` wrote.
        settings: `image` of the config.
        runtime: settings of the profile.
        lock: the project's lock, which must be the lock of the image.
        folders: folders that the ranks read and write, with the same paths inside. Python
            starts in the first one.
        gpus: whether the ranks compute on GPUs.

    Raises:
        DataError: the document cannot be read.
        ConfigError: the tool is missing, or the image has no name for it.
        LaunchError: the image was built from another lock or another version of Shardline.
    """
    check_no_login(settings)
    remedy = f"delete {document} and run the pipeline again"
    image = read_record(document, BuiltImage, remedy=remedy)
    for key, there, here in (
        ("lock", image.lock, file_sha256(lock)),
        ("code", image.code, code_digest()),
    ):
        if there != here:
            raise LaunchError(
                f"{document}: the image was built from {key} {there[:12]}, but this run was planned with "
                f"{here[:12]}; delete {document} and run the pipeline again to build the image again"
            )
    known = sorted(RUNNERS, key=lambda name: name != image.tool)  # the tool that built it has it
    tool = find_tool("image.run_with", settings.run_with, known)
    return _words(tool, settings, runtime, image=image, folders=folders, gpus=gpus)


def python_of_image(
    reference: str, guard: Path | None, *, project: Project, gpus: bool
) -> tuple[str, ...]:
    """Return the command that starts a training script's Python inside of the script's own image.

    Args:
        reference: the image's name and digest.
        guard: program that ends all processes inside when this process is gone, for images without
            Shardline. None if the started program ends by itself.
        gpus: whether the script computes on GPUs.

    Raises:
        ConfigError: this machine has no tool that runs images.
    """
    settings = structs.replace(project.image, container="")  # this names the project's own image
    return _words(
        find_tool("image.run_with", settings.run_with, RUNNERS), settings, project.runtime,
        image=NamedImage(reference=reference, digest=reference.rpartition("@")[2]),
        folders=mounted(project.workdir, project.store), gpus=gpus, further=["PYTHONPATH"],
        python=("python3", str(guard.absolute()), "python3") if guard else ("python3",),
    )  # fmt: skip


def _words(
    tool: str, settings: Image, runtime: Runtime, *, further: Sequence[str] = (), **known: Any
) -> tuple[str, ...]:
    """Return `container_command`'s command line, with the variables that every rank gets."""
    variables = [*rank_variables(1, runtime.variables, runtime.interface), *further]
    variables += [*runtime.pass_env, *([PASSED] if runtime.pass_env else [])]
    user = f"{os.getuid()}:{os.getgid()}"
    command = container_command(tool, settings, variables=variables, user=user, **known)
    return (sys.executable, "-m", "shardline.environments.container", *command)


def container_command(
    tool: str, settings: Image, *, image: NamedImage, folders: Sequence[Path],
    variables: Sequence[str], gpus: bool, user: str,
    python: Sequence[str] = ("python", "-m", "shardline.launch.exit_on_stdin_close", "python"),
) -> list[str]:  # fmt: skip
    """Return the command line that starts Python in a container; Python's arguments follow it.

    Args:
        tool: `podman`, `docker` or `apptainer`.
        settings: `image` of the config.
        folders: folders that the ranks read and write, absolute; Python starts in the first one.
        variables: names of the variables that every rank gets.
        gpus: whether the ranks compute on GPUs.
        user: `uid:gid` of this process.
        python: command of Python inside, with a guard before it that ends all processes
            inside when its standard input closes.

    Raises:
        ConfigError: the image has no name for the tool.
    """
    options = ["run", "--rm", "--interactive", "--log-driver=none", "--network=host", "--ipc=host"]
    if tool == "docker":  # its daemon is root, and would write files as root
        options += [f"--user={user}", "--env=HOME=/tmp"]
    if tool == "apptainer":
        options = ["exec"]
    mount, start = ("--bind", "--pwd") if tool == "apptainer" else ("--volume", "--workdir")
    named = [] if tool == "apptainer" else [f"--env={name}" for name in variables]
    return [
        tool, *options,
        *(f"{mount}={folder}:{folder}" for folder in folders),
        f"{start}={folders[0]}",
        *named, f"--env=SHARDLINE_IMAGE_DIGEST={image.digest}",
        *([_GPUS[tool]] if gpus else []),
        *settings.run_args,
        _name_for(tool, settings, image),
        *python,
    ]  # fmt: skip


def _name_for(tool: str, settings: Image, image: NamedImage) -> str:
    """Return the name by which a tool finds exactly this image: by digest, in a registry if possible."""
    if tool != "apptainer":
        return image.reference or image.id
    if name := apptainer_name(settings, image):
        return name
    raise ConfigError(
        "image.run_with=apptainer, but the image has no name for Apptainer; set image.push, or build a .sif from "
        "image.save and set image.container to its path"
    )


def apptainer_name(settings: Image, image: NamedImage | None) -> str:
    """Return Apptainer's name of the image: the config's name, or else a registry's; empty if neither is set."""
    if settings.container:
        return settings.container
    return f"docker://{image.reference}" if image and image.reference else ""


def container_of(project: Project) -> str:
    """Return the image in which `--sdm apptainer` runs the jobs.

    Raises:
        ConfigError: no image has a name for Apptainer.
        DataError: the record of the image cannot be read.
    """
    document = project.layout.image
    known = document.exists()
    image = read_record(document, BuiltImage, remedy="delete it") if known else None
    if name := apptainer_name(project.image, image):
        return name
    raise ConfigError(
        "--software-deployment-method apptainer, but image.container is empty, and no image was pushed "
        f"({project.layout.name_of(document)}); set image.container, or first push an image "
        "(image.push) without that option"
    )


def mounted(*folders: Path) -> list[Path]:
    """Return folders and the targets of their links, without folders inside of earlier ones."""
    found: list[Path] = []
    for path in (path for folder in folders for path in (folder.absolute(), folder.resolve())):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found


def with_variables(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return a container's command line with the names of the variables that this rank got.

    Only names: values would be visible in the list of processes. Apptainer passes all variables by itself.
    """
    tool, verb, *rest = command
    if verb != "run":
        return list(command)
    names = sorted(name for name in env if PLACE.fullmatch(name) or _GRANTED.fullmatch(name))
    return [tool, verb, *(f"--env={name}" for name in names), *rest]


def with_descriptors(
    command: Sequence[str], env: MutableMapping[str, str]
) -> tuple[list[str], tuple[int, ...]]:
    """Return a container's command line, and the descriptors that a script shares with its rank.

    Podman passes descriptors from 3 on, Apptainer passes all, and Docker passes none. What cannot be shared
    gets no variable inside. The file of stacks is never shared with podman and Docker: the watchdog would
    signal a process by its pid, which differs inside of their containers.
    """
    tool, verb, *rest = command
    named = [name for name in _DESCRIPTORS if name in env]
    given = [int(env[name]) for name in named]
    if tool == "apptainer" or not named:
        return list(command), tuple(given)
    for name in (*_STACKS, *(named if tool == "docker" else ())):
        env.pop(name, None)
    if tool == "docker":
        return list(command), ()
    copies = [os.dup(one) for one in given]  # a source may be the target of another one
    for place, (name, copy) in enumerate(zip(named, copies, strict=True), _FIRST):
        os.dup2(copy, place)
        env[name] = str(place)
    places = tuple(range(_FIRST, _FIRST + len(named)))
    return [tool, verb, f"--preserve-fds={len(named)}", *rest], places


def main() -> int:
    """Run a container until it exits, or until this process gets a signal to stop."""
    command, descriptors = with_descriptors(sys.argv[1:], os.environ)
    command = with_variables(command, os.environ)
    child = subprocess.Popen(
        command,
        pass_fds=descriptors,
        stdin=subprocess.PIPE,  # nothing is written; it closes when this process exits
        preexec_fn=_begin,
    )
    assert child.stdin is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.stdin.close())  # type: ignore[union-attr]
    code = child.wait()
    return code if code >= 0 else 128 - code


def _begin() -> None:
    """Leave signals to the parent: otherwise the client would exit before its container."""
    die_with_parent()
    os.setpgid(0, 0)


if __name__ == "__main__":
    sys.exit(main())
