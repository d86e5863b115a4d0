"""Streams over real shards: right rows, bounded memory, reused buffers, exact resume, damage found."""

import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardline.config.settings.run_settings import Data, RunSettings
from shardline.core.files import write_json
from shardline.core.world import World
from shardline.data import stream as streaming
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.columns import Column
from shardline.data.datamodule import Normalizer, TrainLoader
from shardline.data.dataset import Dataset, read_manifest
from shardline.data.integrity import Verifier
from shardline.data.shard_map import ShardMap
from shardline.errors import DataError
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
SETTINGS = RunSettings(global_batch=24, seed=5, data=Data(window_bytes=2000))


class Numbered(Source):
    """Rows whose every feature and label tell the row's id."""

    def __init__(self, *, num_shards, shape=(3, 2), dtype="float32", rows=100):
        super().__init__(num_shards=num_shards)
        self.shape, self.dtype, self.rows = shape, dtype, rows

    @property
    def schema(self):
        return Schema(feature_shape=self.shape, feature_dtype=self.dtype, task="regression")

    def iter_tables(self, shard):
        rows = self.rows + 7 * shard  # shards differ in size
        ids = 1000 * shard + np.arange(rows)
        features = np.broadcast_to(ids.reshape(-1, *[1] * len(self.shape)), (rows, *self.shape))
        yield Table(ids=ids, features=features.astype(self.dtype), labels=ids)


def make(folder, num_shards=4, **options):
    """Build and seal a dataset; return its manifest's path."""
    source = Numbered(num_shards=num_shards, **options)
    part = describe_part("d", build_shards(source, range(num_shards), SHARES, folder), {})
    sealed = seal([part], dataset="table-0123456789ab", source=source, document={})
    write_json(folder / "manifest.json", encode(sealed))
    return folder / "manifest.json"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    return make(folder), folder


def world_of(rank=0, world_size=1):
    return World(
        rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size,
        master_addr="127.0.0.1", master_port=1, launcher="none",
    )  # fmt: skip


def loader_of(built, rank=0, world_size=1, verify="off", num_epochs=None, **change):
    dataset = Dataset(*built, verify=verify)
    of_data = {key: change.pop(key) for key in Data.__struct_fields__ if key in change}
    settings = replace(SETTINGS, **change, data=replace(SETTINGS.data, **of_data))
    order = dataset.train_order(settings, world_of(rank, world_size))
    return TrainLoader(dataset.stream(order, num_epochs=num_epochs), order)


def ids_of(loader, epoch=0):
    loader.set_epoch(epoch)
    return [loader.stream.batch_ids.tolist() for _ in loader]


def global_ids(ranks, epoch):
    steps = zip(*(ids_of(loader, epoch) for loader in ranks), strict=True)
    return [[row for part in step for row in part] for step in steps]


def test_batches_that_are_kept_are_not_overwritten(built):
    loader = loader_of(built)
    kept = [(features, loader.stream.batch_ids) for features, _ in loader]
    views = [features[3:5] for features, _ in loader_of(built)]
    for index, (features, ids) in enumerate(kept):
        assert (features.reshape(24, -1)[:, 0] == torch.from_numpy(ids)).all()
        assert (views[index].reshape(2, -1)[:, 0] == torch.from_numpy(ids[3:5])).all()


def test_buffers_are_used_again_once_a_batch_is_let_go(built):
    loader = loader_of(built, window_bytes=24 * 32)  # a block is one batch
    addresses = [features.untyped_storage().data_ptr() for features, _ in loader]
    assert len(addresses) > 10
    assert len(set(addresses)) <= 2


@given(
    acts=st.lists(
        st.tuples(
            st.integers(1, 9), st.sampled_from(["keep", "slice", "numpy", "drop", "drop all"])
        ),
        max_size=30,
    )
)
def test_memory_is_used_again_only_when_nothing_shows_it(acts):
    """Whatever is kept of a block, in whatever form, and on whatever interpreter."""
    memory = SimpleNamespace(gather=lambda name, rows, out: np.copyto(out, rows.reshape(-1, 1)))
    columns = {"x": Column(dtype="int64", shape=(3,))}
    shards = SimpleNamespace(columns=columns, made=columns, preprocessor=None)
    buffers, kept = streaming._Buffers(shards, pin=False), []
    for number, (rows, act) in enumerate(acts):
        block = buffers.gather(memory, "x", np.full(rows, number))
        assert (block == number).all()
        if act == "drop all":
            kept.clear()
        elif act != "drop":
            view = {"keep": block, "slice": block[-1:], "numpy": block[-1:].numpy()}[act]
            kept.append((number, view))
        del block
        for was, view in kept:
            assert (view == was).all()


