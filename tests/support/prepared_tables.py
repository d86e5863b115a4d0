"""Generated tables of all kinds of columns, their preprocessing, and the same by pandas and scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    StandardScaler,
)

from shardline.config.checked_sources import SHIPPED_SOURCES
from shardline.core.files import write_json
from shardline.data.build import build_shards, describe_part, make_source, seal
from shardline.data.dataset import Dataset
from shardline.data.sources.source import Source, file_digests
from shardline.records.base import encode
from shardline_io.order.held_out import HeldOutOrder

SPLITS = ("train", "validation", "test")
NUMBER = st.integers(-4000, 4000).map(lambda n: n / 4)
CATEGORY = st.sampled_from(["", "blue", "green", "New York", "7 up", "rot"])
DATE = st.datetimes(pd.Timestamp("1950-01-01"), pd.Timestamp("2060-01-01")).map(
    lambda date: pd.Timestamp(date).floor("s")
)
IMPUTE = st.sampled_from(["mean", "median", "constant", "flag"])
SCALE = st.sampled_from(["standard", "minmax", "log", "quantile", "none"])
# sums over rows, whose order scikit-learn chooses otherwise; everything else is equal bit by bit
SUMS = ("mean", "flag"), ("standard", "minmax")


@st.composite
def tables(draw: st.DrawFn, least: int = 4, most: int = 25) -> pd.DataFrame:
    """Rows with numbers, booleans, texts and dates, all but the flags with gaps."""
    rows = draw(st.integers(least, most))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    return pd.DataFrame(
        {
            "key": np.arange(rows),
            "part": ["train", "train", *column(st.sampled_from(SPLITS))[2:]],
            "a": column(st.none() | NUMBER),
            "b": column(st.none() | NUMBER),
            "c": column(NUMBER),
            "flag": column(st.booleans()),
            "colour": column(CATEGORY),
            "place": column(CATEGORY),
            "day": pd.to_datetime(pd.Series(column(st.none() | DATE), dtype="datetime64[us]")),
            "y": column(NUMBER),
        }
    ).astype({"a": float, "b": float})


@st.composite
def treatments(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of `source.preprocess`."""
    numbers = st.fixed_dictionaries(
        {"impute": IMPUTE, "scale": SCALE, "fill": NUMBER},
        optional={"clip": st.sampled_from([[-100.0, 100.0], [None, 50.0], [0.0, None]])},
    )
    return {
        "columns": {
            "a": draw(numbers),
            "b": draw(numbers),
            "c": draw(numbers),
            "flag": draw(numbers),
            "colour": {"encode": draw(st.sampled_from(["onehot", "index"]))},
            "place": {"encode": draw(st.sampled_from(["onehot", "index"]))},
            "day": {"date": ["year", "month", "weekday", "seconds"], "scale": draw(SCALE)},
        }
    }


FEATURES = ["a", "b", "c", "flag", "colour", "place", "day"]


def sealed(
    folder: Path, table: pd.DataFrame, preprocess: dict[str, Any], kind: str = "csv",
    by: dict[str, Any] | None = None, **options: Any,
) -> Dataset:  # fmt: skip
    """Write a table to a file, and seal a dataset of it by what its jobs call.

    Args:
        by: The dataset's `splits`, if the table has no column of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"table.{kind}"
    table.to_csv(file, index=False) if kind == "csv" else table.to_parquet(file, index=False)
    source = source_of(file, preprocess, **({"splits": {}} if by else {}), **options)
    part = describe_part("d", build_shards(source, range(2), by or {}, folder), source.skipped)
    document = {"source": dict(enumerate(file_digests([file])))}
    manifest = seal([part], dataset="d", source=source, document=document, folder=folder)
    write_json(folder / "manifest.json", encode(manifest))
    return Dataset(folder / "manifest.json", folder)


def source_of(file: Path, preprocess: dict[str, Any], **options: Any) -> Source:
    """Return the source of a written table."""
    kind = file.suffix.removeprefix(".")
    settings = {
        "type": kind, "label": "y", "task": "regression", "id_column": "key", "dtype": "float64",
        "splits": {"column": "part"}, "preprocess": preprocess, "features": FEATURES, **options,
    }  # fmt: skip
    return make_source(SHIPPED_SOURCES[kind], settings, num_shards=2, files=[file])


def rows_of(dataset: Dataset, batch: int = 7) -> dict[int, dict[str, np.ndarray]]:
    """Return the rows that a model gets, by id."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for split in SPLITS:
        if not dataset.manifest.splits[split]:
            continue
        order = HeldOutOrder(dataset.shards.pieces(split), batch, 1000, 0, 1)
        stream = dataset.stream(order, num_epochs=1)
        for made in stream.batches():
            columns = (
                made
                if isinstance(made, dict)
                else dict(zip(["features", "labels"], made, strict=True))
            )
            for place, row in enumerate(stream.batch_ids.tolist()):
                found[row] = {name: of[place].numpy() for name, of in columns.items()}
    return found


