"""A container engine with a storage of its own, a base made from Debian's packages, and a registry."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from tests.support.needs import require
from tests.support.workspace import REPOSITORY

INSTALL = "apt-get install podman buildah crun runc fuse-overlayfs debootstrap docker-registry"
PROGRAMS = ("podman", "buildah", "runc", "debootstrap", "docker-registry")
# On the users' machines the base is an image from a registry.
SUITE, PACKAGES = "bookworm", ("python3", "python3-venv", "git", "ca-certificates")
BASE = "localhost/base:test"
# runc and low limits: crun refuses machines with both kinds of cgroups, and some refuse to raise limits
RUN_ARGS = ["--runtime=runc", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]


class Engine:
    """Podman and buildah on a storage in a folder, found by whatever has this process's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "storage.conf"
        self.build_args = ["--isolation=chroot", "--network=host", *_as_pip_here(folder)]

    def __enter__(self) -> Self:
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        require(not missing, f"{', '.join(missing)} not found; run: {INSTALL}")
        require(os.geteuid() == 0, "a base is made by root only; run as root")
        own = self.folder / "containers.conf"
        own.write_text(
            f'[engine]\ntmp_dir = "{self.folder}/libpod"\n'
            'lock_type = "file"\n'  # or engines of two workers share what holds the locks
            'compression_format = "zstd"\n'  # of pushes; gzip takes a minute
        )
        os.environ["CONTAINERS_CONF"] = str(own)
        for driver in ("overlay", "vfs"):  # overlay does not lie on every file system
            self.config.write_text(
                f'[storage]\ndriver = "{driver}"\n'
                f'graphroot = "{self.folder}/storage"\nrunroot = "{self.folder}/run"\n'
            )
            os.environ["CONTAINERS_STORAGE_CONF"] = str(self.config)
            tried = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False)
            if tried.returncode == 0:
                break
        assert tried.returncode == 0, tried.stderr
        self.podman("import", str(_base()), BASE)
        return self

    def __exit__(self, *error: object) -> None:
        self.podman("rm", "--all", "--force")
        self.podman("rmi", "--all", "--force")
        for name in ("CONTAINERS_STORAGE_CONF", "CONTAINERS_CONF"):
            del os.environ[name]
        shutil.rmtree(self.folder)

    def podman(self, *arguments: str) -> str:
        """Run podman and return what it prints."""
        done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def image(self, name: str) -> Any:
        """Return what podman knows of an image."""
        return json.loads(self.podman("image", "inspect", name))[0]

    def containers(self) -> list[str]:
        """Return the ids of the images of the containers that run."""
        found = json.loads(self.podman("ps", "--format=json"))
        return [container["ImageID"] for container in found]

    def wait_for_none(self) -> None:
        """Wait until no container runs."""
        deadline = time.monotonic() + 120
        while self.containers():
            assert time.monotonic() < deadline, self.podman("ps", "--all")
            time.sleep(0.2)


def _base() -> Path:
    """Return a file system for the base: made once, by debootstrap, for each list of packages."""
    key = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]
    cache = Path.home() / ".cache" / "shardline-tests"
    cache.mkdir(parents=True, exist_ok=True)
    made = cache / f"base-{key}.tar"
    with FileLock(f"{made}.lock"):
        if not made.exists():
            scratch = made.with_suffix(".tmp")
            debootstrap = [
                "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}",
                SUITE, str(cache / f"base-{key}"),
            ]  # fmt: skip
            done = subprocess.run(debootstrap, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-2000:]
            pack = ["tar", "--directory", debootstrap[-1], "--create", "--file", str(scratch), "."]
            subprocess.run(pack, check=True)
            shutil.rmtree(debootstrap[-1])
            scratch.replace(made)
    return made


def _as_pip_here(folder: Path) -> list[str]:
    """Return what has pip in a build find packages as here: its configuration, and folders in it."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    options = dict(line.split("=", 1) for line in reversed(listed.splitlines()))
    values = {key.rpartition(".")[2]: value.strip("'") for key, value in options.items()}
    written = folder / "pip.conf"
    written.write_text("\n".join(["[global]", *(f"{key} = {values[key]}" for key in values)]))
    volumes = set()
    for word in " ".join(values.values()).split():
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            # an index in files has its packages beside it
            volumes.add(path.parent if word.startswith("file://") else path)
    return [
        f"--secret=id=pip.conf,src={written}",
        *(f"--volume={path}:{path}:ro" for path in sorted(volumes)),
    ]


class Registry:
    """Debian's docker-registry on a free port of the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            self.address = f"127.0.0.1:{server.getsockname()[1]}"
        config = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "data")}},
            "http": {"addr": self.address},
        }
        path = self.folder / "registry.yml"
        path.write_text(json.dumps(config))
        with (self.folder / "registry.log").open("w") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", str(path)], stdout=log, stderr=subprocess.STDOUT
            )
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://{self.address}/v2/", timeout=10).close()
                return self
            except OSError:
                time.sleep(0.05)  # it says nothing when it is ready
        raise AssertionError((self.folder / "registry.log").read_text())

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)

    def digest(self, repository: str, reference: str) -> str:
        """Return the digest under which the registry has an image."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{repository}/manifests/{reference}",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.headers["Docker-Content-Digest"])


def shorten_lock(target: Path, roots: Sequence[str]) -> Path:
    """Write a part of the lock: some packages with all that they need."""
    from shardline.identity.package_lock import load_lock, normalize

    lock = load_lock(REPOSITORY / "requirements.lock")
    wanted, pending = set(), [normalize(root) for root in roots]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(lock.needs.get(name, ()))
    lines, keeps = [], False
    for line in (REPOSITORY / "requirements.lock").read_text().splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            keeps = normalize(line.partition("==")[0]) in wanted
        if keeps:
            lines.append(line)
    target.write_text("\n".join(lines) + "\n")
    return target
