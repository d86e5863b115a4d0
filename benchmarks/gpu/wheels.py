"""Packs what a machine with torch and NumPy lacks: `python -m benchmarks.gpu.wheels`, into `.gpu/`.

The machine needs no network then: `tests/gpu/run.sh` installs from that folder alone. The packages are those that
a training imports, in the lock's versions; torch, NumPy and what these two depend on are the machine's own.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / ".gpu"
MOST_BYTES = 60_000_000
# what ranks, the building of shards and the resolving of a run import, found by a machine that had nothing else
PACKAGES = (
    "blake3", "certifi", "charset-normalizer", "detect-secrets", "idna", "lightning-utilities", "msgspec", "packaging",
    "psutil", "pytorch-lightning", "pyyaml", "requests", "safetensors", "torchmetrics", "tqdm", "urllib3",
)  # fmt: skip
_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")


def main() -> int:
    """Download the wheels, and fail where they are too large."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.wheels", description=__doc__)
    parser.add_argument("--python", default="3.12", help="of the machine (3.12)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the wheels (.gpu)")
    arguments = parser.parse_args()
    if not re.fullmatch(r"3\.\d+", arguments.python):
        parser.error(f"--python {arguments.python} is no version, expected one such as 3.12")
    shutil.rmtree(arguments.folder, ignore_errors=True)
    subprocess.run(pip_command(arguments.python, arguments.folder), check=True)
    wheels = sorted(arguments.folder.glob("*.whl"))
    total = sum(path.stat().st_size for path in wheels)
    print(f"{len(wheels)} wheels, {total / 1e6:.1f} MB, in {arguments.folder}")
    if total > MOST_BYTES:
        print(
            f"the wheels have {total / 1e6:.1f} MB, expected at most {MOST_BYTES / 1e6:.0f} MB; leave out what no "
            "training imports",
            file=sys.stderr,
        )
        return 1
    return 0


def pip_command(python: str, folder: Path) -> list[str]:
    """Return the command that downloads the wheels of a Python version, such as `3.12`."""
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder),
        *pinned(lock),
    ]  # fmt: skip


def pinned(lock: str) -> list[str]:
    """Return the packages as a lock pins them, such as `msgspec==0.22.0`.

    Raises:
        SystemExit: the lock has one not.
    """
    found = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, flags=re.MULTILINE))
    if missing := [name for name in PACKAGES if name not in found]:
        raise SystemExit(
            f"requirements.lock has no {missing[0]}, expected a version; drop it from PACKAGES"
        )
    return [f"{name}=={found[name]}" for name in PACKAGES]


if __name__ == "__main__":
    sys.exit(main())
