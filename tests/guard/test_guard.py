"""Results whose result version is the same have the same values as the version of its last bump gives them.

`tests/guard/cases` has the projects; CONTRIBUTING.md tells what a failure means.
"""

from pathlib import Path

import pytest

from tests.guard.bumps import Bumps
from tests.guard.compare import compare
from tests.guard.sides import PROJECTS, earlier, present, versions_of_project
from tests.support.workspace import REPOSITORY

pytestmark = pytest.mark.slow

# each takes minutes for each side: at most one a commit, and the smallest one always
TENTHS = {
    "single": "1",
    "ranks": "2",
    "hub": "3",
    "models": "4",
    "samples": "5",
    "tables": "6",
    "edges": "7",
    "chains": "8",
    "shrunk": "9",
}
CASES = [
    pytest.param(
        path, marks=[pytest.mark.rotating(tenth=TENTHS[path.name])] if path.name in TENTHS else []
    )
    for path in PROJECTS
]


@pytest.mark.parametrize("project", CASES, ids=lambda path: path.name)
def test_values_change_with_their_result_version(project: Path, tmp_path: Path) -> None:
    bumps, versions = Bumps(REPOSITORY), versions_of_project(project)
    marker = project / "since"
    since = marker.read_text().strip() if marker.exists() else ""
    commits = {key: bumps.last(found, since) for key, found in versions.items()}
    changed = [one for one in dict.fromkeys(commits.values()) if one and bumps.has_changed(one)]
    if not changed:
        known = ", ".join(sorted({str(commit) for commit in commits.values()}))
        pytest.skip(f"neither src/ nor a lock has changed since the last bumps ({known})")
    new, failures = present(project, tmp_path), []
    for commit in changed:
        keys = {key: versions[key] for key, last in commits.items() if last == commit}
        verdict = compare(earlier(project, commit), new, keys)
        failures += [f"{sentence} (compared with {commit[:12]})" for sentence in verdict.failures]
        for key, reason in verdict.apart.items():
            print(f"not compared: {key}, since {reason}")
        assert verdict.compared, f"nothing of {project.name} can be compared: {verdict.apart}"
    assert not failures, "\n".join(failures)
