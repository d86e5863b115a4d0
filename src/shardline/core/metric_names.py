"""What the name of a metric tells: `val_loss`, `val/loss` and `loss (val)` measure the same on the same rows."""

import re
from collections.abc import Iterable
from typing import Literal

_SPLITS = {
    "train": "train", "training": "train", "test": "test",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
}  # fmt: skip
Mode = Literal["min", "max"]
_LOWER = {"error", "loss", "mae", "mse", "nll", "perplexity", "ppl", "rmse"}
_HIGHER = {
    "acc", "accuracy", "auc", "auroc", "dice", "f1", "iou", "map", "miou", "precision", "recall",
}  # fmt: skip
_PACES = ("epoch", "step")  # Lightning appends these to a metric that is logged at both intervals


def guess_mode(metric: str) -> Mode | None:
    """Guess from its name whether lower or higher values of a metric are better; None if unclear."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    is_lower, is_higher = bool(words & _LOWER), bool(words & _HIGHER)
    if is_lower == is_higher:
        return None
    return "min" if is_lower else "max"


def measure_of(name: str) -> str:
    """Return what a metric measures, in lower case: `acc_best` for `val/acc_best`."""
    return _parts(name)[0]


def split_of(name: str) -> str:
    """Return the split that a metric is measured on, `train`, `val` or `test`; empty if the name does not tell."""
    return _parts(name)[1]


def find_metric(names: Iterable[str], measure: str, split: str) -> str | None:
    """Return the name of a measure on a split (`train`, `val` or `test`); None if no name fits.

    Args:
        measure: Result of `measure_of`.
    """
    wanted = measure, split
    found = [name for name in names if _parts(name)[:2] == wanted]
    usual = f"{split}_{measure}"
    return min(found, key=lambda name: (name != usual, _parts(name)[2], name), default=None)


def _parts(name: str) -> tuple[str, str, str]:
    """Return measure, split and pace of a metric; empty texts for what the name does not tell."""
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    pace = words.pop() if len(words) > 1 and words[-1] in _PACES else ""
    split = next((word for word in words if word in _SPLITS), "") if len(words) > 1 else ""
    if split:
        words.remove(split)
    return "_".join(words), _SPLITS.get(split, ""), pace
