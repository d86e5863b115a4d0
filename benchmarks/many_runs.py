"""What ten thousand runs cost: starts of Snakemake, `shardline ls` and `shardline why`.

One project is measured in each state: while all of its runs are new, and once all of them are sealed (files of a
training's form, written by this program; nothing is trained). Snakemake's own share is that of a
Snakefile which declares the same files in rules that do nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shardline.config.load import load_project
from shardline.config.project import Project, record_names
from shardline.config.resolved import as_plain
from shardline.core.canonical import digest

REPOSITORY = Path(__file__).parents[1]
SHARDLINE = [sys.executable, "-c", "from shardline.cli import main; main()"]
PLAIN = """
RUNS = [line.split()[0] for line in open("config/runs.tsv")][1:]
rule all:
    input: expand("plain/{run}/evaluation.json", run=RUNS)
rule resolve:
    output: "plain/{run}/run.json"
    shell: "false"
rule train:
    input: ancient("plain/{run}/run.json")
    output: "plain/{run}/model"
    shell: "false"
rule evaluate:
    input: ancient("plain/{run}/model")
    output: "plain/{run}/evaluation.json"
    shell: "false"
"""


def write_project(folder: Path, num_runs: int) -> None:
    """Write the shipped config with a table of this many runs, and the plain Snakefile."""
    (folder / "config").mkdir(parents=True)
    shipped = (REPOSITORY / "config" / "config.yaml").read_text()
    (folder / "config" / "config.yaml").write_text(shipped)
    rows = ["name\tdataset\tmodel\tglobal_batch\toptim.lr\tseed"]
    rows += [f"run{i}\tdigits\tmlp\t32\t{1 / (i + 1)!r}\t{i}" for i in range(num_runs)]
    (folder / "config" / "runs.tsv").write_text("\n".join(rows) + "\n")
    (folder / "Plain").write_text(PLAIN)


def seal(project: Project) -> None:
    """Write what a finished pipeline leaves of each run."""
    record_names(project)
    for dataset in project.datasets.values():
        write(dataset.manifest, {"identity": dataset.document})
        write(dataset.provenance, {"identity": digest(dataset.document)})
    headline = {"metric": "accuracy", "value": 0.9, "mode": "max"}
    for run in project.runs.values():
        write(run.folder / "identity.json", run.document)
        write(run.folder / "run.json", {"run": run.id, "settings": as_plain(run.settings)})
        for name in ("model.safetensors", "metrics.jsonl", "provenance.json"):
            write(run.folder / name, {})
        write(run.evaluation, {"headline": headline, "identity": run.evaluation_document})
        plain = Path("plain") / run.names[0]
        for name in ("run.json", "model", "evaluation.json"):
            write(plain / name, {})
    for name in ("index.html", "report.json", "runs.csv", "ro-crate-metadata.json"):
        write(project.report.with_name(name), {})


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def measure(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return its seconds, those of CPUs, and its largest memory, in MB."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(command)} failed in {Path.cwd()}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> None:
    """Print seconds, seconds of CPU and memory of each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    snakemake = [str(Path(sys.executable).with_name("snakemake"))]
    ours = [
        *snakemake, "--snakefile", str(REPOSITORY / "Snakefile"), "--profile",
        str(REPOSITORY / "profiles" / "local"), "--dry-run", "--quiet", "all",
    ]  # fmt: skip
    plain = [*snakemake, "--snakefile", "Plain", "--cores", "1", "--dry-run", "--quiet", "all"]
    commands = {
        "snakemake --dry-run": ours, "the same files in a plain Snakefile": plain,
        "shardline ls": [*SHARDLINE, "ls"], "shardline why": [*SHARDLINE, "why", "run7"],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_project(Path(folder), args.runs)
        for state in ("new", "sealed", "stale"):
            if state == "sealed":
                seal(load_project())
            elif state == "stale":  # another batch: all is to be trained again
                table = Path("config/runs.tsv")
                table.write_text(table.read_text().replace("\t32\t", "\t16\t"))
            print(f"{args.runs:,} {state} runs", flush=True)
            for name, command in commands.items():
                for _ in range(args.repeats):
                    seconds, cpu, megabytes = measure(command)
                    print(
                        f"  {name:36} {seconds:6.1f} s   {cpu:6.1f} s of CPU   {megabytes:6.0f} MB",
                        flush=True,
                    )
        os.chdir("/")


if __name__ == "__main__":
    main()