def by_sklearn(table: pd.DataFrame, preprocess: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return each feature by name in float64, as scikit-learn computes it when fitted on the train rows."""
    is_train = (table["part"] == "train").to_numpy()
    found: dict[str, np.ndarray] = {}
    flags: dict[str, np.ndarray] = {}
    for name in ("a", "b", "c", "flag", "day"):
        own = {"impute": "mean", "scale": "standard", **preprocess["columns"][name]}
        for part, values in parts_of(table[name]).items():
            column = f"{name}.{part}" if part else name
            found[column] = number(values[:, None], is_train, own)[:, 0]
            if own["impute"] == "flag":
                flags[f"{column} is missing"] = np.isnan(values).astype(float)
    found |= flags
    indices = {}
    for name in ("colour", "place"):
        texts, names = table[[name]].to_numpy(object), sorted(set(table[name]))
        if preprocess["columns"][name]["encode"] == "onehot":
            encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(
                texts[is_train]
            )
            made = dict(zip(encoder.categories_[0], encoder.transform(texts).T, strict=True))
            found |= {f"{name}={one}": made.get(one, np.zeros(len(table))) for one in names}
        else:
            ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
            codes = ordinal.fit(texts[is_train]).transform(texts)[:, 0].astype(int)
            known = np.array([1 + names.index(one) for one in ordinal.categories_[0]])
            indices[name] = np.where(codes < 0, 0, known[codes])
    return found | ({"categories": np.stack([*indices.values()], axis=1)} if indices else {})


def parts_of(values: pd.Series) -> dict[str, np.ndarray]:
    """Return the numbers of a column of numbers or dates, by part of a date."""
    if values.dtype.kind != "M":
        return {"": values.to_numpy(float)}
    days = values.dt
    seconds = values.astype("int64").where(values.notna()) / 1e6
    parts = {
        "year": days.year,
        "month": days.month,
        "weekday": days.day_of_week,
        "seconds": seconds,
    }
    return {name: of.to_numpy(float) for name, of in parts.items()}


def number(values: np.ndarray, is_train: np.ndarray, own: dict[str, Any]) -> np.ndarray:
    """Clip, impute and scale a column [N, 1] that may have NaN."""
    values = np.clip(values, *own.get("clip", (None, None))) if "clip" in own else values
    strategy = {"flag": "mean"}.get(own["impute"], own["impute"])
    imputer = SimpleImputer(
        strategy=strategy, fill_value=own.get("fill", 0.0), keep_empty_features=True
    ).fit(values[is_train])
    values = imputer.transform(values)
    scalers: dict[str, Any] = {
        "standard": StandardScaler(),
        "minmax": MinMaxScaler(),
        "log": FunctionTransformer(lambda x: np.copysign(np.log1p(np.abs(x)), x)),
        "quantile": QuantileTransformer(n_quantiles=int(is_train.sum()), subsample=None),
        "none": FunctionTransformer(),
    }
    scaled: np.ndarray = scalers[own["scale"]].fit(values[is_train]).transform(values)
    return scaled


def is_exact(own: dict[str, Any]) -> bool:
    """Return whether a number's treatment needs no sum over rows."""
    return own.get("impute", "mean") not in SUMS[0] and own["scale"] not in SUMS[1]
