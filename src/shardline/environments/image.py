"""The container image of the ranks: built, pushed and saved by podman, docker or buildah."""

import json
import logging
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shardline import __version__
from shardline.config.settings.config import Image
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, LaunchError
from shardline.core.files import make_folder, write_json
from shardline.core.package import workflow_folder
from shardline.core.process import die_with_parent
from shardline.core.redaction import mask
from shardline.environments.context import EPOCH, code_digest, is_checkout, stage_context
from shardline.records.base import encode
from shardline.records.environments import BuiltImage

BUILDERS = ("podman", "docker", "buildah")
_BUILD = {
    # with a fixed date, the layers and the image's ID stay the same
    "podman": ("podman", "build", "--layers", f"--timestamp={EPOCH}"),
    "buildah": ("buildah", "build", "--layers", f"--timestamp={EPOCH}"),
    "docker": ("docker", "build", "--provenance=false"),
}
_LOGINS = ("--creds", "--password")


def build_image(settings: Image, *, lock: Path, output: Path, log: Path) -> None:
    """Build the image, push and save it as configured, and write its record.

    Args:
        settings: `image` of the config.
        lock: pins of every package, which get a layer of their own.
        output: path of the record, a `BuiltImage`.
        log: path of the log, which gets the tools' output.

    Raises:
        ConfigError: the tool is missing, or the settings contain a password.
        LaunchError: the tool failed; the message contains its last line.
    """
    check_no_login(settings)
    tool = find_tool("image.tool", settings.tool, BUILDERS)
    made_from = {"lock": file_sha256(lock), "code": code_digest()}
    name = image_name(settings.push, made_from)
    commit = _commit()
    with tempfile.TemporaryDirectory(prefix="shardline-image-") as folder:
        scratch = Path(folder)
        context, id_file = scratch / "context", scratch / "id"
        context.mkdir()
        stage_context(context, lock)
        labels = image_labels(settings.base, commit=commit, **made_from)
        files = {"context": context, "id_file": id_file}
        _run(build_command(tool, settings, name=name, labels=labels, **files), log)
        image = id_file.read_text().strip()
        reference = _push(tool, settings, name, scratch / "digest", log) if settings.push else ""
    archive = _save(tool, image, Path(settings.save), log) if settings.save else ""
    built = BuiltImage(
        id=image,
        # a registry compresses the layers, which changes the digest
        digest=reference.partition("@")[2] or image,
        reference=reference or None,
        archive=archive or None,
        base=settings.base,
        tool=tool,
        commit=commit,
        version=__version__,
        **made_from,
    )
    write_json(output, encode(built))


def _commit() -> str:
    """Return the commit of this Shardline's checkout, and whether it has changes; `unknown` if installed."""
    from shardline.core.git import git_state  # parsing imports this module, and must stay fast

    git = git_state(workflow_folder()) if is_checkout() else {"commit": None, "dirty": None}
    return f"{git['commit'] or 'unknown'}{'-dirty' if git['dirty'] else ''}"


def find_tool(key: str, wanted: str, known: Sequence[str]) -> str:
    """Return the wanted tool, or for `auto` the first known tool on this machine.

    Raises:
        ConfigError: the tool is not in PATH.
    """
    tried = known if wanted == "auto" else (wanted,)
    for tool in tried:
        if shutil.which(tool):
            return tool
    raise ConfigError(
        f"{key}={wanted}, but there is no {' or '.join(tried)} in PATH; install one, or set another tool"
    )


def check_no_login(settings: Image) -> None:
    """Reject options with a password, which would appear in logs and in the list of processes.

    Raises:
        ConfigError: the message names the option, not its value.
    """
    for key in ("build_args", "push_args", "run_args"):
        for word in getattr(settings, key):
            if word.startswith(_LOGINS):
                raise ConfigError(
                    f"image.{key} contains {word.partition('=')[0]}, but passwords must not be in the config; "
                    "log in with the tool itself (`podman login REGISTRY`)"
                )


def image_name(push: str, made_from: Mapping[str, str]) -> str:
    """Return name and tag; the tag is a digest of the content, unless `push` contains a tag."""
    name = push or "localhost/shardline"
    if ":" in name.rpartition("/")[2]:
        return name
    return f"{name}:{made_from['lock'][:12]}-{made_from['code'][:12]}"


def image_labels(base: str, *, commit: str, lock: str, code: str) -> dict[str, str]:
    """Return the image's labels: OCI's standard labels, and the digests of the lock and the code."""
    return {
        "org.opencontainers.image.title": "shardline",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.licenses": "MIT",
        "org.opencontainers.image.base.name": base,
        "shardline.lock.sha256": lock,
        "shardline.code.sha256": code,
    }


def build_command(
    tool: str, settings: Image, *, name: str, labels: Mapping[str, str],
    context: Path, id_file: Path,
) -> list[str]:  # fmt: skip
    """Return the command line that builds the image.

    Args:
        tool: `podman`, `docker` or `buildah`.
        settings: `image` of the config.
        context: folder that `stage_context` filled.
        id_file: file that gets the image's ID.
    """
    return [
        *_BUILD[tool],
        f"--file={context / 'Containerfile'}",
        f"--build-arg=base={settings.base}",
        f"--build-arg=SOURCE_DATE_EPOCH={EPOCH}",
        *(f"--label={key}={value}" for key, value in labels.items()),
        f"--tag={name}",
        f"--iidfile={id_file}",
        *settings.build_args,
        str(context),
    ]


def _push(
    tool: str, settings: Image, name: str, digest_file: Path, log: Path
) -> str:  # fmt: skip
    """Push the image, and return its name with the registry's digest."""
    repository = name.rpartition(":")[0]
    if tool != "docker":
        digest_option = f"--digestfile={digest_file}"
        _run([tool, "push", digest_option, *settings.push_args, name, f"docker://{name}"], log)
        return f"{repository}@{digest_file.read_text().strip()}"
    _run(["docker", "push", *settings.push_args, name], log)
    inspect = ["docker", "image", "inspect", "--format={{json .RepoDigests}}", name]
    found = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout
    return next(str(one) for one in json.loads(found) if one.startswith(f"{repository}@"))


def _save(tool: str, image: str, target: Path, log: Path) -> str:
    """Write the image to a file, completely or not at all; return its name for Apptainer."""
    make_folder(target.absolute().parent)
    scratch = target.with_name(f".{target.name}.tmp")
    scratch.unlink(missing_ok=True)
    kind = "docker-archive" if tool == "docker" else "oci-archive"
    if tool == "docker":
        _run(["docker", "save", f"--output={scratch}", image], log)
    else:
        _run([tool, "push", image, f"{kind}:{scratch}"], log)
    scratch.replace(target)
    return f"{kind}:{target}"


def _run(command: Sequence[str], log: Path) -> None:
    logging.info("%s", mask(shlex.join(command)))
    with log.open("a") as file:
        begin = file.tell()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent, check=False,
        )  # fmt: skip
    if done.returncode:
        with log.open(errors="replace") as file:
            file.seek(begin)
            last_line = (file.read().strip().splitlines() or ["no output"])[-1]
        raise LaunchError(
            f"`{' '.join(command[:2])}` ended with code {done.returncode}: {last_line}; "
            f"fix that (docs/how-to/run-in-containers.md lists common causes), see {log}"
        )
