"""Conda prefixes that rattler creates from pin files, completely or not at all."""

import asyncio
import importlib.metadata
import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shardline.core.canonical import digest, short_digest
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import make_folder, renamed_when_complete
from shardline.core.urls import without_secrets
from shardline.environments.solve import client
from shardline.environments.venv import AGAIN, make_whole
from shardline.identity.code_index import INSTALLED, LIBRARY, OURS
from shardline.identity.package_lock import PLATFORM, Pin, content_of
from shardline.records.environments import CondaEnvironment, CondaPackage

if TYPE_CHECKING:
    from rattler import RepoDataRecord

_DOWNLOADS = 8  # packages fetched at a time


def prefix_of(folder: Path, env: str, pins: Sequence[Pin]) -> Path:
    """Return the path of the environment of these pins, whether it exists or not.

    The path depends on the folder that Shardline is imported from, since the prefix
    refers to it: two checkouts with one store have two prefixes.

    Args:
        folder: folder of all environments, absolute, since files of a prefix contain its path.
    """
    return folder / f"{env}-{short_digest(_content(pins, has_shardline=True))}"


def _content(pins: Sequence[Pin], *, has_shardline: bool) -> dict[str, Any]:
    own = {"shardline": str(LIBRARY)} if has_shardline else {}
    return {**content_of(pins), **own}


def make_prefix(
    folder: Path, env: str, pins: Sequence[Pin], *, has_shardline: bool = True
) -> CondaEnvironment:
    """Create the environment of these pins, unless it exists; of several jobs, one creates it.

    Args:
        folder: see `prefix_of`.
        env: first part of the prefix's name.
        has_shardline: whether the environment can import this Shardline; the environment of a
            training script need not.

    Raises:
        ConfigError: the pins contain no Python, or a package's URL is invalid.
        DataError: a package cannot be fetched, has another digest or cannot be
            installed, or the prefix differs from the pins.
    """
    python = next((pin.version for pin in pins if pin.name == "python"), None)
    if python is None:
        raise ConfigError(f"the pins of {env} contain no python; write them with `make lock`")
    content = _content(pins, has_shardline=has_shardline)
    prefix, packages = folder / f"{env}-{short_digest(content)}", folder / "packages"
    make_folder(packages / "archives")

    def build(scratch: Path) -> None:
        asyncio.run(_install(pins, scratch, prefix, packages))
        if has_shardline:
            _add_shardline(scratch, python)
        _try(scratch, prefix, "import shardline" if has_shardline else "")

    make_whole(prefix, build)
    _check_is_as_pinned(prefix, pins)
    return CondaEnvironment(
        environment=env,
        prefix=str(prefix),
        python=python,
        platform=PLATFORM,
        digest=digest(content),
        made_by={"py-rattler": importlib.metadata.version("py-rattler")},
        packages=[
            CondaPackage(
                name=pin.name, version=pin.version, build=pin.build,
                subdir=pin.subdir, sha256=pin.sha256, url=pin.public_url,
            )
            for pin in sorted(pins, key=lambda pin: pin.name)
        ],
    )  # fmt: skip


async def _install(pins: Sequence[Pin], scratch: Path, prefix: Path, packages: Path) -> None:
    import rattler
    from rattler import exceptions

    config, http = client()
    turn = asyncio.Semaphore(_DOWNLOADS)

    async def fetched(pin: Pin) -> "RepoDataRecord":
        async with turn:
            archive = await _fetch(pin, packages / "archives", http)
            return await rattler.RepoDataRecord.from_package_archive(archive)

    try:
        records = await asyncio.gather(*map(fetched, pins))
        await rattler.install(
            records,
            target_prefix=scratch,
            alternative_target_prefix=prefix,
            cache_dir=packages,
            platform=rattler.Subdir(PLATFORM),
            client=http,
            config=config,
            show_progress=False,
        )
    except (exceptions.InstallerError, exceptions.ExtractError, exceptions.IoError) as error:
        reason = "; ".join(str(error).split("\nCaused by: "))
        raise DataError(
            f"{prefix} cannot be created ({reason}); fix that, or delete {packages}, and {AGAIN}"
        ) from None


async def _fetch(pin: Pin, archives: Path, http: Any) -> Path:
    """Return a package's verified file, downloaded if needed; rattler does not verify the digest."""
    from rattler.package_streaming import download_to_path

    url = urlsplit(pin.url)
    path = archives / f"{pin.sha256[:12]}-{pin.file}"
    if url.scheme == "file":
        path = Path(unquote(url.path))
    elif not path.exists():
        try:
            with renamed_when_complete(path) as partial:
                await download_to_path(http, pin.url, partial)
        except RuntimeError as error:
            raise DataError(
                f"{pin.public_url} cannot be fetched ({without_secrets(str(error))}); check the network, or "
                "set a mirror (docs/how-to/lock-environments.md)"
            ) from None
    try:
        found = await asyncio.to_thread(file_sha256, path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {AGAIN}") from None
    if found != pin.sha256:
        if url.scheme != "file":
            with suppress(OSError):
                path.unlink()
        raise DataError(
            f"{pin.public_url} has SHA-256 {found}, expected {pin.sha256}; the channel's file was changed "
            "or damaged: compare it, and if the new file is intended, write the pins again with `make lock`"
        )
    return path


def _add_shardline(prefix: Path, python: str) -> None:
    """Let the prefix import this Shardline, without pip in the prefix."""
    site = prefix / "lib" / f"python{'.'.join(python.split('.')[:2])}" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    if LIBRARY.name in INSTALLED:  # other packages of that folder must not be importable
        for name in OURS:
            (site / name).symlink_to(LIBRARY / name)
    else:
        (site / "shardline.pth").write_text(f"{LIBRARY}\n", encoding="utf-8")


def _try(scratch: Path, prefix: Path, program: str) -> None:
    command = [str(scratch / "bin" / "python"), "-c", program]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise DataError(
            f"the Python of {prefix} does not start ({reason}); the pins may be for newer machines: lower "
            "conda.virtual_packages and run `make lock`"
        )


def _check_is_as_pinned(prefix: Path, pins: Sequence[Pin]) -> None:
    """Reject a prefix that was changed after its creation."""
    try:
        records = [json.loads(file.read_bytes()) for file in (prefix / "conda-meta").glob("*.json")]
        found = {(r["name"], r["version"], r["build"], r["sha256"]) for r in records}
    except (OSError, ValueError, KeyError, TypeError):
        found = set()
    wanted = {(pin.name, pin.version, pin.build, pin.sha256) for pin in pins}
    if found != wanted:
        names = sorted({entry[0] for entry in found ^ wanted})
        raise DataError(
            f"{prefix} differs from its pins ({', '.join(names)}): it was changed by hand; delete it, and {AGAIN}"
        )
