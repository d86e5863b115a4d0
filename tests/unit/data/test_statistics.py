"""Statistics of features: near the exact ones whatever the numbers are, and merged in one order."""

import msgspec
import numpy as np
import pytest

from shardline.data import moments
from shardline.data.moments import Moments, RunningMoments
from shardline.data.statistics import Statistics, merge_all, merge_siblings
from shardline.records.datasets import PartStatistics

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal((3000, 7))


def of(values, dtype):
    return pytest.param(
        np.asarray(values).astype(dtype), id=f"{dtype}-{np.max(np.abs(values)):.0e}"
    )


OUTLIER = np.where(np.arange(3000)[:, None] == 0, 1e6, NORMAL)
FEATURES = [
    of(NORMAL, "float32"),
    of(NORMAL, "float64"),
    of(NORMAL + 5, "float16"),
    of(1e6 + NORMAL, "float32"),  # a deviation of 1 on a mean of a million
    of(1e6 + NORMAL, "float64"),
    of(1e9 + NORMAL, "float64"),
    of(np.sort(NORMAL * 1e3, axis=0), "float32"),  # each block far from the others
    of(OUTLIER, "float32"),
    of(NORMAL * 1e-25, "float32"),  # squares that float32 cannot hold
    of(NORMAL * 1e25, "float32"),
    of(RNG.integers(0, 256, (3000, 64)), "uint8"),
    of(RNG.integers(-(2**31), 2**31, (3000, 3)), "int32"),
    of(RNG.random((3000, 5)) < 0.3, "bool"),
    of(NORMAL[:1], "float32"),
    of(RNG.standard_normal((70, 50_000)), "float32"),  # rows wider than the cache
]


@pytest.mark.parametrize("features", FEATURES)
def test_moments_are_those_of_long_double(features):
    """Means to 1e-6 of a deviation, deviations to 2e-6 of themselves."""
    exact = features.astype(np.longdouble)
    mean, std = exact.mean(axis=0), exact.std(axis=0)
    found = Moments.of(features).summary()
    assert found.count == len(features)
    assert (np.abs(found.mean - mean) <= 1e-6 * std + 1e-15 * np.abs(mean)).all()
    assert (np.abs(found.std - std) <= 2e-6 * std).all()
    assert (found.min == exact.min(axis=0)).all()
    assert (found.max == exact.max(axis=0)).all()


@pytest.mark.parametrize("number", [2, 30], ids=["in turn", "in threads"])
@pytest.mark.parametrize("features", FEATURES)
def test_parts_of_wide_rows_have_the_bits_of_the_whole(features, number, monkeypatch):
    wide = np.tile(features[:200], (1, -(-2000 // features.shape[1])))
    before, blocks = Moments.of(wide[:50]), (wide[50:90], wide[90:])
    found = []
    for part_bytes in (wide.nbytes * 16, wide.shape[1] * 32 // number):
        monkeypatch.setattr(moments, "_PART_BYTES", part_bytes)
        running = RunningMoments()
        for block in blocks:
            if len(block):
                running.add(block)
        whole = before.with_running(running)
        found.append(
            whole and [of.tobytes() for name, of in vars(whole).items() if name != "count"]
        )
    assert found[0] == found[1]
    if whole:
        assert whole.count == len(wide)
        one = before.merge(running.total()) if running.count else before
        assert np.array_equal(whole.mean, one.mean)


@pytest.mark.parametrize("value", [0.1, 1e-30, 16_777_217.0, -3e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_feature_has_no_deviation_at_all(value, dtype):
    features = np.full((1000, 2), value, dtype=dtype)
    found = Moments.of(features).summary()
    assert found.std.tolist() == [0.0, 0.0]
    assert found.mean.tolist() == [features[0, 0]] * 2


def test_merged_moments_equal_those_of_the_whole():
    features = RNG.normal(1e4, 3, (1000, 4)).astype(np.float32)
    cuts = ((0, 0), (0, 1), (1, 1), (1, 700), (700, 1000))
    merged = Moments.of(features[:0])
    for first, stop in cuts:
        merged = merged.merge(Moments.of(features[first:stop]))
    found = merged.summary()
    assert found.count == 1000
    assert found.mean == pytest.approx(features.mean(0, dtype=np.float64), rel=1e-12)
    assert found.std == pytest.approx(features.std(0, dtype=np.float64), rel=1e-6)
    assert found.max == pytest.approx(features.max(0))


def shards(count):
    return [
        Statistics(
            first=shard,
            stop=shard + 1,
            moments={"features": Moments.of(RNG.standard_normal((20 + shard, 3)).astype("f4"))},
            class_counts={"train": [shard, 1]},
        )
        for shard in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 13, 64])
def test_statistics_are_the_same_to_the_bit_however_the_shards_were_cut_into_parts(count):
    items = shards(count)
    expected = msgspec.json.encode(merge_all(items).to_record())
    for step in (1, 2, 3, 5, 16, 64):
        parts = [merge_siblings(items[first : first + step]) for first in range(0, count, step)]
        written = [msgspec.json.encode(s.to_record()) for p in parts for s in p]
        read = [
            Statistics.of_record(msgspec.json.decode(one, type=PartStatistics)) for one in written
        ]
        assert msgspec.json.encode(merge_all(read).to_record()) == expected


def test_a_part_of_many_shards_keeps_few_statistics():
    items = shards(100)
    assert len(merge_siblings(items[:64])) == 1
    assert len(merge_siblings(items[1:64])) == 6
    assert sum(item.moments["features"].count for item in merge_siblings(items)) == sum(
        range(20, 120)
    )
