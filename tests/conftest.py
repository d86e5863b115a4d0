"""Options and fixtures of all tests."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shardline.core.one_lightning import keep
from tests.support.lightning_packages import in_this_process
from tests.support.workspace import TINY_CONFIG, Workspace

keep(in_this_process())  # before a test imports Lightning

pytest_plugins = (
    "tests.support.framework_choice",
    "tests.support.framework_log",
    "tests.support.rotation",
    "tests.support.scheduling",
)


# What a shell, a scheduler, a git hook or a worker of pytest-xdist (by its readline) may have set, and what would reach
# the processes that tests start: a width, another place in a job, Lightning's arguments, another repository.
_NAMES = {
    "COLUMNS", "LINES", "GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "NODE_RANK", "PYTHONHASHSEED", "RANK", "SHARDLINE_CORES_PER_RUN", "SHARDLINE_STORE",
    "SNAKEMAKE_PROFILE", "WORLD_SIZE",
}  # fmt: skip
_PREFIXES = ("LT_", "MLFLOW_", "OMPI_", "PL_", "SLURM_", "WANDB_")
for _name in [name for name in os.environ if name in _NAMES or name.startswith(_PREFIXES)]:
    del os.environ[_name]


# Pipelines of several workers share the machine's cores; tests of the locks name a folder.
os.environ["SHARDLINE_LOCKS"] = "off"


# Hypothesis gives an example 200 ms: no matter of a test, on a busy machine.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


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
