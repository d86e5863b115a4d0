"""Checks of `source.preprocess`."""

from msgspec import UNSET

from shardline.config.settings.source_settings import (
    ColumnsSettings,
    ColumnTreatment,
    Preprocess,
)
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest


def check_preprocess(source: ColumnsSettings, preprocess: Preprocess, where: str) -> None:
    """Reject settings of preprocessing that cannot be combined.

    Raises:
        ConfigError: Settings cannot be combined; the message names the key.
    """
    where = f"{where}.source"
    if source.columns is not UNSET:
        raise ConfigError(
            f"{where}.preprocess treats features, but {where}.columns is given; drop one of them"
        )
    if source.dtype not in ("float32", "float64"):
        raise ConfigError(
            f"{where}.dtype={source.dtype} cannot be scaled; drop it, or set float64, or drop preprocess"
        )
    treatments: dict[str, Preprocess | ColumnTreatment] = {"": preprocess, **preprocess.columns}
    for name, one in treatments.items():
        key = f"{where}.preprocess.columns.{name}" if name else f"{where}.preprocess"
        low, high = one.clip or (None, None)
        if low is not None and high is not None and low >= high:
            raise ConfigError(f"{key}.clip={[low, high]} has no room; give [smallest, largest]")
        if isinstance(one, ColumnTreatment):
            _check_treatment(one, key)
        if name and source.features and name not in source.features:
            raise ConfigError(
                f"{key} is not in source.features; {suggest(name, source.features)}, or add it there"
            )
        if name in (source.label, source.id_column):
            raise ConfigError(f"{key} is the label or the id, which is no feature; drop it")


def _check_treatment(one: ColumnTreatment, key: str) -> None:
    """Reject keys of another kind of column."""
    keys = {
        "category": ("encode",),
        "date": ("date", "impute", "fill", "clip", "scale"),
        "number": ("impute", "fill", "clip", "scale"),
    }
    given = [name for of in keys.values() for name in of if getattr(one, name) is not UNSET]
    kinds = [one.type] if one.type is not UNSET else [*keys]
    if not any(set(given) <= set(keys[kind]) for kind in kinds):
        extra = next((name for name in given if name not in keys[kinds[0]]), given[-1])
        raise ConfigError(
            f"{key}: {extra} does not apply to a {kinds[0]} with {', '.join(n for n in given if n != extra) or 'it'}; "
            "keep encode (category), date (date), or impute, fill, clip and scale (numbers and dates)"
        )
