"""The guard itself, on made values and made histories of a repository."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.guard.bumps import VERSIONS, Bumps, HistoryError, run_git
from tests.guard.compare import compare
from tests.guard.values import Result, from_json, to_json

FSDP = {"data": 1, "mlp": 1, "training": 2}
DDP = {"data": 1, "mlp": 1, "training": 1}
HISTORIES = """
EPOCH = {epoch}
FIRST = ("first version",)
DATA: tuple = FIRST
TRAINING: tuple = {training}
MODELS: dict = {{**dict.fromkeys(("mlp", "cnn"), FIRST){models}}}
SOURCES: dict = dict.fromkeys(("csv",), FIRST)
HISTORIES = {{"data": DATA, "training": TRAINING, **MODELS, **SOURCES}}
"""


def results(**values: Any) -> dict[str, Result]:
    """Return a project's results: a dataset, a training on it, its evaluation."""
    chain = [("data", []), ("train", ["data a"]), ("evaluate", ["train a"])]
    environment = values.pop("environment", {"numpy": "2"})
    dataset = values.pop("dataset", {})
    found = [
        Result(
            stage=stage,
            case="a",
            identity={"environment": environment, **(dataset if stage == "data" else {})},
            inputs=inputs,
            values={"value": values.get(stage, 1)},
        )
        for stage, inputs in chain
    ]
    return {result.key: result for result in found}


EACH = {key: {"training": 1} for key in results()}


def test_equal_values_pass() -> None:
    verdict = compare(results(), results(), EACH)
    assert verdict.failures == []
    assert verdict.compared == ["data a", "train a", "evaluate a"]


def test_other_values_fail_and_name_stage_case_value_history_and_what_follows() -> None:
    verdict = compare(results(), results(train=2, evaluate=3), EACH)
    (sentence,) = verdict.failures
    assert sentence.startswith(
        "train a has other values than before and the same result version: value: 1 -> 2, and 1 "
    )
    assert f"add a line to the history training in {VERSIONS}" in sentence


def test_a_result_that_is_missing_fails() -> None:
    old = results()
    del old["evaluate a"]
    (sentence,) = compare(old, results(), EACH).failures
    assert sentence.startswith("evaluate a ")


def test_only_results_of_the_same_version_are_compared() -> None:
    assert compare(results(), results(train=2), {"data a": {"data": 1}}).failures == []


@pytest.mark.parametrize("changed", [{"environment": {"numpy": "3"}}, {"dataset": {"code": "b"}}])
def test_other_packages_and_another_dataset_give_other_results(changed: dict[str, Any]) -> None:
    verdict = compare(results(), results(train=2, **changed), EACH)
    assert verdict.failures == []
    assert "train a" in verdict.apart


def test_results_come_back_from_the_cache() -> None:
    assert from_json(to_json(results())) == results()


