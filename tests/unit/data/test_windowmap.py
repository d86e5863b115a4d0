"""Windows of any number of shards and any size of rows equal plain NumPy, within the machine's limits."""

import os
import re
import resource
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data import addresses, capacity, windowmap
from shardline.data.capacity import Capacity
from shardline.data.shard_format import ShardLayout
from shardline.data.shard_map import ShardMap
from shardline.data.stream import ShardStream
from shardline.errors import DataError
from shardline.records.datasets import DatasetSchema, Shard
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import split_pieces
from shardline_io.order.sampling import TrainOrder
from tests.support.columns import bare_manifest

SPLITS = ("train", "validation", "test")


class Data:
    """Shards of random rows on disk, and the same rows as NumPy arrays.

    Args:
        rows: by shard, its rows of each split.
        times: how often the manifest names each file, for numbers of shards that no test writes.
    """

    def __init__(self, folder, rows, shape=(6,), dtype="float32", times=1):
        self.folder, generator = folder, np.random.default_rng(3)
        schema = DatasetSchema(
            task="regression", classes=[], feature_shape=[*shape], feature_dtype=dtype
        )
        records, self.features, self.labels, self.ids = [], [], [], []
        for shard, counts in enumerate(rows):
            layout, total = ShardLayout.of(schema, sum(counts)), sum(counts)
            features = generator.integers(0, 256, (total, *shape), np.uint8).astype(dtype)
            labels = generator.random(total, dtype=np.float32)
            ids = 1000 * shard + np.arange(total)
            name = f"shard-{shard:05d}.safetensors"
            content = layout.header(shard) + b"".join(a.tobytes() for a in (features, labels, ids))
            (folder / name).write_bytes(content)
            self.features.append(features), self.labels.append(labels), self.ids.append(ids)
            counted = dict(zip(SPLITS, counts, strict=True))
            records.append(Shard(file=name, rows=counted, bytes=len(content), blake3=""))
        self.manifest = bare_manifest(schema=schema, shards=records * times)
        self.num_files = len(rows)

    def train_order(self, **options):
        pieces = split_pieces([one.rows for one in self.manifest.shards], "train")
        return TrainOrder(dataset_id="odd-0123456789ab", pieces=pieces, seed=1, **options)

    def window(self, window):
        """Return features, labels and ids of a window's batches, from the arrays."""
        columns = [
            np.concatenate(
                [column[p.shard % self.num_files][p.first : p.last] for p in window.pieces]
            )
            for column in (self.features, self.labels, self.ids)
        ]
        edges = window.bounds[1:-1]
        return zip(*(np.split(column[window.rows], edges) for column in columns), strict=True)


