"""The rotating tier: a run takes one tenth, ten are the whole, and what is left out is named."""

import re
import subprocess

import pytest

from tests.support.framework_choice import framework_of
from tests.support.framework_log import table
from tests.support.frameworks import EXAMPLES, QUICK, TESTED
from tests.support.rotation import TENTHS, by_function, tenth_of
from tests.support.scheduling import APART, LONGEST, TESTS, Scheduling
from tests.support.workspace import REPOSITORY

pytest_plugins = "pytester"
# A launcher is not part of the tier, and twenty are.
SUITE = """
import pytest
ROTATING = [pytest.param(number, marks=pytest.mark.rotating) for number in range(20)]

@pytest.mark.parametrize("signal", ["INT", "KILL"])
@pytest.mark.parametrize("launcher", ["none", *ROTATING])
def test_ends(launcher, signal):
    assert (launcher, signal) != (3, "KILL")
"""
ALWAYS = {"test_suite.py::test_ends[none-INT]", "test_suite.py::test_ends[none-KILL]"}
NUM_TESTS = 42
OURS = ("-p", "tests.support.rotation", "-p", "tests.support.scheduling")
PLUGINS = (*OURS, "-p", "no:hypothesispytest")  # which takes a second to import


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(test_suite=SUITE, test_other="def test_always(): pass")
    pytester.makeini("[pytest]\nmarkers = rotating: of a tier")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return pytester


def ran_by(result: pytest.RunResult) -> set[str]:
    """Return what was run, whether it passed or failed."""
    return set(re.findall(r"^(?:PASSED|FAILED) (\S+)", result.stdout.str(), re.MULTILINE))


def test_ten_tenths_are_the_whole_and_each_has_what_always_runs(suite):
    def run(*arguments: str) -> set[str]:
        return ran_by(suite.runpytest_inprocess("-rA", *PLUGINS, *arguments, "test_suite.py"))

    whole = run()
    assert len(whole) == NUM_TESTS
    parts = [run("--tenth", tenth) for tenth in TENTHS]
    assert all(part > ALWAYS for part in parts), "of forty each tenth has some"
    assert sorted(name for part in parts for name in part - ALWAYS) == sorted(whole - ALWAYS)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_left_out_is_counted_and_named_and_is_no_skip(suite, workers):
    run = suite.runpytest_inprocess if workers == "0" else suite.runpytest_subprocess
    result = run("-rA", *OURS, "-n", workers, "--dist", "loadfile", "--tenth", "2")
    told, ran = result.stdout.str(), ran_by(result)
    left_out = NUM_TESTS + 1 - len(ran)
    result.assert_outcomes(passed=len(ran), deselected=left_out)
    assert f"{left_out} tests of other tenths are left out" in told
    (line,) = re.findall(r"^  test_suite.py::test_ends\[(.*)\]$", told, re.MULTILINE)
    named = {f"test_suite.py::test_ends[{one}]" for one in line.split(", ")}
    assert (len(named), named & ran) == (left_out, set())
    assert ("workers without a test at the end" in told) == (workers == "2")


def test_a_commit_chooses_and_where_there_is_none_all_are_run(suite):
    def run() -> pytest.RunResult:
        return suite.runpytest_inprocess("-rA", *PLUGINS, "--tenth", "commit")

    result = run()
    result.assert_outcomes(passed=NUM_TESTS, failed=1)
    result.stdout.fnmatch_lines("rotating tier: tenth all of 10, since there is no commit")
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.com")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    asked = subprocess.run([*git, "rev-parse", "HEAD"], check=True, text=True, capture_output=True)
    commit = asked.stdout.strip()
    result = run()
    result.stdout.fnmatch_lines(
        f"rotating tier: tenth {tenth_of(commit)} of 10, by commit {commit[:12]}"
    )
    assert ran_by(result) == ran_by(run())


def test_a_group_has_one_tenth(suite):
    suite.makepyfile(
        test_suite="import pytest\n@pytest.mark.rotating('v1')\n"
        "@pytest.mark.parametrize('n', range(20))\ndef test_it(n): pass"
    )
    own = tenth_of("test_suite.py::v1")
    for tenth in (own, next(other for other in TENTHS if other != own)):
        ran = ran_by(suite.runpytest_inprocess("-rA", *PLUGINS, "--tenth", tenth, "test_suite.py"))
        assert len(ran) == (20 if tenth == own else 0)


def test_tenths_are_of_a_size_and_stay():
    names = [f"tests/a/test_b.py::test_c[{number}]" for number in range(5000)]
    tenths = [tenth_of(name) for name in names]
    assert all(430 < tenths.count(tenth) < 570 for tenth in TENTHS)
    assert tenths[:8] == ["8", "10", "5", "8", "4", "10", "3", "9"], (
        "or tests would change their tenth between two commits"
    )


def test_functions_are_named_once():
    assert by_function(["a::b[1-x]", "a::c", "a::b[2-y]"]) == ["a::b[1-x, 2-y]", "a::c"]


def test_files_of_the_schedule_are_there_and_share_nothing_where_they_are_apart():
    assert [name for name in {*LONGEST, *APART} if not (TESTS / name).is_file()] == []
    assert [name for name in APART if "scope=" in (TESTS / name).read_text()] == []


def test_a_file_is_one_workers_unless_it_is_apart():
    split = Scheduling._split_scope
    whole, apart = (
        "tests/unit/repository/test_rotation.py::test_x[a::b]",
        f"tests/{min(APART)}::test_x[a::b]",
    )
    assert (split(None, whole), split(None, apart)) == (
        "tests/unit/repository/test_rotation.py",
        apart,
    )


def test_each_framework_has_an_example_and_its_turn():
    assert {framework_of(str(commit)) for commit in range(100)} == set(QUICK)
    readers = {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    assert {
        name for name in readers if "shardline_io" in (EXAMPLES / name / "train.py").read_text()
    } == TESTED


def test_the_table_of_frameworks_names_what_ran_and_what_did_not():
    found = {
        ("jax", "one machine"): [("torchrun", "passed")],
        ("jax", "two hosts"): [("torchrun", "passed"), ("none", "failed")],
    }
    written = table(
        found, "today, c2", "| jax | a | b | c | d | e |\n| mpi4py | a | b | c | d | today, c1 |\n"
    )
    assert written == (
        "| framework | one machine | two hosts | Slurm | Azure ML | when |\n| --- | --- | --- | --- | --- | --- |\n"
        "| jax | torchrun | torchrun, none: failed | not run | not run | today, c2 |\n"
        "| mpi4py | a | b | c | d | today, c1 |\n"
    )
    assert table({}, "later", written) == written
