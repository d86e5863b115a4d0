"""The same faults injected into a training with Shardline and with plain Lightning + Snakemake (benchmarks/plain).

Both train a small network on two ranks for 60 steps, save every 7, and wait before the 31st step
while the fault is injected. Where a command ends without a model, the fault is removed and the
same command is run again, as a user would. Sides take turns; medians of the rounds are printed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

ROOT = Path(__file__).parents[1]
PLAIN = ROOT / "benchmarks" / "plain"
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
STEPS, PATIENCE_S, HANG_S, COMMANDS = 60, 180, 10, 3
MODEL = """
from faults import Faults
from shardline.training.models.mlp import MLP


class Net(MLP):
    def configure_callbacks(self):
        return [Faults()]
"""


@dataclass(frozen=True)
class Trial:
    """What a fault cost.

    Attributes:
        commands: number of commands until the model existed; None if it never did.
        unlocked: whether `--unlock` was needed as well.
        steps_lost: optimiser steps that were repeated.
        seconds: from the first command to the model, without the time to fix the fault.
        same: whether the model is bit-identical to this side's uninterrupted training.
        said: last error message of the first command (the name is the results file's).
    """

    commands: int | None
    unlocked: bool
    steps_lost: int
    seconds: float
    same: bool
    said: str


class Side:
    """One of the two sides, in a folder of its own."""

    job = rank = checkpoints = ""
    saves_in = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(PLAIN / "faults.py", folder)

    def command(self) -> list[str]:
        raise NotImplementedError

    def model(self) -> str | None:
        """Return the digest of the trained weights, None if there are none."""
        raise NotImplementedError

    def newest(self) -> Path:
        """Return the file of the newest training checkpoint."""
        return max(self.folder.glob(self.checkpoints), key=lambda path: path.stat().st_mtime)

    def start(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                self.command(), cwd=self.folder, env=self.env(), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def env(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}

    def pid(self, word: str, rank: int | None = None) -> int:
        """Return the process of this folder whose command line has a word, and that is this rank."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd() != str(self.folder) or word not in process.cmdline():
                    continue
                if rank is None or process.environ().get("RANK") == str(rank):
                    return process.pid
        raise LookupError(f"no {word} of rank {rank} runs in {self.folder}")

    def logs(self) -> str:
        texts = [(self.folder / "output").read_text(errors="replace")]
        texts += [
            path.read_text(errors="replace") for path in self.folder.glob("logs/train*/*.log")
        ]
        texts += [path.read_text(errors="replace") for path in self.folder.glob("logs/*.log")]
        return "\n".join(texts)


class Shardline(Side):
    """This project: `snakemake --profile local`."""

    checkpoints, saves_in, rank = (
        "store/work/*/checkpoints/step-*/state.pt",
        "store",
        "shardline.training.rank",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "net.py").write_text(MODEL)
        config = yaml.safe_load((ROOT / "config/test/config.yaml").read_text())
        config.pop("scaling")
        config["runtime"] = {"checkpoint": {"every_steps": 7}, "hang_timeout_s": HANG_S}
        (folder / "config").mkdir()
        (folder / "config/config.yaml").write_text(yaml.safe_dump(config))
        (folder / "config/runs.tsv").write_text(
            "name\tdataset\tmodel\tdevices\nrun\ttable\tnet:Net\t2\n"
        )
        (folder / "store").mkdir()

    def command(self) -> list[str]:
        profile = str(ROOT / "profiles/local")
        return [
            SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "--profile", profile, "--until", "train",
        ]  # fmt: skip

    def prepare(self) -> None:
        """Build the dataset: plain Lightning has none to build."""
        command = [*self.command(), "seal_dataset"]
        subprocess.run(command, cwd=self.folder, env=self.env(), check=True, capture_output=True)

    def model(self) -> str | None:
        found = [*self.folder.glob("results/runs/*/model.safetensors")]
        return hashlib.sha256(found[0].read_bytes()).hexdigest() if found else None

    def job_pid(self) -> int:
        return psutil.Process(self.pid("shardline.launch.stores")).ppid()


class Plain(Side):
    """Lightning's ModelCheckpoint and Snakemake's retries."""

    checkpoints, saves_in, rank = "checkpoints/last.ckpt", "checkpoints", "train.py"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in ("Snakefile", "train.py", "environment.yaml"):
            shutil.copy(PLAIN / name, folder)
        (folder / "checkpoints").mkdir()

    def command(self) -> list[str]:
        return [SNAKEMAKE, "--cores", "all"]

    def prepare(self) -> None:
        """Nothing to prepare."""

    def model(self) -> str | None:
        path = self.folder / "results/model.pt"
        if not path.exists():
            return None
        weights = torch.load(path, weights_only=True)
        if not all(tensor.isfinite().all() for tensor in weights.values()):
            return "NaN"
        return hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights.values())).hexdigest()

    def job_pid(self) -> int:
        return psutil.Process(self.pid(self.rank, 0)).ppid()


