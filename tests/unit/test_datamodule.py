"""The batch sequence: a function of dataset, seed and epoch, whatever the world size."""

import numpy as np
import pytest

from shardline.datamodule import ShardDataset, TrainLoader
from shardline.errors import DataError
from shardline.files import write_json
from shardline.sampling import HeldOutBatches, TrainBatches, epoch_order
from shardline.shards import build_shard, seal
from shardline.sources.synthetic import Synthetic

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A sealed dataset of 3 shards."""
    folder = tmp_path_factory.mktemp("dataset")
    source = Synthetic(num_shards=3, rows_per_shard=100, features=5, seed=1)
    parts = [build_shard(source, shard, SHARES, folder) for shard in range(3)]
    documents = [{"shards": [vars(r)], "statistics": [m]} for r, m in parts]
    manifest = folder / "manifest.json"
    sealed = seal(documents, dataset="table-0123456789ab", name="table", source=source, document={})
    write_json(manifest, sealed)
    return manifest, folder, source


def train_set(built, **options):
    manifest, folder, _ = built
    return ShardDataset(manifest, folder, "train", **options)


def ids_of_steps(dataset, *, world_size, accumulate=1, epoch=0, start=None, **options):
    """Return the row ids that each optimiser step consumes, over all ranks."""
    steps = {}
    for rank in range(world_size):
        sampler = TrainBatches(
            len(dataset),
            dataset_id=dataset.dataset_id,
            global_batch=24,
            seed=5,
            rank=rank,
            world_size=world_size,
            accumulate=accumulate,
            **options,
        )
        sampler.set_epoch(epoch)
        loader = TrainLoader(dataset, sampler, num_workers=0)
        if start is not None:
            loader.load_state_dict(start)
        parts = list(sampler)
        first = len(sampler) - len(parts)
        for index, part in enumerate(parts, first):
            steps.setdefault(index // accumulate, []).extend(dataset.ids(part))
    return {step: sorted(ids) for step, ids in steps.items()}


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (4, 1), (8, 1), (1, 3), (2, 4)])
def test_each_step_consumes_the_same_samples_at_any_world_size(built, world_size, accumulate):
    dataset = train_set(built)
    for epoch in (0, 3):
        alone = ids_of_steps(dataset, world_size=1, epoch=epoch)
        assert (
            ids_of_steps(dataset, world_size=world_size, accumulate=accumulate, epoch=epoch)
            == alone
        )
    assert len(alone) == len(dataset) // 24


def test_an_epoch_repeats_no_sample_and_no_order(built):
    dataset = train_set(built)
    epochs = [ids_of_steps(dataset, world_size=1, epoch=epoch) for epoch in (0, 1)]
    for steps in epochs:
        seen = [i for ids in steps.values() for i in ids]
        assert len(seen) == len(set(seen))
    assert epochs[0] != epochs[1]


def test_the_order_depends_on_seed_and_dataset_but_not_on_its_name():
    def order(**change):
        return list(
            epoch_order(50, **{"dataset_id": "a-0123456789ab", "seed": 1, "epoch": 0, **change})
        )

    assert order() == order(dataset_id="b-0123456789ab")
    assert (
        len(
            {
                tuple(o)
                for o in (
                    order(),
                    order(seed=2),
                    order(epoch=1),
                    order(dataset_id="a-1123456789ab"),
                )
            }
        )
        == 4
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_resumed_epoch_continues_at_the_exact_sample_at_another_world_size(built, world_size):
    dataset = train_set(built)
    whole = ids_of_steps(dataset, world_size=2, epoch=2)
    resumed = ids_of_steps(
        dataset, world_size=world_size, epoch=2, start={"epoch": 2, "samples": 3 * 24}
    )
    assert resumed == {step: ids for step, ids in whole.items() if step >= 3}
    after = ids_of_steps(dataset, world_size=world_size, epoch=3, start=None)
    assert after == ids_of_steps(dataset, world_size=2, epoch=3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_counts_what_was_consumed_not_what_was_fetched_ahead(built, num_workers):
    dataset = train_set(built)
    sampler = TrainBatches(len(dataset), dataset_id="d-0123456789ab", global_batch=24, seed=5)
    loader = TrainLoader(dataset, sampler, num_workers)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3)]
    assert loader.state_dict() == {"epoch": 0, "samples": 72}
    assert batches[0][0].shape == (24, 5)
    again = next(iter(TrainLoader(dataset, sampler, 0)))
    assert (again[0] == batches[0][0]).all()


@pytest.mark.parametrize("num_rows", [1, 5, 24, 25, 100, 101])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_held_out_rows_are_each_counted_once_and_no_rank_waits(num_rows, world_size):
    if num_rows < world_size:
        with pytest.raises(DataError, match="cannot be shared by"):
            HeldOutBatches(num_rows, global_batch=24, rank=0, world_size=world_size)
        return
    batches = [
        list(HeldOutBatches(num_rows, global_batch=24, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert len({len(b) for b in batches}) == 1
    rows = [row for rank in batches for batch in rank for row in batch]
    assert sorted(rows) == list(range(num_rows))
    assert all(batch for rank in batches for batch in rank)


def test_rows_come_back_as_the_source_gave_them(built):
    _, _, source = built
    dataset = train_set(built)
    features, labels = dataset.__getitems__(range(len(dataset)))
    tables = [table for shard in range(3) for table in source.iter_tables(shard)]
    by_id = {i: (f, y) for t in tables for i, f, y in zip(t.ids, t.features, t.labels, strict=True)}
    for i, f, y in zip(
        dataset.ids(range(len(dataset))), features.numpy(), labels.numpy(), strict=True
    ):
        assert (by_id[i][0] == f).all()
        assert by_id[i][1] == y


def test_normalised_train_features_have_mean_0_and_deviation_1(built):
    dataset = train_set(built, normalize="standard")
    features, _ = dataset.__getitems__(range(len(dataset)))
    assert features.numpy().mean(0) == pytest.approx(np.zeros(5), abs=1e-5)
    assert features.numpy().std(0) == pytest.approx(np.ones(5), abs=1e-5)


def test_global_normalisation_has_one_mean_and_deviation_over_all_features(built):
    plain, scaled = (train_set(built, normalize=how) for how in ("none", "global"))
    rows = range(len(plain))
    raw, features = (dataset.__getitems__(rows)[0].numpy() for dataset in (plain, scaled))
    assert features.mean() == pytest.approx(0, abs=1e-5)
    assert features.std() == pytest.approx(1, abs=1e-5)
    assert np.corrcoef(raw.ravel(), features.ravel())[0, 1] == pytest.approx(1)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(DataError, match=r"global_batch=4096 is more than the \d+ train rows"):
        TrainBatches(240, dataset_id="d-0123456789ab", global_batch=4096, seed=0)


def test_missing_and_damaged_files_are_named(built, tmp_path):
    manifest, folder, _ = built
    with pytest.raises(DataError, match="manifest.json cannot be read"):
        ShardDataset(tmp_path / "manifest.json", folder, "train")
    with pytest.raises(
        DataError, match=r"shard-00000.safetensors cannot be read .*delete the folders"
    ):
        ShardDataset(manifest, tmp_path, "train")
    for shard in folder.glob("shard-*"):
        content = bytearray(shard.read_bytes())
        content[8:12] = b"\xff" * 4
        (tmp_path / shard.name).write_bytes(content)
    with pytest.raises(DataError, match="shard-00000.safetensors has a damaged header"):
        ShardDataset(manifest, tmp_path, "train")
