"""Generated projects, truly run before and after an edit: another value, another digest."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from shardline.identity import CodeIndex
from shardline.identity.user_code import reach
from tests.support.campaigns import campaign_seed
from tests.support.imported import Interpreter
from tests.support.reached_packages import edited, project, write

CASES = int(os.environ.get("SHARDLINE_CASES", "350"))
LEAST_CHANGED = 0.2  # a share below which the generator would prove little
SHOWN = 5


def observed(folder: Path, interpreter: Interpreter, files: dict[str, str]) -> tuple[str, object]:
    """Return what `app.call()` gives, and what its identity would hold."""
    root = write(folder, files)
    code = reach(CodeIndex((root,)), "app:call")
    value = interpreter.call("app", [root])
    shutil.rmtree(folder)
    return value, (code.digest, code.third_party)


@pytest.mark.parametrize("number", [campaign_seed()], ids="seed={}".format)
def test_another_value_has_another_digest(
    memory_folder: Path, interpreter: Interpreter, number: int, record_property: Callable[[str, object], None]
) -> None:  # fmt: skip
    """No other value has an equal digest; what is stale without need, or fails now, is counted."""
    found: Counter[str] = Counter()
    failures = []
    for case in range(CASES):
        rng = random.Random(f"{number} {case}")
        before, names = project(rng)
        after, kinds = edited(before, rng)
        old, new = (
            observed(memory_folder / "case", interpreter, files) for files in (before, after)
        )
        if old[0].endswith("Error"):  # which has no result that could be taken for the new one
            found["error before"] += 1
            continue
        value = "equal" if old[0] == new[0] else "other"
        digest = "equal" if old[1] == new[1] else "other"
        found[f"{value} value, {digest} digest"] += 1
        if (value, digest) == ("other", "equal") and new[0].endswith("Error"):
            # code that cannot be imported any more has no other result that is wrongly kept
            found["fails now, equal digest"] += 1
        elif (value, digest) == ("other", "equal"):
            failures.append(_shown(case, kinds, names, before, after, old[0], new[0]))
        if (value, digest) == ("equal", "other"):
            found[f"stale by {kinds}"] += 1
    print(f"seed {number}, {CASES} cases: {dict(found)}")
    for name, count in found.items():
        record_property(name, count)
    assert not failures, f"{len(failures)} false fresh\n" + "\n".join(failures[:SHOWN])
    assert found["other value, other digest"] >= LEAST_CHANGED * CASES


def _shown(
    case: int, kinds: str, names: list[str], before: dict[str, str], after: dict[str, str],
    old: str, new: str,
) -> str:  # fmt: skip
    lines = [f"--- case {case}, {kinds}, of {names}: {old} became {new}"]
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name, ""), after.get(name, "")
        lines.append(f"# {name}\n{one}" + (f"# {name} afterwards\n{other}" if one != other else ""))
    return "\n".join(lines)