def test_no_more_memory_is_kept_than_is_soon_used_again():
    memory = SimpleNamespace(gather=lambda name, rows, out: None)
    columns = {"x": Column(dtype="int64", shape=(3,))}
    shards = SimpleNamespace(columns=columns, made=columns, preprocessor=None)
    buffers = streaming._Buffers(shards, pin=False)
    blocks = [buffers.gather(memory, "x", np.zeros(8)) for _ in range(50)]
    assert len({block.data_ptr() for block in blocks}) == 50
    first = {block.data_ptr() for block in blocks}
    blocks.clear()
    assert len(buffers._free["x"]) <= 4
    for rows in (8, 5, 1, 8):
        assert buffers.gather(memory, "x", np.zeros(rows)).data_ptr() in first


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_resumed_epoch_continues_at_the_exact_sample_at_another_world_size(built, world_size):
    whole = ids_of(loader_of(built), epoch=2)
    first = loader_of(built, rank=1, world_size=2)
    first.set_epoch(2)
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = first.state_dict()
    assert state == {"epoch": 2, "samples": 5 * 24}
    ranks = [loader_of(built, rank=rank, world_size=world_size) for rank in range(world_size)]
    for loader in ranks:
        loader.load_state_dict(state)
    assert global_ids(ranks, epoch=2) == whole[5:]
    assert global_ids(ranks, epoch=3) == ids_of(loader_of(built), epoch=3)


def test_an_epoch_that_is_left_half_way_does_not_spoil_the_next(built):
    loader = loader_of(built)
    next(iter(loader))
    assert ids_of(loader, epoch=1) == ids_of(loader_of(built), epoch=1)
    assert ids_of(loader, epoch=1) == ids_of(loader, epoch=1)


def test_the_position_is_that_of_the_chosen_epoch_before_its_first_batch(built):
    loader = loader_of(built)
    list(loader)
    assert loader.state_dict() == {"epoch": 0, "samples": 24 * len(loader)}
    loader.set_epoch(1)
    assert loader.state_dict() == {"epoch": 1, "samples": 0}
    loader.load_state_dict({"epoch": 1, "samples": 48})
    loader.set_epoch(1)
    assert loader.state_dict() == {"epoch": 1, "samples": 48}


def test_the_next_window_is_read_while_this_one_is_used(built):
    """The read-ahead needs no further call: it is under way as soon as a window's first batch is out."""
    asked, released = [], threading.Semaphore(0)
    dataset = Dataset(*built, verify="off")
    order = dataset.train_order(SETTINGS, world_of())

    def check(shard):
        asked.append(shard)
        released.release()

    stream = dataset.stream(order)
    stream._check = check
    batches = stream.batches(0)
    next(batches)
    windows = [order.window(0, index).pieces for index in (0, 1)]
    for _ in range(sum(map(len, windows))):
        assert released.acquire(timeout=30)
    assert asked == [piece.shard for pieces in windows for piece in pieces]


def test_memory_does_not_grow_with_the_number_of_shards(tmp_path):
    """Pages of passed windows are given back: the resident part of the mapping stays at two windows."""
    window = 1 << 20
    folder = tmp_path / "large"
    folder.mkdir()
    built = (make(folder, num_shards=24, shape=(1024,), rows=200), folder)
    loader = loader_of(built, window_bytes=window)
    resident = []
    for step, _ in enumerate(loader):
        if step % 10 == 0:
            resident.append(_resident_bytes(str(folder)))
    sizes = [path.stat().st_size for path in folder.glob("shard-*")]
    assert sum(sizes) > 16 * window
    # the kernel maps whole folios of the shards that a window begins and ends in
    assert max(resident) < 2 * (window + 2 * max(sizes))


def _resident_bytes(name):
    total, is_ours = 0, False
    with Path("/proc/self/smaps").open() as file:
        for line in file:
            if "-" in line.split()[0] and not line.split()[0].endswith(":"):
                is_ours = name in line
            elif is_ours and line.startswith("Rss:"):
                total += 1024 * int(line.split()[1])
    return total


