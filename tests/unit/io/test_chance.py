"""The generator of a sample: a function of its key, independent of its neighbours'."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardline_io.order.chance import generator_of

WORD = st.integers(0, 2**63 - 1)
KEY = st.tuples(WORD, WORD, WORD, st.integers(-(2**63), 2**63 - 1))


@given(KEY, KEY)
def test_numbers_are_a_function_of_the_key(key, other):
    first = generator_of(*key).integers(2**63, size=4)
    second = generator_of(*other).integers(2**63, size=4)
    assert (generator_of(*key).integers(2**63, size=4) == first).all()
    assert (key == other) == (first == second).all()


@given(KEY)
def test_nothing_is_left_of_the_sample_before(key):
    first = generator_of(*key).random(3, dtype=np.float32)  # of 32 bits: a half may be left over
    generator_of(0, 0, 0, 0).random(1, dtype=np.float32)
    assert (generator_of(*key).random(3, dtype=np.float32) == first).all()


def test_the_published_numbers_stay():
    assert generator_of(3, 1, 2, 77).random(2).tolist() == [0.06503057797045575, 0.5731192702215513]


def test_threads_do_not_disturb_each_other():
    def numbers(row: int) -> list[float]:
        generator = generator_of(1, 0, 0, row)
        return [generator.random() for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(numbers, range(40))) == [numbers(row) for row in range(40)]


def test_numbers_of_neighbours_are_not_correlated():
    """First draws of neighbouring rows, passes, parts and seeds: mean, and correlation with the next."""
    count = 4_000
    for place in range(4):
        keys = np.zeros((count, 4), np.int64)
        keys[:, place] = np.arange(count)
        draws = np.array([generator_of(*map(int, key)).random() for key in keys])
        assert abs(draws.mean() - 0.5) < 5 / np.sqrt(12 * count)
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / np.sqrt(count)