Undo = Callable[[], Any]
Fault = Callable[[Side, int], Undo | None]


def kill_rank(side: Side, snakemake: int) -> None:
    os.kill(side.pid(side.rank, 1), signal.SIGKILL)


def stop_rank(side: Side, snakemake: int) -> None:
    os.kill(side.pid(side.rank, 1), signal.SIGSTOP)


def terminate_job(side: Side, snakemake: int) -> None:
    os.kill(side.job_pid(), signal.SIGTERM)


def terminate_snakemake(side: Side, snakemake: int) -> None:
    os.kill(snakemake, signal.SIGTERM)


def corrupt_newest(side: Side, snakemake: int) -> None:
    """Cut the newest training checkpoint in half, as a crash does, and kill a rank."""
    with side.newest().open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    kill_rank(side, snakemake)


def fill_disk(side: Side, snakemake: int) -> Undo:
    filler = side.folder / side.saves_in / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler.unlink


def make_nan(side: Side, snakemake: int) -> Undo:
    nan = side.folder / "nan"
    nan.touch()
    return nan.unlink


FAULTS: dict[str, Fault] = {
    "SIGKILL of a rank": kill_rank,
    "SIGTERM of the job": terminate_job,
    "SIGTERM of Snakemake": terminate_snakemake,
    "corrupt newest checkpoint": corrupt_newest,
    "disk full": fill_disk,
    "SIGSTOP of a rank": stop_rank,
    "NaN in a step": make_nan,
}


def uninterrupted(side: Side) -> tuple[str | None, float]:
    """Train without a fault; return the model's digest and the seconds."""
    side.prepare()
    (side.folder / "go").touch()
    begin = time.monotonic()
    side.start().wait()
    return side.model(), time.monotonic() - begin


def trial(side: Side, fault: Fault, whole: str | None) -> Trial:
    """Train with a fault, and run the command again until there is a model."""
    side.prepare()
    begin = time.monotonic()
    process = side.start()
    while not all((side.folder / f"reached-{rank}").exists() for rank in (0, 1)):
        if process.poll() is not None:
            raise RuntimeError(f"no fault was injected:\n{side.logs()[-3000:]}")
        time.sleep(0.02)
    undo = fault(side, process.pid)
    (side.folder / "go").touch()
    is_waiting = ended(process)
    message = f"nothing within {PATIENCE_S} s" if is_waiting else last_message(side)
    commands, unlocked = 1, False
    while side.model() is None and commands < COMMANDS:
        if undo:
            undo = undo()  # once
        commands += 1
        process = side.start()
        ended(process)
        if "--unlock" in (side.folder / "output").read_text() and not unlocked:
            unlocked = True
            unlock = [*side.command(), "--unlock"]
            subprocess.run(unlock, cwd=side.folder, env=side.env(), check=True, capture_output=True)
            commands -= 1
    model = side.model()
    steps = (side.folder / "steps").read_text().splitlines()
    return Trial(
        commands=commands if model else None,
        unlocked=unlocked,
        steps_lost=len(steps) - STEPS,
        seconds=round(time.monotonic() - begin, 1),
        same=model == whole,
        said=message,
    )