def test_normalising_on_the_way_to_the_model(built):
    manifest = read_manifest(built[0])
    features = torch.arange(12).reshape(2, 3, 2)
    mean = torch.tensor(manifest.statistics.features.mean).reshape(3, 2)
    std = torch.tensor(manifest.statistics.features.std).reshape(3, 2)
    dataset = Dataset(*built)
    standard = Normalizer(dataset, "standard", torch.float64)(features)
    assert standard.dtype == torch.float64
    torch.testing.assert_close(
        standard, (features - mean.double()) / std.double(), rtol=1e-6, atol=1e-6
    )
    assert Normalizer(dataset, "none", torch.float32)(features).dtype == torch.float32
    raw = Normalizer(dataset, "raw", torch.bfloat16)
    for stored, taken in ((features, torch.int64), (features.double(), torch.bfloat16)):
        assert raw(stored).dtype == raw.batch((stored, stored))[0].dtype == taken
        assert torch.equal(raw(stored), stored.to(taken))
    assert Normalizer(dataset, "standard", torch.float32).batch(features) is features, "one tensor"
    spread = Normalizer(dataset, "global", torch.float32)(features)
    assert spread.flatten().diff().std() < 1e-6


# -- damage ---------------------------------------------------------------------------


@pytest.fixture
def copy(built, tmp_path):
    """A copy of the dataset that a test may damage."""
    shutil.copytree(built[1], tmp_path / "copy")
    return tmp_path / "copy" / "manifest.json", tmp_path / "copy"


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


REMEDY = (
    "run `shardline verify --repair table-0123456789ab` and start the pipeline again, or rebuild that part "
    "alone with `snakemake --cores all results/datasets/table-0123456789ab/manifest.json`"
)


def test_a_shard_cut_short_or_missing_is_refused_at_once(copy):
    path = copy[1] / "shard-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(
        DataError,
        match=r"shard-00002.safetensors has [\d,]+ bytes, expected [\d,]+ by its manifest; ",
    ) as error:
        Dataset(*copy, verify="off")
    assert str(error.value).endswith(REMEDY)
    path.unlink()
    with pytest.raises(DataError, match=r"shard-00002.safetensors cannot be read \(No such file"):
        Dataset(*copy, verify="off")


@pytest.mark.parametrize("verify", ["first", "always"])
def test_a_flipped_bit_is_found_before_its_shard_is_used(copy, verify):
    order_of_shards = [int(s) for s in loader_of(copy)._order.shards(0)]
    bad = order_of_shards[-1]
    flip(copy[1] / f"shard-{bad:05d}.safetensors")
    loader = loader_of(copy, verify=verify, window_bytes=24 * 32)
    used = set()

    def use():
        for _ in loader:
            used.update(int(i) // 1000 for i in loader.stream.batch_ids)

    with pytest.raises(
        DataError, match=f"shard-{bad:05d}.safetensors is damaged: its BLAKE3 digest is "
    ) as error:
        use()
    assert REMEDY in str(error.value)
    assert used
    assert bad not in used


def test_without_verification_only_sizes_are_looked_at(copy):
    flip(copy[1] / "shard-00001.safetensors")
    assert len(list(loader_of(copy, verify="off")))


def test_a_shard_is_verified_once_per_node_and_again_when_its_file_changes(copy):
    for _ in loader_of(copy, verify="first", num_epochs=1):
        pass
    markers = copy[1] / "verified" / socket.gethostname()
    assert sorted(path.name for path in markers.iterdir()) == [
        f"shard-{i:05d}.safetensors" for i in range(4)
    ]

    manifest, shards = read_manifest(copy[0]), []
    verifier = Verifier(ShardMap(manifest, copy[1]), "first")
    verifier._digest = shards.append
    for shard in range(4):
        verifier.check(shard)
    assert shards == [], "another process trusts the markers"
    flip(copy[1] / "shard-00003.safetensors")
    with pytest.raises(DataError, match="shard-00003"):
        Verifier(ShardMap(manifest, copy[1]), "first").check(3)
    assert len(list(markers.iterdir())) == 4, "no lock stays"


def test_a_store_where_nothing_can_be_written_is_verified_all_the_same(copy):
    (copy[1] / "verified").write_text("a file where a folder would go")
    assert len(list(loader_of(copy, verify="first")))
    flip(copy[1] / "shard-00001.safetensors")
    with pytest.raises(DataError, match="shard-00001.safetensors is damaged"):
        list(loader_of(copy, verify="first"))
