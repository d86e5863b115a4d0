"""Warnings on a sealed model that did not learn, or that resumed without a part, derived from its sealed files.

A false alarm costs more than a miss: where noise explains what is seen, nothing is reported. A record without
loss curve, classes or residuals (a training script's, or metrics that a model logs) is examined as far as it goes.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from msgspec.json import Decoder as JsonDecoder

from shardline.core.redaction import mask

MAX_WEIGHT = 1e8  # trained weights stay orders of magnitude below
MIN_SAMPLES = 20  # fewer held-out samples prove nothing of an accuracy or an error
_MAX_CHANCE = 0.01  # of noise alone showing a loss that never fell
_MIN_CONSTANT = 3  # equal values in a row: two may be one validation, repeated
_MIN_RISEN, _RISEN = 4, 10
_MAX_SAMPLED_R2 = -0.05  # where R2 is known by some of the rows alone
_HELD_OUT = {"dev", "eval", "test", "val", "valid", "validation"}
_PACES = {"step", "epoch", "train", "training"}  # words before or after the word loss
# `shardline ls` reads the records of all runs: this takes a fifth of the time of json.loads
_RECORD = JsonDecoder(dict[str, Any])

Curves = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ModelWarning:
    """Why a sealed model is suspect.

    Attributes:
        kind: `loss`: no loss ever fell; `weights`: a weight is not plausible; `constant`: the evaluation is no better
            than one answer for every sample; `resumed`: values of the model's code began again.
        sentence: What was found, what was expected, and what to do.
    """

    kind: Literal["loss", "weights", "constant", "resumed"]
    sentence: str


def read_warnings(
    metrics: Path, provenance: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> list[ModelWarning]:
    """Return the warnings on a sealed training, as far as its files are there and readable.

    Args:
        metrics: metrics.jsonl.
        provenance: provenance.json; empty if there is none.
        evaluation: The evaluation's file; empty if there is none yet.
    """
    try:
        recorded = metrics.read_bytes()
    except OSError:
        recorded = b""
    examined = (
        partial(_on_recorded, recorded, provenance),
        partial(on_weights, provenance),
        partial(on_evaluation, evaluation),
        partial(on_resume, provenance),
    )
    found = []
    for examine in examined:
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            found.append(examine())  # `shardline verify` reports damaged files
    return [
        ModelWarning(kind=one.kind, sentence=mask(one.sentence)) for one in found if one is not None
    ]


def _on_recorded(recorded: bytes, provenance: Mapping[str, Any]) -> ModelWarning | None:
    is_script = "script" in (provenance.get("training") or {})
    return on_losses(read_losses(recorded), is_rounded=is_script)


def read_losses(recorded: bytes) -> dict[str, list[float]]:
    """Return the losses in metrics.jsonl by name, NaN for null; skips lines that are no JSON objects."""
    curves: dict[str, list[float]] = {}
    is_loss = cache(_is_loss)
    for line in recorded.splitlines():
        with suppress(ValueError):
            for name, value in _RECORD.decode(line).items():
                if is_loss(name) and (value is None or type(value) in (int, float)):
                    curves.setdefault(name, []).append(math.nan if value is None else float(value))
    return curves


def on_losses(curves: Curves, *, is_rounded: bool = False) -> ModelWarning | None:
    """Return a warning if no recorded loss was ever below its first value, unless noise explains that.

    Of n values of a loss that neither falls nor rises the first is the lowest with chance 1/n, and they rise in their
    order with chance 1/n!. The losses of training decide: a validation loss that rises from the first validation on
    is overfitting, while one that is the same number each time belongs to weights that do not change.

    Args:
        curves: Values in order, by name; NaN for what is not finite.
        is_rounded: Whether values may be rounded, as a script writes them, so that equal ones prove nothing.
    """
    held_out = {name: values for name, values in curves.items() if _words(name) & _HELD_OUT}
    trained = {name: values for name, values in curves.items() if name not in held_out}
    if constant := [name for name in held_out if not is_rounded and _is_constant(held_out[name])]:
        values = held_out[constant[0]]
        if not any(map(_fell_clearly, trained.values())):
            return _never_fell(
                f"{constant[0]} is {_show(values[0])} at each of {len(values)} validations"
            )
    if any(map(_fell, curves.values())):
        return None
    for name, values in trained.items():
        if _chance(values, is_rounded=is_rounded) <= _MAX_CHANCE:
            later = [value for value in values[1:] if math.isfinite(value)]
            rest = f"{_show(min(later))} at its lowest since" if later else "not finite since"
            return _never_fell(f"{name} is {_show(values[0])} at first and {rest}")
    return None


def on_weights(provenance: Mapping[str, Any]) -> ModelWarning | None:
    """Return a warning if the largest absolute weight is not plausible."""
    largest = provenance["weights"]["largest"]  # null: no tensor is known to be a parameter
    if largest is None or largest <= MAX_WEIGHT:
        return None
    return ModelWarning(
        kind="weights",
        sentence=f"the largest weight is {_show(largest)} in absolute value, expected at most {MAX_WEIGHT:.0e}; "
        "lower the learning rate or clip gradients",
    )


def on_resume(provenance: Mapping[str, Any]) -> ModelWarning | None:
    """Return a warning if the training resumed without values that it had before."""
    names = provenance["training"].get("unsaved")
    if not names:
        return None
    return ModelWarning(
        kind="resumed",
        sentence=f"when the training resumed, {', '.join(names)} began again, since no training checkpoint contains "
        "it; if the training depends on it, the result differs from that of an uninterrupted training; keep it in a "
        "buffer, in on_save_checkpoint or in the state_dict of a callback",
    )


def on_evaluation(evaluation: Mapping[str, Any]) -> ModelWarning | None:
    """Return a warning if one constant answer would be as good; metrics alone prove nothing."""
    if table := (evaluation.get("confusion") or {}).get("counts"):
        return _on_classes(evaluation["confusion"]["classes"], table, evaluation)
    if residuals := evaluation.get("residuals"):
        return _on_residuals(residuals["truth"], residuals["predicted"], evaluation)
    return None


def _on_classes(
    classes: Sequence[str], table: Sequence[Sequence[int]], evaluation: Mapping[str, Any]
) -> ModelWarning | None:
    """Compare with the most frequent class.

    A model that finds the rare classes at the cost of accuracy has learned: its mean recall is above chance.
    """
    rows = [sum(row) for row in table]
    total, right = sum(rows), sum(row[place] for place, row in enumerate(table))
    most = max(rows)
    if total < MIN_SAMPLES or most == total or right > most or _tells_classes(table, rows):
        return None
    return _constant(
        evaluation,
        f"accuracy {right / total:.4g}",
        f'always answering "{classes[rows.index(most)]}" ({most / total:.4g})',
    )


def _tells_classes(table: Sequence[Sequence[int]], rows: Sequence[int]) -> bool:
    """Return whether the mean recall is two standard errors above that of answers that ignore the sample."""
    seen = [place for place, number in enumerate(rows) if number]
    answered = [sum(row[place] for row in table) / sum(rows) for place in range(len(rows))]
    recall = fmean(table[place][place] / rows[place] for place in seen)
    chance = sum(answered[place] for place in seen) / len(seen)
    variance = sum(answered[place] * (1 - answered[place]) / rows[place] for place in seen)
    return recall - chance > 2 * math.sqrt(variance) / len(seen) + 1e-9


def _on_residuals(
    truth: Sequence[float], predicted: Sequence[float], evaluation: Mapping[str, Any]
) -> ModelWarning | None:
    """Compare with predicting the mean, by R2 over the recorded rows."""
    num_samples = evaluation.get("num_samples") or len(truth)
    variance = _variance(truth) if truth else 0.0
    if num_samples < MIN_SAMPLES or not variance:
        return None
    error = fmean((a - b) * (a - b) for a, b in zip(truth, predicted, strict=True))
    mse = float((evaluation.get("metrics") or {}).get("mse", error))
    is_whole = len(truth) >= num_samples
    is_flat = max(predicted) - min(predicted) <= 1e-6 * math.sqrt(variance)
    limit = 0.0 if is_whole else _MAX_SAMPLED_R2
    if not is_flat and (1 - error / variance > limit or mse < variance):
        return None
    about = "" if is_whole else "about "
    return _constant(
        evaluation, f"mse {mse:.4g}", f"always predicting the mean ({about}{variance:.4g})"
    )


def _constant(evaluation: Mapping[str, Any], found: str, answer: str) -> ModelWarning:
    return ModelWarning(
        kind="constant",
        sentence=f"{found} on the {evaluation.get('split', 'test')} split is no better than {answer}; check labels, "
        "model and optim.lr",
    )


def _never_fell(found: str) -> ModelWarning:
    return ModelWarning(
        kind="loss",
        sentence=f"the loss never fell: {found}; check optim.lr, the labels and the model's loss",
    )


def _show(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not finite"


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return fmean((value - mean) * (value - mean) for value in values)


def _words(name: str) -> set[str]:
    return set(_split(name))


def _split(name: str) -> Iterator[str]:
    return (word for word in re.split(r"[^a-z0-9]+", name.lower()) if word)


def _is_loss(name: str) -> bool:
    """Return whether a metric is a loss by its name: `train_loss`, `loss/val`, and not `loss_scale`."""
    words = [word for word in _split(name) if word not in _HELD_OUT | _PACES]
    return bool(words) and words[-1].endswith("loss")


def _fell(values: Sequence[float]) -> bool:
    """Return whether a value is below the first, or whether this cannot be decided."""
    if not any(values):
        return bool(values)  # zero from the start: nothing is left to fall
    first, later = values[0], values[1:]
    if math.isfinite(first):
        return any(value < first for value in later)
    return any(map(math.isfinite, later))


def _fell_clearly(values: Sequence[float]) -> bool:
    """Return whether the second half lies two standard errors below the first; of few values, whether any fell."""
    finite = list(filter(math.isfinite, values))
    if len(finite) < 2 * _MIN_RISEN:
        return _fell(values)
    halves = finite[: len(finite) // 2], finite[len(finite) // 2 :]
    error = math.sqrt(sum(_variance(half) / len(half) for half in halves))
    return fmean(halves[0]) - fmean(halves[1]) > 2 * error


def _is_constant(values: Sequence[float]) -> bool:
    return len(values) >= _MIN_CONSTANT and values[0] != 0 and len(set(values)) == 1


def _chance(values: Sequence[float], *, is_rounded: bool) -> float:
    """Return the chance that noise alone gives values of which none is below the first."""
    finite = list(filter(math.isfinite, values))
    if len(values) > 1 and len(finite) <= 1:
        return 0.0  # nothing finite has followed
    if _is_constant(finite):
        return 1.0 if is_rounded else 0.0
    if len(finite) >= _MIN_RISEN and 0 < _RISEN * finite[0] <= min(finite[1:]):
        return 0.0
    is_rising = all(one < other for one, other in pairwise(finite))
    number = len(finite)
    return 1 / math.factorial(min(number, 100)) if is_rising else 1 / max(number, 1)
