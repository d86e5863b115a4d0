"""Which tests a worker gets together and in which order; what each folder took, and how long workers waited.

pytest-xdist's `worksteal` halves what is left by the number of tests, whatever fixtures they share,
and does not know `xdist_group`; `loadgroup` does, and adds the group's name to each node id. So the
groups are those of `loadfile`, longest first, and the longest files whose tests share nothing are
taken apart. See docs/decisions/0018-room-in-ci.md.
"""

import time
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
UNIT = TESTS / "unit"
# What takes minutes, one that mostly waits beside one that computes.
LONGEST = (
    "guard/test_guard.py", "frameworks/test_frameworks.py",
    "slurm/test_training_accidents.py", "ranks/test_training.py", "slurm/test_accidents.py",
    "hosts/test_hosts.py", "slurm/test_launchers.py", "ranks/test_samples.py",
    "slurm/test_training.py", "ranks/test_preflight.py", "workflow/test_checking.py",
    "workflow/test_drill.py", "slurm/test_drill.py", "ranks/test_certificate.py",
    "ranks/test_divergence.py", "ranks/test_hangs.py", "ranks/test_fsdp.py",
    "faults/test_data.py", "faults/test_checkpoints.py", "workflow/test_retries.py",
    "workflow/test_provenance.py", "workflow/test_errors.py", "faults/test_trackers.py",
    "workflow/test_examples.py", "workflow/test_tutorials.py", "slurm/test_tutorial.py",
    "azureml/test_pipeline.py", "azureml/test_data_path.py", "azureml/test_node.py",
    "azureml/test_options.py", "azureml/test_emulator.py",
)  # fmt: skip
# Nothing is made once for several tests of these.
APART = frozenset({
    "guard/test_guard.py",
    "ranks/test_training.py", "ranks/test_samples.py", "ranks/test_preflight.py",
    "ranks/test_certificate.py", "ranks/test_divergence.py", "ranks/test_fsdp.py",
    "workflow/test_drill.py", "workflow/test_retries.py", "workflow/test_errors.py",
    "workflow/test_examples.py", "workflow/test_tutorials.py",
})  # fmt: skip


class Scheduling(LoadScopeScheduling):
    """A file to a worker, so that what its tests share is made once; of those APART each test."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file.removeprefix("tests/") in APART else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """Take the place of `--dist loadfile`."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first and the quick ones last: no worker is left with a long one alone."""
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}

    def key(item: pytest.Item) -> tuple[int, bool]:
        return place.get(item.path, len(place)), UNIT in item.path.parents

    items.sort(key=key)


SECONDS = pytest.StashKey[dict[str, float]]()  # by folder, of all workers
LAST_SEEN = pytest.StashKey[dict[str, float]]()  # of each worker, when a test ended on it


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Begin to look when a worker is at work."""
    node.config.stash.setdefault(LAST_SEEN, {})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember when a worker was last heard of, and what its folder has taken."""
    if node := getattr(report, "node", None):
        node.config.stash[LAST_SEEN][node.gateway.id] = time.monotonic()
        seconds = node.config.stash.setdefault(SECONDS, {})
        folder = "/".join(report.nodeid.split("/")[:2])
        seconds[folder] = seconds.get(folder, 0) + report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the tests of each folder took, and how long each worker waited for the last one."""
    if seconds := terminalreporter.config.stash.get(SECONDS, {}):
        terminalreporter.section("seconds of workers by folder")
        for folder, taken in sorted(seconds.items(), key=lambda item: -item[1]):
            terminalreporter.line(f"{taken:6.0f} s  {folder}")
    if last_seen := terminalreporter.config.stash.get(LAST_SEEN, {}):
        end = max(last_seen.values())
        waited = [f"{name} {end - seen:.0f} s" for name, seen in sorted(last_seen.items())]
        terminalreporter.section("workers without a test at the end")
        terminalreporter.line(", ".join(waited))
