"""What a large run table costs each time that Snakemake starts.

Three projects take turns, so that a busy machine slows all alike: an empty
Snakefile (Snakemake's own start-up), our Snakefile with 5 runs, and with 1,000.
Parsing is measured by `--list-rules`, which reads the Snakefile and stops; the
dry run adds Snakemake's own job graph, of 3,000 jobs for 1,000 runs.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LIMIT_S = 2.0
TABLES = {"5 runs": 5, "1,000 runs": 1000}


def make_project(folder: Path, num_runs: int) -> list[str]:
    """Write a project with the shipped config and this many runs; return its command line."""
    (folder / "config").mkdir(parents=True)
    shutil.copy(REPOSITORY / "config" / "config.yaml", folder / "config")
    rows = ["name\tdataset\tmodel\tglobal_batch\toptim.lr\ttrainer.max_epochs\tseed"]
    rows += [f"run{i}\tdigits\tmlp\t32\t{1 / (i + 1)!r}\t30\t{i}" for i in range(num_runs)]
    (folder / "config" / "runs.tsv").write_text("\n".join(rows) + "\n")
    profile = REPOSITORY / "profiles" / "local"
    return ["--snakefile", str(REPOSITORY / "Snakefile"), "--profile", str(profile)]


def make_empty(folder: Path) -> list[str]:
    """Write a Snakefile with one rule and nothing else; return its command line."""
    folder.mkdir(parents=True)
    (folder / "Snakefile").write_text("rule all:\n    output:\n        'done'\n")
    return ["--snakefile", "Snakefile", "--cores", "1"]


def seconds(arguments: list[str], folder: Path) -> float:
    """Run Snakemake once and return its wall time."""
    command = [str(Path(sys.executable).with_name("snakemake")), *arguments]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return elapsed


def measure(root: Path, arguments: list[str], repeats: int) -> dict[str, float]:
    """Return the median wall time of each project, the projects taking turns."""
    folders = {name: root / name for name in ("empty Snakefile", *TABLES)}
    own = {name: make_project(folders[name], num_runs) for name, num_runs in TABLES.items()}
    own["empty Snakefile"] = make_empty(folders["empty Snakefile"])
    times: dict[str, list[float]] = {name: [] for name in folders}
    for _ in range(repeats):
        for name, folder in folders.items():
            times[name].append(seconds([*own[name], *arguments], folder))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="starts of each project")
    repeats = parser.parse_args().repeats
    parsing = report("parsing (--list-rules)", ["--list-rules"], repeats)
    report("dry run (-n)", ["--dry-run", "--quiet", "all"], max(1, repeats // 2))
    above = parsing["1,000 runs"] - parsing["empty Snakefile"]
    print(
        f"1,000 runs are parsed in {above:.2f} s above Snakemake's own start-up; limit {LIMIT_S} s"
    )
    return int(above > LIMIT_S)


def report(title: str, arguments: list[str], repeats: int) -> dict[str, float]:
    """Measure and print one kind of start."""
    with tempfile.TemporaryDirectory() as folder:
        medians = measure(Path(folder), arguments, repeats)
    own = medians["empty Snakefile"]
    print(f"{title}, median of {repeats}:")
    for name, median in medians.items():
        print(f"  {name:16} {median:6.2f} s   {median - own:+6.2f} s   x{median / own:.2f}")
    return medians


if __name__ == "__main__":
    sys.exit(main())
