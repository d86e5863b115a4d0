"""A machine's clock that jumps in mid-training, by hours and both ways; libfaketime stands between."""

from pathlib import Path

import pytest

from tests.support.needs import require
from tests.support.processes import end_of_ranks, rank_environment, wait_until
from tests.support.rotation import rotating

pytestmark = pytest.mark.fault

HOUR_S = 3600


@pytest.mark.parametrize("hours", [-5, *rotating(3)])
@pytest.mark.rotating
def test_a_clock_that_jumps_changes_no_bit_and_no_duration(gated, tmp_path, hours):
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    require(found, "libfaketime is missing (apt-get install faketime)")
    offset = tmp_path / "offset"
    offset.write_text("+0")
    faulted = gated()
    environment = {
        **rank_environment(), "LD_PRELOAD": str(found[0]), "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    process = faulted.start_by_hand(environment)
    wait_until(faulted.is_reached, process)
    offset.write_text(f"{hours * HOUR_S:+d}")
    (tmp_path / "go").touch()
    output = end_of_ranks(process, 300)
    assert process.returncode == 0, output
    faulted.is_as_unbroken()
    goodput = faulted.ranks.provenance("run")["goodput"]
    parts = [seconds for seconds in goodput["parts"].values() if seconds is not None]
    assert min(parts) >= 0
    assert 0 < goodput["elapsed_s"] < HOUR_S
    assert sum(parts) == pytest.approx(goodput["elapsed_s"], rel=0.02)
