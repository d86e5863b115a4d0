"""Mutants: what is changed, what is left alone, and where a mutated module takes its place."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard import driver
from tests.guard.mutants import MODULES, Mutant, files_of, mutants_of
from tests.support.workspace import REPOSITORY

CODE = '''"""Text of 1 < 2."""

LIMIT = 3


def f(x: int = 4) -> int:
    """Text."""
    print("words", x + 1)
    if x is None:
        raise ValueError(f"{x + 1} is not {LIMIT}")
    if x < LIMIT:
        pass
    work(x, 5)
    return x
'''


@pytest.fixture
def mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mutant]:
    monkeypatch.setattr(driver, "SRC", tmp_path)
    path = tmp_path / "shardline" / "made.py"
    path.parent.mkdir()
    path.write_text(CODE)
    return [make() for make in mutants_of(path)]


def test_each_change_is_made_alone_and_words_stay(mutants: list[Mutant]) -> None:
    found = {mutant.what for mutant in mutants if mutant.line not in (6, 9)}
    assert found == {
        "3 -> 2", "3 -> 4", "5 -> 4", "5 -> 6", "return x -> return", "work(x, 5) -> work(5, x)",
        "x < LIMIT -> x <= LIMIT", "if x < LIMIT: -> if not x < LIMIT:",
    }  # fmt: skip
    texts = {ast.unparse(mutant.tree) for mutant in mutants}
    assert len(texts) == len(mutants)
    assert all("print('words', x + 1)" in text for text in texts)


def test_lines_are_those_of_the_statement_and_none_at_import(mutants: list[Mutant]) -> None:
    places = {mutant.what: (mutant.first, mutant.last) for mutant in mutants}
    assert places["3 -> 4"] == (0, 0)
    assert places["x < LIMIT -> x <= LIMIT"] == (11, 11)


def test_every_module_is_there_and_has_mutants() -> None:
    assert all(
        list(mutants_of(path))
        for name in MODULES
        for path in files_of(name)
        if path.stem != "__init__"
    )


LEARNING = """
import json, shutil, sys
from pathlib import Path
from tests.guard.mutants import CASES, Cases, Unit, driver

folder = Path(sys.argv[1])
shutil.copytree(CASES / "format-1/single", folder / "single")
cases = Cases(folder)
assert driver.forked(lambda: cases._list("single", folder / "runs.json")) == 0
run, dataset = next(iter(json.loads((folder / "runs.json").read_text()).items()))
for unit in (Unit("single", "data", dataset), Unit("single", "train", run)):
    cases._learn(unit, frozenset({str(driver.SRC / "shardline/data/build.py")}))
print([len(known.values) for known in cases.known.values()])
print([any(known.lines.values()) for known in cases.known.values()])
"""


@pytest.mark.rotating
def test_a_dataset_and_a_run_are_made_and_traced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEARNING, str(tmp_path)]
    env = os.environ | {"PYTHONHASHSEED": "0"}  # its forks are ranks, which ask for it
    done = subprocess.run(
        command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, values, traced = done.stdout.splitlines()
    assert min(json.loads(values)) > 0
    assert traced == "[True, False]"  # a training builds no shard
