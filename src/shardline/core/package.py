"""The shipped workflow: Snakefile, rules, scripts, profiles, config, lock."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardline.core.errors import ShardlineError


def workflow_folder() -> Path:
    """Return the workflow's folder, in the installed package or in the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "workflow"  # pyproject.toml lists its files in a wheel
    return installed if installed.is_dir() else package.parents[1]


def shipped_snakefile() -> Path:
    """Return the workflow's Snakefile, which the Snakefile of a project uses as a module."""
    return workflow_folder() / "Snakefile"


def report_folder() -> Path:
    """Return the folder of the report's templates, style and scripts."""
    return workflow_folder() / "report"


def snakefile_option() -> list[str]:
    """Return the option `--snakefile` for the shipped Snakefile; empty if the current folder has a Snakefile."""
    return [] if Path("Snakefile").exists() else ["--snakefile", str(shipped_snakefile())]


def making(target: Path | str) -> str:
    """Return the command that makes one file of the pipeline, run in the current folder."""
    return " ".join(["snakemake", *snakefile_option(), "--cores all", str(target)])


def remake(
    targets: Iterable[Path], *, config: Path, profile: str, arguments: Sequence[str]
) -> bool:
    """Make files again with Snakemake in the current folder.

    Args:
        targets: files to delete and make again.
        config: the project's config.
        profile: Snakemake's profile, which decides where jobs run.
        arguments: further arguments for Snakemake.

    Returns:
        Whether all files were made; otherwise Snakemake has printed the error.
    """
    targets = list(targets)
    for path in targets:
        path.unlink(missing_ok=True)
    done = subprocess.run(
        [
            sys.executable, "-m", "snakemake", *snakefile_option(), "--profile", profile,
            "--configfile", str(config), "--force", *arguments, "--", *map(str, targets),
        ],
        check=False,
    )  # fmt: skip
    return done.returncode == 0


def check_unlocked(workdir: Path) -> None:
    """Check that no Snakemake runs in a project, before files are deleted.

    Raises:
        ShardlineError: a lock of Snakemake exists; the message names the lock.
    """
    for lock in sorted((workdir / ".snakemake" / "locks").glob("*")):
        raise ShardlineError(
            f"{lock.relative_to(workdir)} exists, so Snakemake may be running here and nothing is deleted; "
            "wait until it ends, or run `snakemake --unlock` if it crashed"
        )