# ---- when a line was added


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose first commit has the first version of each history."""
    run_git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for key, value in (("user.name", "a"), ("user.email", "a@b.c")):
        run_git(tmp_path, "config", key, value)
    commit(tmp_path)
    return tmp_path


def commit(repository: Path, training: str = "FIRST", models: str = "", epoch: int = 0) -> str:
    """Commit histories, and return the commit."""
    path = repository / VERSIONS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HISTORIES.format(training=training, models=models, epoch=epoch))
    (repository / "requirements.lock").touch()
    run_git(repository, "add", "--all")
    run_git(repository, "commit", "--quiet", "--allow-empty", "--message=x")
    return run_git(repository, "rev-parse", "HEAD").strip()


BUMPED = '(*FIRST, "fsdp sums in another order")'


def test_a_case_that_a_line_concerns_is_compared_with_the_lines_commit(repository: Path) -> None:
    first = run_git(repository, "rev-parse", "HEAD").strip()
    bumped = commit(repository, BUMPED)
    commit(repository, BUMPED)
    bumps = Bumps(repository)
    assert bumps.last(FSDP) == bumped
    # outside the line's predicate: with the version before it, so that a change with the bump shows
    assert bumps.last(DDP) == first


def test_a_line_that_is_written_in_another_way_stays_the_commit_that_added_it(
    repository: Path,
) -> None:
    bumped = commit(repository, BUMPED)
    commit(repository, BUMPED.replace(", ", ",\n    "))
    assert Bumps(repository).last(FSDP) == bumped


def test_models_have_lines_of_their_own(repository: Path) -> None:
    first = run_git(repository, "rev-parse", "HEAD").strip()
    bumped = commit(repository, models=f', "cnn": {BUMPED}')
    assert Bumps(repository).last({"training": 1, "cnn": 2}) == bumped
    assert Bumps(repository).last({"training": 1, "mlp": 1}) == first


def test_a_project_is_compared_with_no_commit_that_does_not_take_its_config(
    repository: Path,
) -> None:
    takes = commit(repository)
    bumps = Bumps(repository)
    assert bumps.last(DDP, since=takes[:12]) == takes
    bumped = commit(repository, BUMPED)
    assert Bumps(repository).last(FSDP, since=takes) == bumped


def test_a_bump_on_a_branch_counts_from_its_merge(repository: Path) -> None:
    run_git(repository, "checkout", "--quiet", "-b", "side")
    on_branch = commit(repository, BUMPED)
    run_git(repository, "checkout", "--quiet", "main")
    run_git(repository, "merge", "--quiet", "--no-ff", "side", "--message=merge")
    merge = run_git(repository, "rev-parse", "HEAD").strip()
    assert Bumps(repository).last(FSDP) == merge != on_branch


def test_a_line_that_is_not_committed_has_no_earlier_side(repository: Path) -> None:
    assert Bumps(repository).last(FSDP) is None


def test_histories_that_start_again_are_compared_from_there_on(repository: Path) -> None:
    commit(repository, BUMPED, models=f', "cnn": {BUMPED}')
    run_git(repository, "checkout", "--quiet", "-b", "side")
    commit(repository, epoch=1)
    path = repository / VERSIONS
    assert Bumps(repository).last(DDP) != run_git(repository, "rev-parse", "main").strip()
    run_git(repository, "checkout", "--quiet", "main")
    path.write_text(HISTORIES.format(training="FIRST", models="", epoch=1))
    assert Bumps(repository).last(DDP) is None  # that they start again is not committed yet
    run_git(repository, "checkout", "--quiet", ".")
    run_git(repository, "merge", "--quiet", "--no-ff", "side", "--message=merge")
    start = run_git(repository, "rev-parse", "HEAD").strip()
    commit(repository, models=f', "cnn": {BUMPED}', epoch=1)
    assert Bumps(repository).last(DDP) == start
    bumped = commit(repository, BUMPED, models=f', "cnn": {BUMPED}', epoch=1)
    assert Bumps(repository).last(FSDP) == bumped
    assert Bumps(repository).last({"training": 1, "mlp": 1, "data": 1}) == start


def test_missing_history_is_an_error(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit(repository, BUMPED)
    clone = tmp_path_factory.mktemp("clone")
    command = ["git", "clone", "--quiet", "--depth=1", f"file://{repository}", str(clone)]
    subprocess.run(command, check=True)
    with pytest.raises(HistoryError, match="git fetch --unshallow"):
        Bumps(clone).last(FSDP)


def test_changes_of_code_and_locks_are_seen_before_they_are_committed(repository: Path) -> None:
    bumps, head = Bumps(repository), run_git(repository, "rev-parse", "HEAD").strip()
    (repository / "README.md").write_text("other\n")
    assert not bumps.has_changed(head)
    (repository / "src/new.py").touch()
    assert bumps.has_changed(head)
    (repository / "src/new.py").unlink()
    (repository / "requirements.lock").write_text("numpy==3\n")
    assert bumps.has_changed(head)
