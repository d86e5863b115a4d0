"""Record how a training is killed and resumes: `python -m docs.figures.resume`, about two minutes.

A project in a folder for temporary files trains one small model. Half-way one of its ranks gets SIGKILL, and
Snakemake's retry resumes. Then `shardline rerun` trains it again without a kill, and compares the bits. The
recording becomes `docs/images/resume.svg`.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from docs.figures.terminal import Recording, svg

IMAGES = Path(__file__).parents[1] / "images"
STEP = re.compile(r"step (\d+)/(\d+)")
CONFIG = """\
runs: config/runs.tsv
datasets:
  digits:
    source: {type: digits}
    shards: 4
defaults:
  devices: 2
  accelerator: cpu
  trainer: {max_epochs: 40}
  early_stopping: {patience: 0}
runtime: {check: false}
"""
TABLE = "name\tdataset\tmodel\tglobal_batch\toptim.lr\nnet\tdigits\tmlp\t32\t0.001\n"


class Kill:
    """Kills one rank of a training, once, as soon as it is half-way."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.step: int | None = None

    def __call__(self, process: int, output: str) -> None:
        """Look at the last step that the output shows."""
        found = STEP.findall(output)
        if self.step is not None or not found or 2 * int(found[-1][0]) < int(found[-1][1]):
            return
        children = psutil.Process(process).children(recursive=True)
        ranks = [one for one in children if _is_rank(one)]
        if ranks:
            self.step = int(found[-1][0])
            ranks[-1].kill()
            self.recording.show(1.0)


def _is_rank(process: psutil.Process) -> bool:
    """Return whether a process is a rank, and not what started it."""
    try:
        return "shardline.training.rank" in process.cmdline() and "LOCAL_RANK" in process.environ()
    except psutil.Error:  # it has ended
        return False


def nothing(process: int, output: str) -> None:
    """Only record."""


def make_project(folder: Path) -> None:
    """Write a project of one run."""
    subprocess.run([Path(sys.executable).with_name("shardline"), "init", str(folder)], check=True)
    (folder / "config/config.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "config/runs.tsv").write_text(TABLE, encoding="utf-8")


def main() -> None:
    """Record it, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", help="record this command alone, for a trial of the recorder")
    parser.add_argument("--output", type=Path, default=IMAGES / "resume.svg")
    given = parser.parse_args()
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
    }
    recording = Recording()
    if given.command:
        recording.type(given.command)
        recording.run(shlex.split(given.command), ".", env, watch=nothing)
        given.output.write_text(svg(recording, given.command), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "digits")
        make_project(project)
        kill = Kill(recording)
        commands = (
            ("snakemake --profile profiles/local", kill),
            ("shardline rerun net --profile profiles/local", nothing),
        )
        for command, watch in commands:
            recording.type(command)
            if code := recording.run(shlex.split(command), str(project), env, watch=watch):
                raise SystemExit(f"{command} ended with exit code {code}; see {project}/logs")
            recording.show(2.0)
        if kill.step is None:
            raise SystemExit(
                "no rank was killed: the training ended before half of its steps were shown"
            )
    text = "A training is killed, resumes, and has the bits of a training that was not killed"
    given.output.write_text(svg(recording, text), encoding="utf-8")
    print(f"{given.output}: {len(recording.frames)} frames, a rank was killed at step {kill.step}")


if __name__ == "__main__":
    main()
