"""How long a training takes from its submission to its first step, for each launcher, on a real Slurm.

The cluster is that of the tests: two nodes of two CPUs, emulated by namespaces of
this machine, so the figures compare launchers with one another and with the
plain start on this machine; they do not predict another cluster. Run as root:
`python -m benchmarks.launching`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import Workspace

LAUNCHERS = ("srun", "torchrun", "mpirun")


def first_step(pipeline: Pipeline) -> float:
    """Return when the first training step ended, in seconds since the epoch."""
    metrics = pipeline.workspace.the("store/work/*/metrics.jsonl")
    # its clock starts when the file is made
    made = subprocess.run(
        ["stat", "--format=%.W", str(metrics)], capture_output=True, text=True, check=True
    )
    return float(made.stdout) + float(json.loads(metrics.read_text().splitlines()[0])["wall_s"])


def measure(built: Pipeline, folder: Path, launcher: str) -> dict[str, float]:
    """Train once, and return seconds from submission to start and first step, and Snakemake's own."""
    pipeline = built.copy(folder)
    pipeline.configure(runtime={"launcher": launcher}, nodes=2, devices=2)
    started = time.time()
    done = pipeline.run("--until", "train")
    seconds = time.time() - started
    if done.returncode:
        sys.exit(done.stdout)
    job = done.stdout.split("SLURM jobid ")[1].split()[0]
    shown = dict(
        part.split("=", 1)
        for part in pipeline.cluster.scontrol("--oneliner", "show", "job", job).split()
        if "=" in part
    )
    submitted, began, ended = (
        datetime.fromisoformat(shown[key]).timestamp()
        for key in ("SubmitTime", "StartTime", "EndTime")
    )
    ranks = datetime.fromisoformat(pipeline.provenance()["started"]).timestamp()
    return {
        "queued": began - submitted,
        "Snakemake within the job": ranks - began,
        "to the first step": first_step(pipeline) - submitted,
        "job": ended - began,
        "Snakemake beside the job": seconds - (ended - submitted),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SlurmCluster(folder / "slurm", nodes=2) as cluster:
            built = Pipeline(Workspace(folder / "built"), cluster)
            built.path.mkdir()
            built.configure(runtime={"launcher": "srun"}, nodes=2, devices=2)
            built.run("--executor", "local", "--cores", "2", "--until", "seal_dataset")
            found: dict[str, list[dict[str, float]]] = {launcher: [] for launcher in LAUNCHERS}
            for number in range(options.rounds):
                for launcher in LAUNCHERS:
                    found[launcher].append(
                        measure(built, folder / f"{launcher}-{number}", launcher)
                    )
    print(f"seconds, medians of {options.rounds} interleaved rounds, 2 nodes x 2 ranks")
    for launcher, rounds in found.items():
        medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        print(f"  {launcher:9}", "  ".join(f"{key} {value:.1f}" for key, value in medians.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
