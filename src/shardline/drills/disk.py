"""A small disk for the store of a fault-injection test: filling it harms nobody."""

import os
import subprocess
from pathlib import Path

from shardline.core.errors import LaunchError

_SIZE = "64m"


class SmallDisk:
    """A tmpfs in a mount namespace of its own, as a context; it is gone at the end.

    Args:
        folder: where it is mounted; commands see it through `inside` alone.
    """

    FILLER = "filler"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SmallDisk":
        self._folder.mkdir(parents=True)
        script = f'mount -t tmpfs -o size={_SIZE} tmpfs "$1" && echo mounted && exec cat'
        user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
        self._holder = subprocess.Popen(
            ["unshare", *user, "--mount", "sh", "-c", script, "sh", str(self._folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if (reply := self._holder.stdout.readline().strip()) != "mounted":
            self.__exit__()
            raise LaunchError(
                f"the fault disk-full cannot be injected here ({reply}): it needs user and mount namespaces "
                "(`unshare --user --mount`) for a disk that nobody else uses; ask the administrator"
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.kill()
        self._holder.wait()

    @property
    def inside(self) -> list[str]:
        """Words that run the command behind them where the disk is mounted."""
        assert self._holder is not None
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self._holder.pid), *user, "--mount"]

    def path(self, path: Path) -> Path:
        """Return where a path on the disk is seen from outside."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{path}")

    @property
    def filler(self) -> Path:
        """The file that fills it, seen from outside."""
        return self.path(self._folder / self.FILLER)
