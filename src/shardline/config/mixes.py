"""What a row asks for as its dataset: one, or several by weight."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction

from shardline.config.dataset import Dataset
from shardline.config.run import Part
from shardline.config.runs import Row
from shardline.core.suggest import suggest

Mixes = Mapping[str, Mapping[str, float]]


def weights_of_row(row: Row, mixes: Mixes) -> Mapping[str, float]:
    """Return the weights of a row's datasets by name; a name that no mix has is a dataset's."""
    if isinstance(row.dataset, str):
        return mixes.get(row.dataset, {row.dataset: 1.0})
    return row.dataset


def problems_of_mixes(mixes: Mixes, datasets: Mapping[str, object], where: str) -> Iterator[str]:
    """Yield what is wrong with the mixes of a config.

    Args:
        where: the config's file, as messages begin.
    """
    for name, weights in mixes.items():
        if name in datasets:
            yield f"{where}: mixes.{name} has the name of a dataset; rename one of them"
        for part in weights:
            if part not in datasets:
                yield f"{where}: mixes.{name}.{part} is not in datasets; {suggest(part, datasets)}"


def problems_of_row(
    row: Row, mixes: Mixes, datasets: Mapping[str, object], where: str
) -> Iterator[str]:
    """Yield what is wrong with a row's dataset, or with the parts of its mix.

    Args:
        where: the config's file.
    """
    if isinstance(row.dataset, str):
        if row.dataset not in datasets and row.dataset not in mixes:
            places = "datasets or mixes" if mixes else "datasets"
            hint = suggest(row.dataset, [*datasets, *mixes])
            yield f"{row.where}: dataset={row.dataset} is not in {places} of {where}; {hint}"
        return
    for part in row.dataset:
        if part not in datasets:
            hint = suggest(part, datasets)
            text = json.dumps(row.dataset, ensure_ascii=False)
            yield f"{row.where}: dataset={text}: {part} is not in datasets of {where}; {hint}"


def parts_of(weights: Mapping[str, float], datasets: Mapping[str, Dataset]) -> tuple[Part, ...]:
    """Return the parts of a run: in the order of the datasets' ids, with weights that sum to 1.

    Names of one dataset are one part. A weight is the number as it is written: 0.7 is 7/10.

    Args:
        weights: by name.
        datasets: by name.
    """
    shares: dict[str, Fraction] = {}
    named = {datasets[name].id: datasets[name] for name in weights}
    for name, weight in weights.items():
        key = datasets[name].id
        shares[key] = shares.get(key, Fraction(0)) + Fraction(repr(weight))
    total = sum(shares.values())
    return tuple(Part(named[key], shares[key] / total) for key in sorted(shares))
