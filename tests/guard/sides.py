"""A project as a version of Shardline makes it: the present one, or an earlier one in a worktree."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import yaml
from filelock import FileLock

from shardline.config.load import load_project
from tests.guard.bumps import run_git
from tests.guard.values import Result, from_json, read_project, to_json
from tests.support.workspace import REPOSITORY

CASES = Path(__file__).parent / "cases"
PROJECTS = sorted(path.parents[1] for path in CASES.glob("*/*/config/config.yaml"))
LOCK = "requirements.lock"
CORES = "2"
# sums depend on the number of threads, and hashes of sets on their seed
_SAME = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
_FOREIGN = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "SHARDLINE_STORE")


def versions_of_project(project: Path) -> dict[str, dict[str, int]]:
    """Return the versions that count for each result of a project, its inputs' among them."""
    with tempfile.TemporaryDirectory() as place, chdir(copied(project, Path(place))):
        found = load_project(yaml.safe_load(Path("config/config.yaml").read_text()))
    versions: dict[str, dict[str, int]] = {}
    for dataset in found.datasets.values():
        versions[f"data {dataset.name}"] = dataset.document["versions"]
    for run in found.runs.values():
        trained = run.document["versions"]
        for part in run.parts:
            trained = versions[f"data {part.dataset.name}"] | trained
        versions[f"train {run.names[0]}"] = trained
        versions[f"evaluate {run.names[0]}"] = trained | run.evaluation_document["versions"]
    report = dict(found.report_document["versions"])
    for one in list(versions.values()):
        report |= {name: max(number, report.get(name, 0)) for name, number in one.items()}
    return {**versions, "report all": report}


def present(project: Path, place: Path) -> dict[str, Result]:
    """Make a project by the working tree and return its results."""
    return _make(project, REPOSITORY, Path(sys.executable).parent, place)


def earlier(project: Path, commit: str) -> dict[str, Result]:
    """Make a project by an earlier version, with its own lock; what is known of it is read from the cache.

    The cache is in `XDG_CACHE_HOME`: results by the commit, its lock, the processor and the project's files.
    """
    path = _cached(project, commit)
    if not path.exists():
        with _worktree(commit) as tree, tempfile.TemporaryDirectory() as place:
            results = _make(project, tree, environment(tree), Path(place))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(to_json(results))
        Path(file.name).replace(path)  # another process may have been as fast
    return from_json(path.read_text())


def copied(project: Path, place: Path) -> Path:
    """Return a copy of a project's files."""
    ignored = shutil.ignore_patterns("results", "store", "logs", "__pycache__", ".snakemake")
    return Path(shutil.copytree(project, place / project.name, ignore=ignored))


def _make(project: Path, root: Path, programs: Path, place: Path) -> dict[str, Result]:
    """Run the documented command of the Shardline in a folder; see "Two commands" of README.md."""
    folder = copied(project, place)
    command = [
        str(programs / "snakemake"), "--snakefile", str(root / "Snakefile"),
        "--profile", str(root / "profiles/local"), "--directory", str(folder), "--cores", CORES,
    ]  # fmt: skip
    if (root / "src/shardline/results/check").is_dir():  # which takes seconds, and changes no value
        command += ["--config", "runtime={check: false}"]
    env = {k: v for k, v in os.environ.items() if k not in _FOREIGN} | _SAME
    # an earlier Shardline's logger plugin too: one that is installed asks for modules of the present one
    logger = root / "plugins/snakemake-logger-plugin-shardline/src"
    env |= {"PYTHONPATH": os.pathsep.join(map(str, (root / "src", logger)))}
    done = subprocess.run(
        command, cwd=root, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{project.name} could not be made by {root}:\n{done.stdout[-6000:]}")
    return read_project(folder, project.parent.name, root / LOCK)


@contextmanager
def _worktree(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / commit[:12]
        run_git(REPOSITORY, "worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            run_git(REPOSITORY, "worktree", "remove", "--force", str(tree))


def environment(tree: Path) -> Path:
    """Return the folder of programs of an earlier version: those of here where the locks are the same.

    Another lock's environment is made once and kept: `_make` puts the version's own code before it.
    """
    lock = (tree / LOCK).read_bytes()
    if lock == (REPOSITORY / LOCK).read_bytes():
        return Path(sys.executable).parent
    digest = hashlib.sha256(lock + sys.version.encode()).hexdigest()
    folder = _cache() / "environments" / digest[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / ".installed").exists():
            command = ["make", "env", f"PYTHON={sys.executable}", f"VENV={folder}"]
            subprocess.run(command, cwd=tree, check=True)
    return folder / "bin"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline-guard"


def _cached(project: Path, commit: str) -> Path:
    lock = run_git(REPOSITORY, "show", f"{commit}:{LOCK}")
    files = [path for path in sorted(project.rglob("*")) if path.is_file()]
    contents = b"".join(
        str(path.relative_to(project)).encode() + path.read_bytes() for path in files
    )
    reader = Path(read_project.__code__.co_filename).read_bytes()
    parts = [
        commit.encode(),
        lock.encode(),
        _processor().encode(),
        sys.version.encode(),
        contents,
        reader,
    ]
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    return _cache() / f"{commit[:12]}-{project.name}-{digest[:16]}.json"


def _processor() -> str:
    """Return what libraries choose their kernels by."""
    text = Path("/proc/cpuinfo").read_text()
    return "".join(
        sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)))
    )
