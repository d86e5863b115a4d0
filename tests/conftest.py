"""A tiny real project in a folder of its own, and the real Snakemake to run it with."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from shardline.launch.environment import rank_variables

REPOSITORY = Path(__file__).parents[1]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")

TINY_CONFIG: dict[str, Any] = yaml.safe_load((REPOSITORY / "config/test/config.yaml").read_text())
TINY_SCALING = TINY_CONFIG.pop("scaling")  # of a run that few tests have
pytest_plugins = ("tests.rotation", "tests.scheduling")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that rewrites golden files."""
    parser.addoption("--regen", action="store_true", help="rewrite the files in tests/golden")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what each fault cost, by `steps_lost` and `seconds_lost` of its test's properties."""
    found = {
        end: [
            one
            for one in terminalreporter.stats.get(end, [])
            if one.when == "call" and "fault" in one.keywords
        ]
        for end in ("passed", "failed")
    }
    if not any(found.values()):
        return
    survived, injected = len(found["passed"]), sum(map(len, found.values()))
    terminalreporter.section("what the faults cost")
    terminalreporter.line(f"injected {injected}, survived {survived}")
    for one in found["passed"]:
        cost = dict(one.user_properties)
        steps, seconds = cost["steps_lost"], cost["seconds_lost"]
        terminalreporter.line(f"{steps:3} steps {seconds:5.1f} s  {one.nodeid.split('::')[1]}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Hold a text against a file in tests/golden, which --regen rewrites."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--regen"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()

    return check


def require(condition: object, message: str) -> None:
    """Skip a test on a machine that lacks what it needs; in CI, where it must be there, fail."""
    if not condition:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


def params_to_run(request: pytest.FixtureRequest, name: str) -> set[str]:
    """Return the values of a parameter in those tests of this file that are to run."""
    items = [item for item in request.session.items if item.path == request.path]
    specs = [item.callspec for item in items if hasattr(item, "callspec")]
    return {spec.params[name] for spec in specs if name in spec.params}


def write_program(path: Path, script: str) -> Path:
    """Write a shell script as a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def rank_environment() -> dict[str, str]:
    """Return the environment of ranks with one thread each, as a launcher gives it."""
    return {**os.environ, **rank_variables(1, {}, ""), "PYTHONFAULTHANDLER": "1"}


def end_of_ranks(process: subprocess.Popen[str], timeout_s: float = 900) -> str:
    """Wait for the end of a launcher and return its output; if none comes, tell where all ranks are."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=timeout_s)[0]
    for rank in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            rank.send_signal(signal.SIGABRT)  # has Python tell its stack
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"no end within {timeout_s} s; it told\n{process.communicate()[0]}")


def descendants(pid: int, fits: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the processes below one that fit; those that end meanwhile do not."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if fits(child):
                found.append(child)
    return found


def training_job(pid: int) -> psutil.Process:
    """Return the process of the training's job, below that of Snakemake."""
    (job,) = descendants(
        pid, lambda p: "train.py" in " ".join(p.cmdline()) and "python" in p.name()
    )
    return job


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process runs.

    Files give no event to wait for, so this looks again each time that the
    process has not ended within 20 ms.
    """
    while not condition():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"it ended with code {process.returncode} before the condition held")


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
        """Write config and run table."""
        self.write("config/config.yaml", yaml.safe_dump(dict(config)))
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
            timeout=600,
        )

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


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty project folder."""
    return Workspace(tmp_path)


@pytest.fixture
def tiny(workspace: Workspace) -> Callable[..., Workspace]:
    """Make a project of the given rows over the tiny config."""

    def make(*rows: Mapping[str, Any], **config: Any) -> Workspace:
        workspace.configure({**TINY_CONFIG, **config}, rows)
        return workspace

    return make
