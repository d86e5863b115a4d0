"""Kill a training, resume it and compare the weights; then edit the model (`make demo`, a few minutes).

The demo runs in a temporary folder, which is deleted at the end, also after Ctrl-C.
"""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from shardline.checkpoints.folder import last_step
from shardline.config.load import load_project
from shardline.core.process import sigterm_as_interrupt
from shardline.drills.profile_command import end
from shardline.records.attempts import Attempt
from shardline.supervision.watchdog.heartbeats import read_heartbeats

CONFIG = """\
runs: config/runs.tsv
defaults:
  accelerator: cpu
  global_batch: 32
  early_stopping: {patience: 0}
runtime: {check: false, oversubscribe: true, threads_per_rank: 1, checkpoint: {every_steps: 25}}
datasets:
  digits: {source: {type: digits}, shards: 4}
"""
RUNS = """\
name\tdataset\tmodel\tdevices\ttrainer.max_epochs
linear\tdigits\tlinear\t1\t2
net\tdigits\tmypkg.models:Net\t2\t20
"""
KILL_AT = 350  # step, of 900
TRAIN = "snakemake --profile profiles/local --until train"
SILENT = "While ranks start and train, nothing is printed for half a minute at a time."
NOISE = ("  digits/", "Using profile", "Config file", "Job stats")
Command: TypeAlias = "subprocess.Popen[str]"


class Demo:
    """A project in a temporary folder, and the commands that a user would type there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "digits"
        self._env = {name: text for name, text in os.environ.items() if name != "SHARDLINE_STORE"}
        self._env |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONUNBUFFERED": "1",
        }

    def run(
        self, command: str, meanwhile: Callable[[Command], None] | None = None, only: str = ""
    ) -> list[str]:
        """Run a command, print it with its output, and return the printed lines.

        Args:
            command: Command line, as a user types it.
            meanwhile: Function that is called with the process while it runs.
            only: Print only lines that contain this text.
        """
        lines: list[str] = []
        say(f"  $ {command}")
        process = subprocess.Popen(
            shlex.split(command),
            cwd=self.folder if self.folder.exists() else self.folder.parent,
            env=self._env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches it only through us
        )  # fmt: skip
        shown = threading.Thread(target=show, args=(process.stdout, only, lines), daemon=True)
        shown.start()
        try:
            if meanwhile:
                meanwhile(process)
            process.wait()
        finally:
            if process.poll() is None:
                end(process)
            shown.join(10)
        if process.returncode:
            raise SystemExit(f"the command failed with exit code {process.returncode}")
        return lines

    def dry_run(self) -> None:
        """Print the jobs that Snakemake would run now."""
        jobs = self.run(f"{TRAIN} --dry-run", only="Job ")
        print(f"    {len(jobs)} jobs to run" if jobs else "    nothing to do")

    def edit(self, old: str, new: str) -> None:
        """Edit the model, and print the edit."""
        path = self.folder / "mypkg/models.py"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        say(f"  mypkg/models.py\n    - {old}\n    + {new}")

    def id_of_net(self) -> str:
        """Return the current id of the run `net`."""
        runs = load_project(workdir=self.folder).runs.values()
        return next(run.id for run in runs if run.name == "net")

    def kill_ranks(self, command: Command) -> None:
        """Wait until the training has saved step `KILL_AT`, then kill all of its ranks."""
        work = self.folder / "store/work" / self.id_of_net()
        while last_step(work / "checkpoints") < KILL_AT and command.poll() is None:
            time.sleep(0.05)
        ranks = [one.pid for one in read_heartbeats(work, 2)]
        try:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            ranks = []
        if not ranks:
            raise SystemExit("the training ended before the demo could kill it; run the demo again")
        pids = " and ".join(map(str, ranks))
        print(f"    >>> killing both ranks of `net` (SIGKILL to processes {pids})", flush=True)


def show(stream: IO[str], only: str, lines: list[str]) -> None:
    """Print the output of a command, and keep the printed lines."""
    for line in stream:
        if line.strip() and only in line and not line.startswith(NOISE):
            lines.append(line.rstrip())
            print(f"    {lines[-1]}", flush=True)


def say(text: str) -> None:
    """Print an explanation, after an empty line."""
    print(f"\n{text}", flush=True)


def main() -> None:
    """Run the demo; exit with 1 if the weights differ."""
    start = time.monotonic()
    with sigterm_as_interrupt(), tempfile.TemporaryDirectory(prefix="shardline-demo-") as name:
        demo = Demo(Path(name))
        say(f"1. Start a project in the temporary folder {name}.")
        demo.run("shardline init digits")
        (demo.folder / "config/config.yaml").write_text(CONFIG, encoding="utf-8")
        (demo.folder / "config/runs.tsv").write_text(RUNS, encoding="utf-8")

        say("2. Train two models on handwritten digits. Half-way, kill both ranks of `net`.")
        print(f"   {SILENT}")
        demo.run(TRAIN, demo.kill_ranks)
        print("   `partly` means trained, not evaluated: the demo skips evaluation and report.\n")
        folder = demo.folder / "results/runs" / demo.id_of_net()
        attempts = json.loads((folder / "provenance.json").read_text())["attempt_log"]
        for number, one in enumerate((Attempt(**one) for one in attempts), 1):
            print(f"    attempt {number} started at step {one.resumed_step}: {one.cause}")
        print("   Shardline cannot know who killed the ranks. It was this demo.")

        say("3. Train `net` again from step 0, without a kill, and compare the weights.")
        print(f"   {SILENT}")
        demo.run("shardline rerun net")
        (rerun,) = demo.folder.glob("results/reruns/*/*/model.safetensors")
        killed, whole = (
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (folder / "model.safetensors", rerun)
        )
        say(f"   killed and resumed: sha256 {killed}\n   uninterrupted:      sha256 {whole}")
        say(f"   The weights are {'bit-identical' if killed == whole else 'DIFFERENT'}.")

        say("4. Edit a comment in the model. A dry run shows that nothing has to be done.")
        demo.edit("# [B, *feature_shape] -> logits [B, C]", "# logits, one for each class")
        demo.dry_run()

        say(
            "5. Edit the model's code. Only `net` must be trained again; `linear` and data are kept."
        )
        demo.edit("torch.nn.Tanh()", "torch.nn.ReLU()")
        demo.dry_run()
        demo.run("shardline why net")
    say(f"Done in {time.monotonic() - start:.0f} s. The folder {name} is deleted.")
    sys.exit(killed != whole)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted: all processes of the demo have ended, and its folder is deleted")
