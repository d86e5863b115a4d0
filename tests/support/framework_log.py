"""What `make test-frameworks` found, a table of docs/contributing/laboratory.md: framework by place, day and commit."""

import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

BEGIN, END = "<!-- written by make test-frameworks -->\n", "<!-- end -->\n"
PLACES = ("one machine", "two hosts", "Slurm", "Azure ML")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that names the page."""
    parser.addoption(
        "--framework-log", type=Path, help="the page whose table gets a row for each framework that ran"
    )  # fmt: skip


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Callable[[str, str, str], None]:
    """Record what a test runs, for that table."""

    def record(framework: str, place: str, launcher: str) -> None:
        for name, value in (("framework", framework), ("place", place), ("launcher", launcher)):
            record_property(name, value)

    return record


def table(
    found: Mapping[tuple[str, str], Iterable[tuple[str, str]]], when: str, before: str = ""
) -> str:
    """Return the table.

    Args:
        found: launchers and how each of them ended (`passed`, `failed`, `skipped`), by framework and place.
        when: day and commit.
        before: an earlier table, whose rows of other frameworks stay.
    """
    columns = ["framework", *PLACES, "when"]
    rows = {}
    for line in before.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(columns) and cells[0] != columns[0] and not line.startswith("| ---"):
            rows[cells[0]] = cells
    for framework in {framework for framework, _ in found}:
        cells = [framework]
        for place in PLACES:
            ends = found.get((framework, place), ())
            told = [launcher if end == "passed" else f"{launcher}: {end}" for launcher, end in ends]
            cells.append(", ".join(told) or "not run")
        rows[framework] = [*cells, when]
    lines = [columns, ["---"] * len(columns), *(rows[name] for name in sorted(rows))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the rows of the frameworks that ran."""
    config = terminalreporter.config
    page = config.option.framework_log
    if not page or config.option.framework.endswith(" here"):
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
    before, _, rest = page.read_text().partition(BEGIN)
    earlier, _, after = rest.partition(END)
    text = table(found, f"{datetime.now(UTC):%Y-%m-%d}, {commit}", earlier)
    page.write_text(f"{before}{BEGIN}{text}{END}{after}")
