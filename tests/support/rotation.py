"""The rotating tier: of the tests that are marked `rotating`, a run takes one tenth, or all.

A test's tenth follows from its node id alone, a run's from the commit: a new test moves no other
one, and two runs of one commit take the same tests. Tests whose fixtures cost more than they do
have one tenth together: `rotating("v1")` is the group `v1` of its file. A few that take minutes are
spread by hand: `rotating(tenth="1")`. What is left out is no skip: the summary counts it as
deselected, and the log names it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.commit import commit_of

TENTHS = tuple(map(str, range(1, 11)))
TITLE = pytest.StashKey[str]()
LEFT_OUT = pytest.StashKey[list[str]]()  # node ids, in a worker and in the controller


def tenth_of(text: str) -> str:
    """Return the tenth of a node id or a commit."""
    digest = hashlib.sha256(text.encode()).digest()
    return TENTHS[int.from_bytes(digest) % len(TENTHS)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that chooses the tenth."""
    parser.addoption(
        "--tenth", choices=["all", "commit", *TENTHS], default="all",
        help="what to run of the tests marked `rotating`: all, a tenth, or the tenth of this commit",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tenth, once for all workers; where there is no commit, all are run."""
    config.stash[LEFT_OUT] = []
    why = ""
    if config.option.tenth == "commit":
        commit = commit_of(config.rootpath)
        config.option.tenth = tenth_of(commit) if commit else "all"
        why = f", by commit {commit[:12]}" if commit else ", since there is no commit"
    config.stash[TITLE] = f"rotating tier: tenth {config.option.tenth} of {len(TENTHS)}{why}"


def pytest_report_header(config: pytest.Config) -> str:
    """Name the tenth before the first test too."""
    return config.stash[TITLE]


@pytest.hookimpl(trylast=True)  # what -k and -m have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rotating tests of other tenths."""
    if config.option.tenth == "all":
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_of_another_tenth(item, config.option.tenth) else kept).append(item)
    config.stash[LEFT_OUT] = [item.nodeid for item in left_out]
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _is_of_another_tenth(item: pytest.Item, tenth: str) -> bool:
    marker = item.get_closest_marker("rotating")
    if marker is None:
        return False
    if "tenth" in marker.kwargs:
        return bool(marker.kwargs["tenth"] != tenth)
    file = item.nodeid.partition("::")[0]
    return tenth_of("::".join([file, *marker.args]) if marker.args else item.nodeid) != tenth


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the controller, which collects nothing itself."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take from the first worker what all of them have left out."""
    left_out = getattr(node, "workeroutput", {}).get("left_out", [])
    if not node.config.stash[LEFT_OUT]:
        node.config.stash[LEFT_OUT] = left_out
        items = [SimpleNamespace(nodeid=nodeid) for nodeid in left_out]
        node.config.hook.pytest_deselected(items=items)  # for the summary's count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name all that is left out, one line for each function."""
    config = terminalreporter.config
    if config.option.tenth != "all":
        terminalreporter.section(config.stash[TITLE])
        left_out = config.stash[LEFT_OUT]
        told = f"{len(left_out)} tests of other tenths are left out; `make test-rotating` runs them all"
        terminalreporter.line(told)
        for line in by_function(left_out):
            terminalreporter.line(f"  {line}")


def by_function(nodeids: Iterable[str]) -> list[str]:
    """Return a line for each function, with the parameters of its tests."""
    functions = defaultdict(list)
    for nodeid in nodeids:
        function, _, parameters = nodeid.partition("[")
        functions[function].append(parameters.removesuffix("]"))
    return [
        f"{function}[{', '.join(p)}]" if any(p) else function for function, p in functions.items()
    ]


def rotating(*values: Any) -> list[Any]:
    """Return values of `parametrize` that are of the tier; a tuple holds one for each name."""
    tier = pytest.mark.rotating
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=tier) for v in values]
