"""Real trainings that wait at a step while a fault is injected, and file systems to fail under them."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import GATED, ROW, Disk, Faulted, image_of, run
from tests.support.needs import require
from tests.support.ranks import Ranks, prepare  # noqa: F401  # a fixture
from tests.support.tracked_training import no_login, serve, training  # noqa: F401  # fixtures


@pytest.fixture
def gated(
    prepare: Callable[..., Ranks],  # noqa: F811
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Callable[..., Faulted]:
    """Prepare a training of one rank, or more, that waits at its 30th step."""

    def make(**row: Any) -> Faulted:
        (tmp_path / "gated.py").write_text(GATED)
        row = {**ROW, "devices": 1, **row}
        return Faulted(prepare(7, **row), str(row), record_property)

    return make


@pytest.fixture
def mount() -> Iterator[Callable[..., Disk]]:
    """Mount a tmpfs, or a file with a file system of another kind, on a folder."""
    require(os.geteuid() == 0, "file systems are mounted, which needs root")
    mounted: list[Path] = []

    def make(folder: Path, *, size: str = "8m", kind: str = "tmpfs") -> Disk:
        folder.mkdir(parents=True)
        if kind == "tmpfs":
            run("mount", "-t", kind, "-o", f"size={size}", kind, str(folder))
        else:
            require(shutil.which(f"mkfs.{kind}"), f"mkfs.{kind} is missing")
            image = image_of(folder)
            run("truncate", "--size", size, str(image))
            run(f"mkfs.{kind}", "-q", str(image))
            run("mount", "-o", "loop", str(image), str(folder))
        mounted.append(folder)
        return Disk(folder)

    yield make
    for folder in reversed(mounted):
        run("umount", "--lazy", str(folder))


@pytest.fixture
def throttle() -> Iterator[Callable[..., None]]:
    """Bound the bytes per second that a disk takes, by the kernel's own block controller."""
    knob = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
    require(knob.exists(), "cgroup v1 with blkio is missing, which makes a disk slow")
    slow: set[str] = set()

    def bound(disk: Disk, *, bytes_per_s: int) -> None:
        device = disk.path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        knob.write_text(f"{number} {bytes_per_s}")
        slow.add(number)

    yield bound
    for number in slow:
        knob.write_text(f"{number} 0")
