"""The sample ledger after any chain of attempts has the samples of the attempts that count."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from shardline.checkpoints.continuing import cut_ledger
from shardline.ledger import read_ledger
from shardline_io.ledger_files import open_file

LAST = 8


@st.composite
def attempts(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw the first and last step and the number of ranks of each attempt; the last one ends the training.

    An attempt resumes from a state of an earlier one, also from an older state than the attempt before.
    """
    found, reached = [], 0
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, reached))
        reached = draw(st.integers(start, LAST - 1))
        found.append((start, reached, draw(st.integers(1, 3))))
    return [*found, (draw(st.integers(0, reached)), LAST, draw(st.integers(1, 3)))]


@given(chain=attempts(), cut=st.integers(0, LAST))
def test_the_ledger_has_the_samples_of_the_attempts_that_count(
    chain: list[tuple[int, int, int]], cut: int
) -> None:
    expected: dict[int, list[int]] = {}
    with TemporaryDirectory() as folder:
        for number, (start, end, world_size) in enumerate(chain):
            for rank in range(world_size):
                with open_file(Path(folder), start=start, rank=rank, world_size=world_size) as file:
                    for step in range(start + 1, end + 1):
                        line = {"step": step, "epoch": 0, "ids": [100 * number + rank]}
                        print(json.dumps(line), file=file)
            expected = {step: rows for step, rows in expected.items() if step <= start}
            ids = [100 * number + rank for rank in range(world_size)]
            expected |= dict.fromkeys(range(start + 1, end + 1), ids)
        assert read_ledger(folder) == expected
        cut_ledger(Path(folder), cut)
        texts = [path.read_text() for path in Path(folder).iterdir()]
        assert all(json.loads(line)["step"] <= cut for text in texts for line in text.splitlines())
        assert read_ledger(folder) == {step: rows for step, rows in expected.items() if step <= cut}
