"""An environment for each peer, made on first use and kept."""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"


def python_of(environment: str | None, cache: Path) -> Path:
    """Return the interpreter of an environment, made now unless it is there.

    A peer's packages are its own; what it does not pin (torch, above all) it
    finds in Shardline's environment, so that all competitors have the same torch.

    Args:
        environment: name of a file of `requirements`; None is this interpreter.

    Raises:
        RuntimeError: the packages cannot be installed; ends with pip's last line.
    """
    if environment is None:
        return Path(sys.executable)
    requirements = REQUIREMENTS / f"{environment}.txt"
    shared = sysconfig.get_path("purelib")
    digest = hashlib.sha256(requirements.read_bytes() + shared.encode()).hexdigest()[:8]
    folder = cache / f"{environment}-{digest}"
    if not (folder / ".installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, symlinks=True)
        _install(folder, requirements)
        (_site_packages(folder) / "shared.pth").write_text(shared + "\n")
        (folder / ".installed").touch()
    return folder / "bin" / "python"


def versions_of(environment: str | None) -> list[str]:
    """Return the pinned packages of an environment."""
    if environment is None:
        return []
    lines = (REQUIREMENTS / f"{environment}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _install(folder: Path, requirements: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    options = ["--quiet", "--no-deps", "--requirement", requirements]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{requirements.name} not installed: {done.stderr.splitlines()[-1]}")


def _site_packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python*/site-packages"))