def ended(process: "subprocess.Popen[bytes]") -> bool:
    """Wait for a command to end; kill it after `PATIENCE_S`, and return whether that was necessary."""
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        process.kill()
        process.wait()
        return True
    return False


def last_message(side: Side) -> str:
    """Return the last line that names an error, by the first of these patterns; commands do not count."""
    marks = (
        "saved at step",
        r"rank \d+ on ",
        "could not be",
        "is damaged",
        "No space",
        "Signal ",
        "Error: ",
        "rror",
    )
    lines = [line.strip() for line in side.logs().splitlines() if " -m " not in line]
    found = next((line for mark in marks for line in reversed(lines) if re.search(mark, line)), "")
    return found.replace(f"{side.folder}/", "")[:300]


def folder_of(kind: type[Side], scratch: Path, *, small_disk: bool) -> Side:
    """Make a side in a new folder; for the fault of a full disk it saves to a disk of 24 MB."""
    side = kind(Path(tempfile.mkdtemp(dir=scratch)))
    if small_disk:
        disk = side.folder / side.saves_in
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
    return side


def main() -> None:
    """Run all faults on both sides, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", nargs="*", default=[*FAULTS], choices=FAULTS)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/reliability.json")
    args = parser.parse_args()
    found: dict[str, dict[str, list[Trial]]] = {name: {} for name in args.faults}
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for _ in range(args.rounds):
            for kind in (Shardline, Plain):
                whole, took = uninterrupted(folder_of(kind, scratch, small_disk=False))
                seconds.setdefault(kind.__name__, []).append(took)
                for fault in args.faults:
                    side = folder_of(kind, scratch, small_disk=fault == "disk full")
                    try:
                        done = trial(side, FAULTS[fault], whole)
                    finally:
                        if fault == "disk full":
                            subprocess.run(
                                ["umount", "-l", side.folder / side.saves_in], check=True
                            )
                    found[fault].setdefault(kind.__name__, []).append(done)
                    print(fault, kind.__name__, done, flush=True)
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, text=True, capture_output=True, check=True)
    unbroken_s = {name: statistics.median(values) for name, values in seconds.items()}
    document = {
        "commit": commit.stdout.strip(),
        "rounds": args.rounds,
        "unbroken_s": unbroken_s,
        "faults": {
            f: {k: [asdict(t) for t in ts] for k, ts in by.items()} for f, by in found.items()
        },
    }
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(found, unbroken_s))


def table(found: dict[str, dict[str, list[Trial]]], unbroken_s: dict[str, float]) -> str:
    """Return the medians as a Markdown table."""
    lines = [
        "| fault | side | commands | steps lost | seconds lost | bit-identical |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for fault, by in found.items():
        for kind, trials in by.items():
            commands = ", ".join(sorted({commands_of(trial) for trial in trials}))
            bits = f"{sum(trial.same for trial in trials)} of {len(trials)}"
            cost = "all | |"
            if done := [trial for trial in trials if trial.commands]:
                steps = statistics.median(trial.steps_lost for trial in done)
                lost = statistics.median(trial.seconds for trial in done) - unbroken_s[kind]
                cost = f"{steps:g} | {lost:.0f} |"
            lines.append(f"| {fault} | {kind} | {commands} | {cost} {bits} |")
    return "\n".join(lines)


def commands_of(trial: Trial) -> str:
    """Return how often a user had to run the command."""
    if trial.commands is None:
        return "no model"
    return f"{trial.commands}{' and --unlock' if trial.unlocked else ''}"


if __name__ == "__main__":
    main()
