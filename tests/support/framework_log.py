"""What `make test-frameworks` found, as the table of docs/frameworks.md: framework by place, date and commit."""

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

BEGIN, END = "<!-- written by make test-frameworks -->\n", "<!-- end -->\n"
PLACES = ("one machine", "two hosts", "Slurm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that names the page."""
    parser.addoption(
        "--framework-log", type=Path, help="with --framework all: the page that the table is written into"
    )  # fmt: skip


def table(found: Mapping[tuple[str, str], Iterable[tuple[str, str]]]) -> str:
    """Return the table.

    Args:
        found: launchers and how each of them ended (`passed`, `failed`, `skipped`), by framework and place.
    """
    lines = [f"| framework | {' | '.join(PLACES)} |", "| --- | " + "--- | " * len(PLACES)]
    for framework in sorted({framework for framework, _ in found}):
        cells = []
        for place in PLACES:
            ends = found.get((framework, place), ())
            told = [launcher if end == "passed" else f"{launcher}: {end}" for launcher, end in ends]
            cells.append(", ".join(told) or "not run")
        lines.append(f"| {framework} | {' | '.join(cells)} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the table where all frameworks were to be run."""
    config = terminalreporter.config
    page = config.option.framework_log
    if not page or config.option.framework != "all":
        return
    found = defaultdict(list)
    for end in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(end, []):
            properties = dict(report.user_properties)
            if "place" in properties and (report.when == "call" or end != "passed"):
                key = properties["framework"], properties["place"]
                found[key].append((properties["launcher"], end))
    git = ["git", "-C", str(config.rootpath), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    text = f"On {date}, by the tests of commit {commit}:\n\n{table(found)}"
    page.write_text(f"{before}{BEGIN}{text}{END}{after}")
