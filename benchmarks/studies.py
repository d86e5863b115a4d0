"""What a study costs by the number of its trials: a start of Snakemake, `ls`, and a proposal.

The trials are finished by a simulation: each proposal is the real one, and a training writes a number. Seconds of
CPU are given, since they do not include waiting. Projects take turns.

    python -m benchmarks.studies
"""

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import chdir
from pathlib import Path

import yaml
from tests.support.simulated_study import Controller

from shardline.config.load import load_project

REPOSITORY = Path(__file__).parents[1]
SIZES = (0, 100, 1000)
PROGRAMS = Path(sys.executable)
STUDY = {
    "base": "mlp", "sampler": "tpe", "parallel": 8,
    "space": {
        "optim.lr": {"log": [1e-4, 1e-1]}, "model_args.hidden": [32, 64, 128],
        "optim.weight_decay": {"uniform": [0, 0.1]},
    },
}  # fmt: skip


def make(folder: Path, trials: int) -> list[float]:
    """Write a project with a finished study; return the seconds of each proposal."""
    (folder / "config").mkdir(parents=True)
    config = yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text())
    if trials:
        config["sweeps"] = {"s": {**STUDY, "trials": trials}}
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(config))
    row = "name\tdataset\tmodel\tdevices\nmlp\tdigits\tmlp\t1\n"
    (folder / "config" / "runs.tsv").write_text(row)
    proposals = []
    with chdir(folder):
        if trials:
            controller = Controller(project=load_project())
            inputs = controller.inputs()
            with controller._simulated():
                for trial in range(trials):
                    begun = time.process_time()
                    controller._execute(("propose", trial, 0), inputs)
                    proposals.append(time.process_time() - begun)
                    controller._execute(("train_trial", trial, 0), inputs)
    return proposals


def seconds(folder: Path, program: str, *arguments: str) -> float:
    """Return the seconds of CPU of a command in a project."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(PROGRAMS.with_name(program)), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="starts of each project")
    repeats = parser.parse_args().repeats
    profile = str(REPOSITORY / "profiles" / "local")
    shared = ("--snakefile", str(REPOSITORY / "Snakefile"), "--profile", profile)
    commands = {
        "parsing": ("snakemake", *shared, "--list-rules"),
        "dry run": ("snakemake", *shared, "--dry-run", "--quiet", "all"),
        "ls --study": ("shardline", "ls", "--study", "s"),
    }
    root = Path(tempfile.mkdtemp(prefix="studies-"))
    try:
        for trials in SIZES:
            if proposals := make(root / str(trials), trials):
                last = statistics.median(proposals[-10:])
                print(f"{trials} trials: a proposal after them takes {last:.3f} s", flush=True)
        for title, command in commands.items():
            sizes = [size for size in SIZES if size or title != "ls --study"]
            times: dict[int, list[float]] = {size: [] for size in sizes}
            for _ in range(repeats):
                for size, found in times.items():
                    found.append(seconds(root / str(size), *command))
            shown = ", ".join(f"{n} trials {statistics.median(t):.2f} s" for n, t in times.items())
            print(f"{title}: {shown}", flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
