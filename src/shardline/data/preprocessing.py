"""Fitting of preprocessing on train rows: any set of blocks whose summaries are merged."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import UNSET, structs

from shardline.core.errors import DataError
from shardline.data.shard_map import ShardMap
from shardline.data.statistics import Statistics
from shardline.data.table_summary import TableSummary, clipped, gaps_of, merge_tables
from shardline.records.datasets import DatasetSchema, Manifest
from shardline.records.preprocessing import (
    CODES,
    GAPS,
    NUMBERS,
    SAMPLED_ROWS,
    PreparedCategory,
    PreparedNumber,
    Preprocessing,
)
from shardline_io.order.pieces import Piece

MOST_ONE_HOT = 4096
_QUANTILES = 1000

Counted = Mapping[int, tuple[str, int]]


def fitted_manifest(
    manifest: Manifest, plan: Preprocessing, statistics: Statistics, folder: Path
) -> Manifest:
    """Return a manifest with fitted preprocessing, and with the columns that the preprocessing makes.

    Each fold has a preprocessing of its own, fitted on the train rows of a run that tests on this fold.

    Args:
        manifest: Manifest whose schema has the stored columns.
        plan: Preprocessing of these columns.
        statistics: Statistics of all shards.
        folder: Folder of the shards, from which the values for medians and quantiles are sampled.
    """
    whole = _fitted(manifest, plan, statistics, folder, None)
    folds = [_fitted(manifest, plan, statistics, folder, n) for n in range(manifest.folds or 0)]
    return structs.replace(
        manifest,
        schema=prepared_schema(manifest.schema, whole),
        preprocessing=whole,
        fold_preprocessing=folds or UNSET,
    )


def _fitted(
    manifest: Manifest, plan: Preprocessing, statistics: Statistics, folder: Path, fold: int | None
) -> Preprocessing:
    values = None
    if needs_sample(plan):
        shards = ShardMap(manifest, folder, fold)
        values = sampled_numbers(shards, shards.pieces("train"))
    # the categories of all rows fix the widths
    everyone = merge_tables([*statistics.tables.values()])
    return fit(plan, statistics.train_table(fold), everyone, values)


def differing_values(manifest: Manifest, statistics: Statistics, folder: Path) -> list[str]:
    """Return the columns whose sealed values differ, by more than rounding, from those of the shards' rows.

    Args:
        statistics: Statistics of the rows in the shards.
        folder: Folder of the shards.
    """
    wrong = []
    sealed = [manifest.preprocessing, *(manifest.fold_preprocessing or ())]
    for fold, one in zip((None, *range(len(sealed) - 1)), sealed, strict=True):
        assert one
        found = _fitted(manifest, one, statistics, folder, fold)
        numbers = zip(found.numbers, one.numbers, strict=True)
        names = [other.name for mine, other in numbers if not _is_near(mine, other)]
        categories = zip(found.categories, one.categories, strict=True)
        names += [other.column for mine, other in categories if mine != other]
        at = "" if fold is None else f" with fold={fold}"
        wrong += [f"preprocessing of {name}{at}" for name in names]
    return wrong


def _is_near(one: PreparedNumber, other: PreparedNumber) -> bool:
    sums = ("fill", "shift", "divisor")
    size = max(1.0, *(abs(getattr(other, key)) for key in sums))
    near = all(abs(getattr(one, key) - getattr(other, key)) <= 1e-6 * size for key in sums)
    near &= len(one.quantiles) == len(other.quantiles)
    return near and one.gaps == other.gaps and np.allclose(one.quantiles, other.quantiles)


def needs_sample(plan: Preprocessing) -> bool:
    """Return whether a number needs a median or quantiles, which moments do not contain."""
    return any(one.impute == "median" or one.scale == "quantile" for one in plan.numbers)


def sampled_numbers(
    shards: ShardMap, pieces: Sequence[Piece], most: int = SAMPLED_ROWS
) -> np.ndarray:
    """Return the numbers of sampled rows [min(N, most), n] float64, with NaN for gaps.

    The rows with the smallest hashes of their ids are sampled, so the sample depends neither on the
    shards nor on other rows.

    Args:
        pieces: Rows to sample from, such as the train rows of a fold.
        most: Number of rows in the sample.
    """
    places = np.zeros((0, 2), np.int64)  # shard and row
    hashes = np.zeros(0, np.uint64)
    for piece in pieces:
        if piece.first == piece.last:
            continue
        rows = np.arange(piece.first, piece.last)
        own = np.stack([np.full(len(rows), piece.shard), rows], axis=1)
        hashes = np.concatenate([hashes, _hashes(shards.ids([piece]))])
        places = np.concatenate([places, own])
        if len(hashes) > most:
            chosen = np.sort(np.argpartition(hashes, most)[:most])
            hashes, places = hashes[chosen], places[chosen]
    found = []
    for shard in np.unique(places[:, 0]).tolist():
        rows = places[places[:, 0] == shard, 1]
        first, last = int(rows.min()), int(rows.max()) + 1
        with shards.opened(shard) as file:
            numbers = shards.read(file, NUMBERS, shard, first, last)[rows - first]
            gaps = shards.read(file, GAPS, shard, first, last)[rows - first]
        is_gap = gaps_of(gaps, numbers.shape[1])
        found.append(np.where(is_gap, np.nan, numbers.astype(np.float64)))
    return np.concatenate(found)


def _hashes(ids: np.ndarray) -> np.ndarray:
    """Hash ids [N] by the finaliser of MurmurHash3, independently of the hash that decides splits."""
    x = ids.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(factor)
    return x ^ (x >> np.uint64(33))


def fit(
    plan: Preprocessing, train: TableSummary, everyone: TableSummary, sample: np.ndarray | None
) -> Preprocessing:
    """Return preprocessing that is fitted on train rows.

    Args:
        plan: What to do with each column.
        train: Summary of the train rows; no other row decides a fitted value.
        everyone: Summary of all rows of the dataset, whose categories fix the number of features.
        sample: Numbers of sampled train rows [N, n] float64 with NaN for gaps, if `needs_sample`.

    Raises:
        DataError: A column has too many categories, or its numbers are too large.
    """
    values = None if sample is None else clipped(plan, sample)
    return Preprocessing(
        numbers=[
            _fit_number(
                one, train, place, values[:, place : place + 1] if values is not None else None
            )
            for place, one in enumerate(plan.numbers)
        ],
        categories=[
            _fit_category(one, train.categories[place], everyone.categories[place])
            for place, one in enumerate(plan.categories)
        ],
        sampled_rows=0 if values is None else len(values),
        train_rows=train.rows,
    )


def _fit_number(
    plan: PreparedNumber, train: TableSummary, place: int, sample: np.ndarray | None
) -> PreparedNumber:
    of, moments = plan, train.numbers
    count, gaps = int(moments.count[place]), train.rows - int(moments.count[place])
    mean, m2, low, high = (
        float(getattr(moments, key)[place]) for key in ("mean", "m2", "low", "high")
    )
    fill = plan.fill if plan.impute == "constant" else mean
    if plan.impute == "median" and count and sample is not None:
        from sklearn.impute import SimpleImputer

        fill = float(SimpleImputer(strategy="median").fit(sample).statistics_[0])
    of = structs.replace(of, fill=fill, gaps=gaps)
    if gaps or not count:  # the moments of the filled column
        low, high = min(low, fill), max(high, fill)
        m2 += count * gaps / max(1, train.rows) * (mean - fill) ** 2
        mean += (fill - mean) * gaps / max(1, train.rows)
    if plan.scale == "standard":
        of = structs.replace(of, shift=mean, divisor=math.sqrt(m2 / max(1, train.rows)) or 1.0)
    elif plan.scale == "minmax":
        of = structs.replace(of, shift=low, divisor=high - low or 1.0)
    elif plan.scale == "quantile" and sample is not None:
        of = structs.replace(of, quantiles=_quantiles(np.where(np.isnan(sample), fill, sample)))
    if not all(map(math.isfinite, (of.fill, of.shift, of.divisor))):
        raise DataError(
            f"column {plan.column}: its numbers, up to {max(abs(low), abs(high)):.3g}, are too large to be scaled by "
            f"{plan.scale}; set source.preprocess.columns.{plan.column}.clip, or scale: quantile"
        )
    return of


def _quantiles(values: np.ndarray) -> list[float]:
    from sklearn.preprocessing import QuantileTransformer

    number = min(_QUANTILES, len(values))
    found = QuantileTransformer(n_quantiles=number, subsample=None).fit(values)
    quantiles: list[float] = found.quantiles_[:, 0].tolist()
    return quantiles


def _fit_category(
    plan: PreparedCategory,
    train: Counted,
    everyone: Counted,
) -> PreparedCategory:
    if plan.encode == "onehot" and len(everyone) > MOST_ONE_HOT:
        raise DataError(
            f"column {plan.column} has {len(everyone):,} categories, expected at most {MOST_ONE_HOT:,} for "
            f"encode: onehot; set source.preprocess.columns.{plan.column}.encode: index, or list the features without "
            "it in source.features"
        )
    texts = {code: text for code, (text, _) in everyone.items()}
    codes = sorted(texts, key=lambda code: _rank(texts[code]))
    if any(_rank(text)[0] > 1 for text in texts.values()):  # not all of them are whole numbers
        codes = sorted(texts, key=lambda code: texts[code])
    return structs.replace(
        plan,
        codes=codes,
        values=[texts[code] for code in codes],
        train_rows=[train.get(code, ("", 0))[1] for code in codes],
    )


def _rank(text: str) -> tuple[int, int]:
    """Return the place of a category: a missing value, then whole numbers, then other texts."""
    if not text:
        return 0, 0
    is_number = text.removeprefix("-").isdecimal() and text.isascii() and str(int(text)) == text
    return (1, int(text)) if is_number else (2, 0)


def prepared_schema(stored: DatasetSchema, fitted: Preprocessing) -> DatasetSchema:
    """Return the schema of the columns that fitted preprocessing makes of stored ones."""
    columns = dict(stored.columns or {})
    kept = {name: of for name, of in columns.items() if name not in (NUMBERS, GAPS, CODES)}
    width, sizes = len(fitted.features), fitted.sizes
    if not sizes and kept.keys() == {"labels"} and not stored.targets:
        return structs.replace(
            stored, columns=UNSET, feature_shape=[width], feature_dtype="float32", stored=columns
        )
    made = {"features": f"float32[{width}]"}
    if sizes:
        made["categories"] = f"int64[{len(sizes)}]"
    return structs.replace(
        stored, columns={**made, **kept}, stored=columns, categories=sizes or UNSET
    )
