"""What several runs of one device cost on this machine, beside the same runs with another checkout of Shardline.

The runs are the shipped `mlp` on digits, without the check of models. Both checkouts make the same project in turn,
from an empty folder and by the same Python.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

REPOSITORY = Path(__file__).parents[1]
CONFIG = """
runs: config/runs.tsv
defaults: {{devices: 1, accelerator: cpu, trainer: {{max_epochs: {epochs}}}}}
datasets: {{digits: {{source: {{type: digits}}, shards: 1, splits: {{train: 0.7, validation: 0.15, test: 0.15}}}}}}
runtime: {{check: false}}
"""


def write_project(folder: Path, num_runs: int, epochs: int) -> None:
    """Write a table of runs that differ in their learning rate."""
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "config.yaml").write_text(CONFIG.format(epochs=epochs))
    rows = ["name\tdataset\tmodel\tglobal_batch\toptim.lr"]
    rows += [f"run{i}\tdigits\tmlp\t32\t{0.001 * (i + 1):g}" for i in range(num_runs)]
    (folder / "config" / "runs.tsv").write_text("\n".join(rows) + "\n")


def measure(checkout: Path, args: argparse.Namespace) -> float:
    """Return the seconds of a first `snakemake` of the project with a checkout of Shardline."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, args.runs, args.epochs)
        command = [
            sys.executable, "-m", "snakemake", "--snakefile", str(checkout / "Snakefile"),
            "--profile", str(checkout / "profiles" / "local"), "--cores", str(args.cores),
        ]  # fmt: skip
        # for its own Python alone, without the folders of an earlier PYTHONPATH
        sources = [checkout / "src", *sorted((checkout / "plugins").glob("*/src"))]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return seconds


def main() -> None:
    """Print the seconds of each round, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--before", type=Path, help="another checkout, such as that of a commit before"
    )
    args = parser.parse_args()
    checkouts = {"now": REPOSITORY} | ({"before": args.before} if args.before else {})
    seconds: dict[str, list[float]] = {name: [] for name in checkouts}
    for _ in range(args.rounds):
        for name, checkout in checkouts.items():
            seconds[name].append(measure(checkout.resolve(), args))
            load = os.getloadavg()[0]
            print(f"{name:7} {seconds[name][-1]:6.1f} s   load {load:.1f}", flush=True)
    if args.before:
        ratio = median(seconds["now"]) / median(seconds["before"])
        print(f"{args.runs} runs on {args.cores} cores: {ratio:.2f} x the time before")


if __name__ == "__main__":
    main()
