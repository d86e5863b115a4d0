"""Samples of one length under `data.pack`: their creation, and their record and description."""

from collections.abc import Sequence
from functools import partial

from shardline.config.settings.run_settings import Pack
from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean
from shardline.data.block_units import BlockUnits
from shardline.data.dataset import Dataset
from shardline.data.packs import PackUnits
from shardline.records.trainings import PackedDataset, PackedSamples
from shardline_io.order.pieces import num_rows

Packed = BlockUnits | PackUnits


def packed(dataset: Dataset, split: str, pack: Pack) -> Packed:
    """Return the blocks or packs of a split.

    Raises:
        ConfigError: a column in `data.pack` does not exist or does not vary.
        DataError: a column of the dataset has a name that packs use for an added column.
    """
    _check_columns(dataset, pack)
    if dataset.manifest.schema.weighted:
        raise ConfigError(
            f"data.pack combines rows of dataset {dataset.manifest.dataset}, whose rows have weights, expected rows "
            "without weights, since a sample of several rows has no weight; remove source.weight, or data.pack"
        )
    shards, others = dataset.shards, tuple(pack.with_)
    name = split if shards.fold is None else f"{split}_fold{shards.fold}"
    made = partial(PackUnits, name=name) if pack.method == "best_fit" else BlockUnits
    return made(
        shards=shards,
        split=shards.pieces(split),
        column=pack.column,
        length=pack.length,
        others=others,
    )


def _check_columns(dataset: Dataset, pack: Pack) -> None:
    columns = dataset.shards.columns
    varying = [name for name, column in columns.items() if column.varies]
    for key, name in (("column", pack.column), *(("with", name) for name in pack.with_)):
        if name not in varying:
            found = f"which is {columns[name]}" if name in columns else "which does not exist"
            raise ConfigError(
                f"data.pack.{key} names {name!r}, {found} in dataset {dataset.manifest.dataset}, expected a column "
                f"whose first dimension varies ({', '.join(varying) or 'there is none'}); "
                f"{did_you_mean(name, varying, otherwise='use one of these')}"
            )


def describe_packs(pack: Pack, parts: Sequence[tuple[Dataset, Packed]]) -> PackedSamples:
    """Return the record of packed samples for a training's provenance."""
    datasets = [
        PackedDataset(
            id=dataset.manifest.dataset, number=num_rows(units.pieces), waste=round(units.waste, 6)
        )
        for dataset, units in parts
    ]
    return PackedSamples(
        method=pack.method, column=pack.column, length=pack.length, datasets=datasets
    )


def sentence_of(packs: PackedSamples) -> str:
    """Return a sentence about packed samples, which a training prints when it begins."""
    is_blocks = packs.method == "concat"
    what, wasted = (
        ("blocks", "of the values are in no block")
        if is_blocks
        else ("packs", "of their space is empty")
    )
    found = (
        f"{one.number:,} {what} from dataset {one.id} ({100 * one.waste:.2f} % {wasted})"
        for one in packs.datasets
    )
    return f"data.pack makes samples of {packs.length:,} {packs.column}: {', '.join(found)}"
