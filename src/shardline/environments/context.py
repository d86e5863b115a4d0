"""The files that a build of the image may copy, always with the same bytes: the lock and the wheels."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.core.credentials import credential_in
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError
from shardline.core.package import workflow_folder
from shardline.identity.code_index import OURS

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# The date of all built files: the earliest that a zip file, and so a wheel, can contain.
EPOCH = 315532800
_DATE = (1980, 1, 1, 0, 0, 0)
_LIBRARY = Path(__file__).parents[2]
_PROFILES = ("default", "local", "slurm", "azureml")  # without profiles of a site
# Jobs on Azure ML start through this package; its part for nodes needs only the standard library.
_PLUGIN = "snakemake-executor-plugin-azureml"
_BY_INSTALLER = ("INSTALLER", "REQUESTED", "direct_url.json")


def stage_context(folder: Path, lock: Path) -> None:
    """Fill a folder with all files that `envs/Containerfile` copies.

    Dates and modes are set, so that two checkouts give the same layers.

    Args:
        folder: an empty folder.
        lock: lock with the pins of every package.

    Raises:
        ConfigError: a wheel cannot be built, or the lock contains a credential, which every copy of
            the image would contain.
    """
    if kind := credential_in(lock.read_text(encoding="utf-8")):
        raise ConfigError(
            f"{lock} contains {kind}, and would be copied into the image; remove the credential, and pass the "
            "index to the build with image.build_args, such as --secret=id=pip.conf,src=/etc/pip.conf "
            "(docs/how-to/run-in-containers.md)"
        )
    shutil.copy(workflow_folder() / "envs" / "Containerfile", folder / "Containerfile")
    shutil.copy(lock, folder / "requirements.lock")
    wheel = folder / "wheel"
    wheel.mkdir()
    if is_checkout():
        build_wheel(workflow_folder(), wheel)
        build_wheel(workflow_folder() / "plugins" / _PLUGIN, wheel)
    else:
        from importlib.metadata import PackageNotFoundError, distribution

        repack_wheel(distribution("shardline"), wheel)
        with suppress(PackageNotFoundError):
            repack_wheel(distribution(_PLUGIN), wheel)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (EPOCH, EPOCH))


def is_checkout() -> bool:
    """Return whether this Shardline runs from a checkout, and not from an installed wheel."""
    return (workflow_folder() / "pyproject.toml").exists()


def build_wheel(checkout: Path, folder: Path) -> None:
    """Build a checkout's wheel, without the profiles of a site.

    Raises:
        ConfigError: the wheel cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="shardline-wheel-") as scratch:
        source = Path(scratch)
        for name in _sources(checkout):
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (checkout / name).is_dir():
                shutil.copytree(checkout / name, target, ignore=_ignored)
            else:
                shutil.copy(checkout / name, target)
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
            cwd=source, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if done.returncode:
        reason = (done.stdout.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise ConfigError(
            f"the wheel of {checkout} cannot be built: {reason}; "
            "run `make env` in the clone, which installs the build tools (hatchling)"
        )


def _sources(checkout: Path) -> list[str]:
    """Return the files and folders of a checkout that its wheel is built from."""
    import tomllib

    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    about = ["pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]]
    return [*about, *wheel["packages"], *wheel.get("force-include", ())]


def _ignored(folder: str, names: list[str]) -> list[str]:
    is_profiles = Path(folder).name == "profiles"
    return [
        name for name in names if name == "__pycache__" or (is_profiles and name not in _PROFILES)
    ]


def repack_wheel(distribution: "Distribution", folder: Path) -> None:
    """Build the wheel of an installed distribution again from its files."""
    import zipfile

    files = [
        file
        for file in distribution.files or []
        if file.parts[0] != ".." and "__pycache__" not in file.parts and file.name not in _BY_INSTALLER
    ]  # fmt: skip
    names = {str(file) for file in files}
    name = distribution.name.replace("-", "_")
    wheel = folder / f"{name}-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            path = Path(str(file.locate()))
            content = path.read_bytes()
            if file.name == "RECORD":
                lines = content.decode().splitlines(keepends=True)
                content = "".join(line for line in lines if line.split(",")[0] in names).encode()
            info = zipfile.ZipInfo(str(file), _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, content)


def image_sources() -> list[str]:
    """Return the files, other than the lock, whose change makes an image stale."""
    workflow = workflow_folder()
    folders = [path for name in ("rules", "scripts") for path in (workflow / name).glob("*.*")]
    files = [workflow / "Snakefile", workflow / "envs" / "Containerfile", *sorted(folders)]
    return [*map(str, files), *map(str, _modules())]


def code_digest() -> str:
    """Return the SHA-256 of the running Shardline's modules and their names."""
    digest = hashlib.sha256()
    for file in _modules():
        digest.update(f"{file.relative_to(_LIBRARY)}\n".encode())
        digest.update(bytes.fromhex(file_sha256(file)))
    return digest.hexdigest()


def _modules() -> list[Path]:
    """Return the modules that a wheel and a checkout share: without the wheel's copy of the workflow."""
    modules = sorted(path for name in OURS for path in (_LIBRARY / name).rglob("*.py"))
    return [path for path in modules if path.relative_to(_LIBRARY).parts[1] != "workflow"]
