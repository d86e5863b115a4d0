"""Generated projects, imported truly before and after an edit: other values have other digests."""

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.campaigns import campaign_seed
from tests.support.code_digest import digest
from tests.support.imported import Interpreter
from tests.support.small_packages import edits, projects, write

CASES = int(os.environ.get("SHARDLINE_CASES", "300"))
# A share below which the generator would prove little.
LEAST_CHANGED = 0.1


# The test's id shows the seed; SHARDLINE_SEED and SHARDLINE_CASES give others.
@pytest.mark.parametrize("number", [campaign_seed()], ids="seed={}".format)
def test_another_value_has_another_digest(
    memory_folder: Path, interpreter: Interpreter, number: int,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    """False fresh: none. False stale (another digest, the same value) is counted and reported."""
    found: Counter[str] = Counter()
    places = (memory_folder / str(i) for i in itertools.count())

    @seed(number)
    @settings(
        max_examples=CASES, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(st.data())
    def campaign(data: st.DataObject) -> None:
        entry, before = data.draw(projects(), label="before")
        after = data.draw(edits(before, entry), label="after")
        place = next(places)
        told = []
        for files in (before, after):
            roots = write(place, files)
            told.append((interpreter.call(entry, roots), digest(entry, roots)))
            shutil.rmtree(place)
        (old_value, old_digest), (new_value, new_digest) = told
        same = "equal" if old_value == new_value else "other"
        found[f"{same} value, {'equal' if old_digest == new_digest else 'other'} digest"] += 1
        found["imported"] += not old_value.endswith("Error")
        # a program that fails has no result that could be taken for the new one
        failed = old_value.endswith("Error")
        assert failed or old_value == new_value or old_digest != new_digest, (
            f"{entry} gives {old_value}, then {new_value}, and has one digest"
        )

    try:
        campaign()
    finally:
        print(f"seed {number}: {dict(found)}")
        for name, count in found.items():
            record_property(name, count)
    assert found["other value, other digest"] >= LEAST_CHANGED * CASES
