"""The code snapshot of jobs: a frozen copy of the working folder, without files that are not code."""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from snakemake_executor_plugin_azureml.errors import AzureMLError

# Azure ML's limits for snapshots.
MAX_BYTES = 300 * 2**20
MAX_FILES = 2000

# Patterns as in .gitignore. The user's patterns follow them, and may reverse them.
LEFT_OUT = (
    "/.snakemake/",
    "/store/",
    "/results/",
    "/logs/",
    ".git",
    ".venv/",
    "venv/",
    "__pycache__/",
    "*.pyc",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".azureml/",
    ".env",
)
# The first of these files that exists is used, as in both SDKs.
_IGNORE_FILES = (".amlignore", ".gitignore")
_FOLDERS_NAMED = 3


@dataclass(frozen=True)
class CodeSnapshot:
    """A copy of the code, which stays the same while the workflow runs.

    Attributes:
        folder: path of the copy, which the SDK uploads.
        digest: digest of the names and contents of its files.
    """

    folder: Path
    digest: str


def take_snapshot(source: Path, target: Path) -> CodeSnapshot:
    """Copy the code of a folder.

    Args:
        source: the working folder, which is also the working folder of jobs.
        target: parent folder of the copy, which is named by its digest.

    Raises:
        AzureMLError: the code exceeds Azure ML's limits; the message names the biggest folders.
    """
    files = list(code_files(source))
    sizes = {path: (source / path).stat().st_size for path in files}
    _check_size(sizes)
    digest = _digest(source, files)
    folder = target / f"code-{digest}"
    if not folder.is_dir():
        partial = target / f".{folder.name}-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        for path in files:
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, partial / path)
        # The copy contains no excluded files, so the SDK must not apply a .gitignore again.
        partial.mkdir(parents=True, exist_ok=True)
        (partial / ".amlignore").write_text("# what is left out is not here\n")
        partial.rename(folder)
    return CodeSnapshot(folder, digest)


def code_files(source: Path) -> Iterator[str]:
    """Yield the files of the snapshot, relative to the folder, in order.

    Links are followed, since a job needs the files behind them.
    """
    is_left_out = _left_out(source)
    visited: set[str] = set()
    for folder, folders, names in os.walk(source, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:  # a link to a parent folder
            folders.clear()
            continue
        visited.add(real)
        here = Path(folder).relative_to(source)
        folders[:] = sorted(name for name in folders if not is_left_out(f"{here / name}/"))
        for name in sorted(names):
            path = here / name
            if name != ".amlignore" and not is_left_out(str(path)) and (source / path).is_file():
                yield path.as_posix()


def _left_out(source: Path) -> Callable[[str], bool]:
    # A dependency of both SDKs; imported late, since Snakemake imports every plugin.
    from pathspec import PathSpec
    from pathspec.patterns.gitwildmatch import GitWildMatchPattern

    lines = list(LEFT_OUT)
    for name in _IGNORE_FILES:
        if (source / name).is_file():
            lines += (source / name).read_text(encoding="utf-8").splitlines()
            break
    return PathSpec(map(GitWildMatchPattern, lines)).match_file


def _check_size(sizes: dict[str, int]) -> None:
    num_files, num_bytes = len(sizes), sum(sizes.values())
    if num_files <= MAX_FILES and num_bytes <= MAX_BYTES:
        return
    folder_bytes: Counter[str] = Counter()
    folder_files: Counter[str] = Counter()
    for path, size in sizes.items():
        top = path.split("/", 1)[0] + ("/" if "/" in path else "")
        folder_bytes[top] += size
        folder_files[top] += 1
    ranking = folder_bytes if num_bytes > MAX_BYTES else folder_files
    biggest = ", ".join(
        f"{top} ({folder_bytes[top] / 2**20:.1f} MB in {folder_files[top]} files)"
        for top, _ in ranking.most_common(_FOLDERS_NAMED)
    )
    raise AzureMLError(
        f"the working folder has {num_bytes / 2**20:.1f} MB in {num_files} files, but Azure ML "
        f"accepts at most {MAX_BYTES // 2**20} MB in {MAX_FILES} files as a job's code; the biggest: "
        f"{biggest}; list files that are not code in .amlignore (patterns as in .gitignore)"
    )


def _digest(source: Path, files: list[str]) -> str:
    whole = hashlib.sha256()
    for path in files:
        content = hashlib.sha256((source / path).read_bytes()).digest()
        whole.update(path.encode() + b"\0" + content)
    return whole.hexdigest()[:16]
