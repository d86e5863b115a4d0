"""The workflow that comes with this library: Snakefile, rules, scripts, profiles, config, lock."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardline.core.errors import ShardlineError


def workflow_folder() -> Path:
    """Return the workflow's folder: that in the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "workflow"  # pyproject.toml lists what a wheel has there
    return installed if installed.is_dir() else package.parents[1]


def shipped_snakefile() -> Path:
    """Return the workflow's Snakefile, which a project's own uses as a module."""
    return workflow_folder() / "Snakefile"


def report_folder() -> Path:
    """Return the folder of the templates, the style and the scripts that make the report's page."""
    return workflow_folder() / "report"


def snakefile_option() -> list[str]:
    """Return the option that names the shipped Snakefile, unless the present folder has one."""
    return [] if Path("Snakefile").exists() else ["--snakefile", str(shipped_snakefile())]


def making(target: Path | str) -> str:
    """Return the command that makes one file of the pipeline, from the present folder."""
    return " ".join(["snakemake", *snakefile_option(), "--cores all", str(target)])


def remake(
    targets: Iterable[Path], *, config: Path, profile: str, arguments: Sequence[str]
) -> bool:
    """Have Snakemake make files again from the present folder.

    Args:
        config: the project's config.
        profile: Snakemake's profile: where jobs run.
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
    """Refuse to delete while Snakemake runs here.

    Raises:
        ShardlineError: a lock of Snakemake exists; the message names it.
    """
    for lock in sorted((workdir / ".snakemake" / "locks").glob("*")):
        raise ShardlineError(
            f"{lock.relative_to(workdir)} exists, so Snakemake may be running here and nothing is deleted; "
            "wait until it ends, or run `snakemake --unlock` if it crashed"
        )
