"""A tiny real project in a folder of its own, and the real Snakemake to run it with."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.processes import wait_until

REPOSITORY = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")
SHARDLINE = [sys.executable, "-c", "from shardline.cli import main; main()"]

TINY_CONFIG: dict[str, Any] = yaml.safe_load((REPOSITORY / "config/test/config.yaml").read_text())
TINY_SCALING = TINY_CONFIG.pop("scaling")  # of a run that few tests have


def write_program(path: Path, script: str) -> Path:
    """Write a shell script as a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


_NOTHING = "nothing of this name"


@dataclass(frozen=True)
class Workspace:
    """A project folder outside the repository."""

    path: Path

    def write(self, relative: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.path / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def configure(self, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write config and run table.

        Models are not checked first, which takes some seconds, unless the config asks for it.
        """
        runtime = {"check": False, **config.get("runtime", {})}
        self.write("config/config.yaml", yaml.safe_dump({**config, "runtime": runtime}))
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines = ["\t".join(columns)]
        lines += ["\t".join(str(row.get(column, "")) for column in columns) for row in rows]
        self.write("config/runs.tsv", "\n".join(lines) + "\n")

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs the pipeline on this folder.

        A background job's children ignore Ctrl-C; `env` has them heed it wherever the tests run.
        """
        profile = REPOSITORY / "profiles" / "local"
        return [
            "env", "--default-signal=INT", str(SNAKEMAKE), "--snakefile", str(REPOSITORY / "Snakefile"),
            "--profile", str(profile), "--directory", str(self.path), *arguments,
        ]  # fmt: skip

    def snakemake(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the pipeline to its end and return its output."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.path,
            env={**os.environ, **(env or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=1800,
        )

    def killed_and_continued(self, pattern: str) -> None:
        """Run the pipeline, kill it with all its jobs once files match a pattern, and run it to its end."""
        process = subprocess.Popen(
            self.command(), cwd=self.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: bool(self.matching(pattern)), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.snakemake("--unlock")
        done = self.snakemake("--rerun-incomplete")
        assert done.returncode == 0, done.stdout
        assert "Nothing to be done" in self.snakemake().stdout

    def shardline(self, *arguments: str, code: int = 0) -> str:
        """Run the command `shardline`, and return what it printed; with errors unless it should succeed.

        Args:
            code: Expected exit code.
        """
        done = subprocess.run(
            [SNAKEMAKE.with_name("shardline"), *arguments], cwd=self.path, text=True, capture_output=True, check=False
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    def evaluated_best(self, sweep: str, row: Mapping[str, Any]) -> str:
        """Add the best trial of a sweep to the table of its base, evaluate it, and return the id of its run."""
        best = json.loads(self.shardline("best", sweep, "--json"))["row"]
        config = yaml.safe_load((self.path / "config/config.yaml").read_text())
        self.configure(config, [row, best])
        done = self.snakemake()
        assert done.returncode == 0, done.stdout
        key = self.identity(f"{sweep}-best")
        rules = {path.parent.name for path in (self.path / "logs").glob(f"*/{key}*.log")}
        assert rules == {"evaluate"}, "the trial has trained this run"
        return key

    def the(self, pattern: str) -> Path:
        """Return the one file that a pattern matches."""
        found = self.matching(pattern)
        assert len(found) == 1, f"{pattern} matches {found}"
        return found[0]

    def matching(self, pattern: str) -> list[Path]:
        """Return the files that a pattern matches.

        `<name>` stands for the identity that a run or dataset of this name has now.
        """
        pattern = re.sub(r"<([^>]+)>", lambda match: self._latest(match[1]), pattern)
        return sorted(self.path.glob(pattern))

    def identity(self, name: str) -> str:
        """Return the digest of the run or dataset that has a name now."""
        found = self._latest(name)
        assert found != _NOTHING, f"nothing has had the name {name}"
        return found

    def _latest(self, name: str) -> str:
        history = self.path / "results/names.jsonl"
        lines = history.read_text().splitlines() if history.exists() else []
        found = [line["id"] for line in map(json.loads, lines) if line["name"] == name]
        return str(found[-1]) if found else _NOTHING
