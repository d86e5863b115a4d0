"""Ranks inside of the image: the words that start Python there, and the end of a container with its rank.

`python -m shardline.environments.container podman run ...` runs a container in
the place of a rank: it has the variables that the launcher gave this process,
and ends when this process does, however that ends.
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
_FIRST = 3  # descriptor behind the standard ones
RUNNERS = ("podman", "docker", "apptainer")
# Beside its place: what a scheduler grants each process, and who it is.
_GRANTED = re.compile(
    r"(CUDA|NVIDIA|ROCR|HIP|GPU|ZE)_\w+|SHARDLINE_(?!IMAGE_DIGEST)\w+|USER|LOGNAME"
)
_GPUS = {
    "podman": "--device=nvidia.com/gpu=all",  # a CDI name, which nvidia-ctk has written down
    "docker": "--gpus=all",
    "apptainer": "--nv",
}


def image_python(
    document: Path, *, settings: Image, runtime: Runtime,
    lock: Path, folders: Sequence[Path], gpus: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Return the words that start Python inside of the image; its arguments follow them.

    Args:
        document: what `build_image` wrote.
        settings: `image` of the config.
        runtime: the profile's settings.
        lock: the project's lock, which the image must hold.
        folders: what the ranks read and write; they have the same paths inside. The first is
            where Python starts.
        gpus: whether the ranks compute on GPUs.

    Raises:
        DataError: the document cannot be read.
        ConfigError: the tool is not here, or has no name for the image.
        LaunchError: the image was built from another lock or another Shardline.
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
                f"{here[:12]}; delete {document} and run the pipeline again, which builds the image again"
            )
    known = sorted(RUNNERS, key=lambda name: name != image.tool)  # what built it has it
    tool = find_tool("image.run_with", settings.run_with, known)
    return _words(tool, settings, runtime, image=image, folders=folders, gpus=gpus)


def python_of_image(
    reference: str, guard: Path | None, *, project: Project, gpus: bool
) -> tuple[str, ...]:
    """Return the words that start a training script's Python inside of an image of its own.

    Args:
        reference: the image's name and digest.
        guard: the program that ends all inside when this side is gone; the image need not hold Shardline.
            None: what is started ends by itself.
        gpus: whether the script computes on GPUs.

    Raises:
        ConfigError: no tool that runs images is here.
    """
    settings = structs.replace(project.image, container="")  # which is of the project's own image
    return _words(
        find_tool("image.run_with", settings.run_with, RUNNERS), settings, project.runtime,
        image=NamedImage(reference=reference, digest=reference.rpartition("@")[2]),
        folders=mounted(project.workdir, project.store), gpus=gpus, further=["PYTHONPATH"],
        python=("python3", str(guard.absolute()), "python3") if guard else ("python3",),
    )  # fmt: skip


def _words(
    tool: str, settings: Image, runtime: Runtime, *, further: Sequence[str] = (), **known: Any
) -> tuple[str, ...]:
    """Return the words for `container_command`'s arguments, with the variables that every rank gets."""
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
    """Return the command line that starts Python in a container; its arguments follow it.

    Args:
        tool: `podman`, `docker` or `apptainer`.
        settings: `image` of the config.
        folders: what the ranks read and write, absolute; the first is where Python starts.
        variables: names of the variables that every rank gets.
        gpus: whether the ranks compute on GPUs.
        user: `uid:gid` of this process.
        python: Python inside, behind what ends all inside when this side is gone: its standard
            input closes.

    Raises:
        ConfigError: the tool has no name for the image.
    """
    options = ["run", "--rm", "--interactive", "--log-driver=none", "--network=host", "--ipc=host"]
    if tool == "docker":  # its daemon is root, and what it writes would be root's
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
    """Return how a tool finds exactly this image: by digest, in a registry if it is in one."""
    if tool != "apptainer":
        return image.reference or image.id
    if name := apptainer_name(settings, image):
        return name
    raise ConfigError(
        "image.run_with=apptainer, but the image has no name for it; set image.push, or build a .sif from "
        "image.save and name that as image.container"
    )


def apptainer_name(settings: Image, image: NamedImage | None) -> str:
    """Return what Apptainer calls the image: the config's own name before a registry's; or nothing."""
    if settings.container:
        return settings.container
    return f"docker://{image.reference}" if image and image.reference else ""


def container_of(project: Project) -> str:
    """Return what `--sdm apptainer` is to run the jobs in.

    Raises:
        ConfigError: there is no image that Apptainer has a name for.
        DataError: what is known of the image cannot be read.
    """
    document = project.layout.image
    known = document.exists()
    image = read_record(document, BuiltImage, remedy="delete it") if known else None
    if name := apptainer_name(project.image, image):
        return name
    raise ConfigError(
        "--software-deployment-method apptainer, but image.container is empty, and no image was pushed "
        f"({project.layout.name_of(document)}); set image.container, or push an image "
        "(image.push) without that option first"
    )


def mounted(*folders: Path) -> list[Path]:
    """Return folders and what their links mean, without those that lie in one before them."""
    found: list[Path] = []
    for path in (path for folder in folders for path in (folder.absolute(), folder.resolve())):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found


def with_variables(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return a container's command line with the names of the variables that this rank was given.

    Names alone: a value would be seen in the list of processes. Apptainer passes all by itself.
    """
    tool, verb, *rest = command
    if verb != "run":
        return list(command)
    names = sorted(name for name in env if PLACE.fullmatch(name) or _GRANTED.fullmatch(name))
    return [tool, verb, *(f"--env={name}" for name in names), *rest]


def with_descriptors(
    command: Sequence[str], env: MutableMapping[str, str]
) -> tuple[list[str], tuple[int, ...]]:
    """Return a container's command line and the descriptors that it inherits: what a script shares with its rank.

    Podman hands on those from 3 on, Apptainer all, and Docker's daemon none. What cannot be shared has
    no variable inside: neither has the file of stacks, for which a rank's watchdog would signal a process
    by its number, which is another one in a container of podman or Docker.
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
    copies = [os.dup(one) for one in given]  # one of them may be where another is to be
    for place, (name, copy) in enumerate(zip(named, copies, strict=True), _FIRST):
        os.dup2(copy, place)
        env[name] = str(place)
    places = tuple(range(_FIRST, _FIRST + len(named)))
    return [tool, verb, f"--preserve-fds={len(named)}", *rest], places


def main() -> int:
    """Run a container until it ends, or until this process is asked to end."""
    command, descriptors = with_descriptors(sys.argv[1:], os.environ)
    command = with_variables(command, os.environ)
    child = subprocess.Popen(
        command,
        pass_fds=descriptors,
        stdin=subprocess.PIPE,  # nobody writes to it; it closes when this process ends
        preexec_fn=_begin,
    )
    assert child.stdin is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.stdin.close())  # type: ignore[union-attr]
    code = child.wait()
    return code if code >= 0 else 128 - code


def _begin() -> None:
    """Leave a signal to the parent: the container's client would end before its container."""
    die_with_parent()
    os.setpgid(0, 0)


if __name__ == "__main__":
    sys.exit(main())