def check_epoch(data, stream, order, epoch, start=0):
    """Compare the batches of an epoch with the arrays', and count the mapped files on the way."""
    most, first = 0, 0
    batches = stream.batches(epoch, start)
    for index in range(-(-order.num_batches(epoch) // order.batches_per_window())):
        window = order.window(epoch, index)
        for place, expected in enumerate(data.window(window), first):
            if place < start:
                continue
            features, labels, *weights = next(batches)
            assert np.array_equal(features.numpy(), expected[0])
            assert np.array_equal(labels.numpy(), expected[1])
            real = weights[0].numpy() > 0 if weights else slice(None)
            assert np.array_equal(stream.batch_ids, expected[2][real])
        most = max(most, Path("/proc/self/maps").read_text().count(str(data.folder)))
        first += len(window.bounds) - 1
    assert next(batches, None) is None
    return most


def most_files(data, order, epochs):
    """Return the most files that two windows in a row need, or all of a split that is one window."""
    row_bytes = ShardMap(data.manifest, data.folder).row_bytes
    windows = [
        order.window(epoch, index).pieces
        for epoch in range(epochs)
        for index in range(-(-order.num_batches(epoch) // order.batches_per_window()))
    ]
    spans = [windowmap._spans(window).values() for window in windows]
    counts = [sum(windowmap.is_mapped(span, row_bytes) for span in window) for window in spans]
    pairs = [sum(pair) for pair in zip(counts, counts[1:] + counts[:1], strict=True)]
    return max(
        *pairs,
        sum(windowmap.is_mapped(piece, row_bytes) for piece in order.pieces)
        if (sum(p.last - p.first for p in order.pieces) <= order.window_rows)
        else 0,
    )


@settings(max_examples=50, deadline=None, print_blob=True)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12),
    shape=st.sampled_from([(), (1,), (7,), (3, 5), (1023,), (4096,), (4099,), (3, 101, 31)]),
    dtype=st.sampled_from(["uint8", "float32", "int16"]),
    window_rows=st.integers(1, 400), global_batch=st.sampled_from([1, 4, 12]),
    streams=st.sampled_from([1, 2, 4]), is_padded=st.booleans(), start=st.integers(0, 3),
    page=st.sampled_from([4096, 16384, 65536]), place=st.integers(0, 3),
    copied=st.sampled_from([0, 300, 65536]),
)  # fmt: skip
def test_streams_equal_numpy_and_map_no_more_than_the_windows_in_use(
    rows, shape, dtype, window_rows, global_batch, streams, is_padded, start, page, place, copied
):
    """Random shards, rows, windows, batches, and page sizes of 4, 16 and 64 KiB."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        strides = addresses.strides
        patch.setattr(addresses, "PAGE_BYTES", page)
        patch.setattr(windowmap, "COPIED_BYTES", copied)
        patch.setattr(addresses, "strides", lambda *of: strides(*of)[place:])
        data = Data(Path(folder), rows, shape, dtype)
        held_out = HeldOutOrder(
            pieces=split_pieces([one.rows for one in data.manifest.shards], "validation"),
            global_batch=global_batch,
            window_rows=window_rows,
        )
        try:
            order = data.train_order(
                global_batch=global_batch if streams == 1 else 12, window_rows=window_rows,
                streams=streams, is_padded=is_padded,
            )  # fmt: skip
        except DataError:  # fewer rows than a batch
            order = held_out
        shards = ShardMap(data.manifest, data.folder)
        train, validation = ShardStream(shards, order), ShardStream(shards, held_out)
        most = [check_epoch(data, train, order, 0, min(start, order.num_batches(0) - 1))]
        most += [check_epoch(data, validation, held_out, visit) for visit in (0, 1)]
        most += [check_epoch(data, train, order, epoch) for epoch in (1, 2)]
        # the third epoch's read-ahead goes into a fourth
        assert max(most) <= most_files(data, order, 4) + most_files(data, held_out, 1)


@pytest.mark.parametrize(
    ("shape", "num_shards"), [((3, 299, 299), 6000), ((3, 1023, 1023), 600), ((10_000_001,), 200)]
)
@pytest.mark.parametrize("page", [4096, 65536])
def test_rows_of_odd_sizes_leave_addresses_for_any_number_of_shards(
    tmp_path, monkeypatch, shape, num_shards, page
):
    """Today's limits were 5,390, 460 and 144 shards of such rows, at pages of 4 KiB."""
    monkeypatch.setattr(addresses, "PAGE_BYTES", page)
    data = Data(tmp_path, [(3, 0, 0)], shape, "uint8", times=num_shards)
    order = data.train_order(global_batch=2, window_rows=8)
    stream = ShardStream(ShardMap(data.manifest, tmp_path), order)
    expected = data.window(order.window(0, 0))
    for (features, _), (rows, *_) in zip(stream.batches(), expected, strict=False):
        assert np.array_equal(features.numpy(), rows)


def test_large_files_may_come_in_huge_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(addresses, "huge_pages_are_kept", lambda: True)
    data = Data(tmp_path, [(1500, 0, 0)], (2000,), "uint8")
    order = data.train_order(global_batch=100, window_rows=1500)
    stream = ShardStream(ShardMap(data.manifest, tmp_path), order)
    for (features, _), (rows, *_) in zip(
        stream.batches(), data.window(order.window(0, 0)), strict=True
    ):
        assert np.array_equal(features.numpy(), rows)


def claim(shards, order):
    Capacity(shards).claim(order.pieces, order.window_rows, order.global_batch)


@pytest.mark.rotating
def test_a_million_shards_are_streamed(tmp_path):
    data = Data(tmp_path, [(4 + n, 1, 1) for n in range(8)], times=125_000)
    shards = ShardMap(data.manifest, tmp_path)
    order = data.train_order(global_batch=64, window_rows=6400)
    claim(shards, order)
    batches = ShardStream(shards, order, num_epochs=1).batches(start=40_000)
    for index in (400, 401):
        for rows, labels, _ in data.window(order.window(0, index)):
            features, found = next(batches)
            assert np.array_equal(features.numpy(), rows)
            assert np.array_equal(found.numpy(), labels)


def test_seventy_thousand_very_small_shards_in_one_window_need_no_mapping(tmp_path):
    data = Data(tmp_path, [(4, 1, 1)] * 2, times=35_000)
    order = data.train_order(global_batch=64, window_rows=1 << 20)
    shards = ShardMap(data.manifest, tmp_path)
    claim(shards, order)
    stream = ShardStream(shards, order)
    for (features, _), (rows, *_) in zip(
        stream.batches(), data.window(order.window(0, 0)), strict=True
    ):
        assert torch.equal(features, torch.from_numpy(rows))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


# -- limits -------------------------------------------------------------------------------------


@contextmanager
def limited(kind, soft):
    """Lower a soft limit of this process."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (int(soft), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def fitting_window(data, window_rows):
    """Return the rows of the largest window that the refusal names, and the refusal."""
    shards = ShardMap(data.manifest, data.folder)
    with pytest.raises(DataError) as refused:
        claim(shards, data.train_order(global_batch=4, window_rows=window_rows))
    found = re.search(r"lower data.window_bytes to (\d+), ", str(refused.value))
    return int(found[1]) // (shards.row_bytes + 8), str(refused.value)


def test_more_mappings_than_the_kernel_allows_are_refused_with_the_number_that_fits(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(capacity, "_most_entries", lambda: 8000)
    count = capacity._used_entries  # which a thread or the allocator changes at any time
    now = count()
    monkeypatch.setattr(capacity, "_used_entries", lambda: now)
    data = Data(tmp_path, [(5, 0, 0)], (20_000,), "uint8", times=9000)
    rows, message = fitting_window(data, window_rows=45_000)
    assert re.search(
        r"dataset odd-0123456789ab: windows of 900,360,000 bytes keep up to 9,004 files mapped, expected at most "
        r"[\d,]+ under vm.max_map_count=8,000; lower data.window_bytes to \d+, split the data into fewer shards, or "
        r"run `sysctl -w vm.max_map_count=\d+`",
        message,
    )
    order = data.train_order(global_batch=4, window_rows=rows)
    shards = ShardMap(data.manifest, tmp_path)
    claim(shards, order)
    used, most = count(), 0
    for index, _ in enumerate(ShardStream(shards, order, num_epochs=1).batches()):
        if index % 200 == 0:
            most = max(most, count() - used)
    assert 1000 < most < 8000
    with pytest.raises(DataError):
        claim(shards, data.train_order(global_batch=4, window_rows=rows + 40))


def test_the_limit_of_this_machine_is_read():
    assert capacity._most_entries() == int(Path("/proc/sys/vm/max_map_count").read_text())
    assert capacity._used_entries() > 50


def test_less_address_space_than_windows_need_is_refused_with_the_number_that_fits(tmp_path):
    data = Data(tmp_path, [(64, 0, 0)], (1023, 64), "uint8", times=400)
    with limited(resource.RLIMIT_AS, capacity._used_bytes() + (512 << 20)):
        rows, message = fitting_window(data, window_rows=64 * 300)
        assert "bytes of addresses, expected at most " in message
        assert "; split the data" not in message
        order = data.train_order(global_batch=64, window_rows=rows)
        shards = ShardMap(data.manifest, tmp_path)
        claim(shards, order)
        first = next(ShardStream(shards, order).batches())[0]
    assert np.array_equal(first.numpy(), next(data.window(order.window(0, 0)))[0])


def test_too_few_open_files_are_refused_by_their_limit(tmp_path):
    data = Data(tmp_path, [(8, 0, 0)])
    capacity_of = Capacity(ShardMap(data.manifest, tmp_path))
    used = len(list(Path("/proc/self/fd").iterdir()))
    with (
        limited(resource.RLIMIT_NOFILE, used + 6),
        pytest.raises(
            DataError,
            match=r"files are open, expected at most .* under `ulimit -n \d+` .* raise the limit to \d+",
        ),
    ):
        capacity_of.claim(split_pieces([one.rows for one in data.manifest.shards], "train"), 4, 4)


def test_a_limit_of_the_machine_is_no_fault_of_a_shard(tmp_path):
    """Open files run out while a shard is read: no repair would help."""
    data = Data(tmp_path, [(8, 0, 0)])
    shards = ShardMap(data.manifest, tmp_path)
    free = os.dup(0)
    os.close(free)
    with (
        limited(resource.RLIMIT_NOFILE, free),
        pytest.raises(
            DataError,
            match=r"shard-00000.safetensors cannot be read \(Too many open files\); raise .*`ulimit -n`",
        ),
    ):
        windowmap.WindowMap(
            shards, split_pieces([one.rows for one in data.manifest.shards], "train")
        )
    memory = shards.unreadable(0, OSError(12, "Cannot allocate memory"))
    assert "raise vm.max_map_count" in str(memory)
    assert "repair" not in str(memory)
