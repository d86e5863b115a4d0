"""Check what a model's `describe_sample` returns, and reduce it to a small record for the evaluation."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean
from shardline.records.evaluations import SampleView
from shardline.training.pictures import is_image, mask_picture, picture

MAX_SIDE = 96
MAX_BOXES = 50
MAX_CHARS = 400
MAX_CLASSES = 12
_MAX_TOKENS = 2000
_KEYS = ("image", "mask", "boxes", "labels", "scores", "text", "label", "predicted")
_PAIR = ("true", "predicted")
_TEXTS = ("prompt", *_PAIR)
# control characters are replaced by visible symbols, except tabs and line ends
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


@dataclass(frozen=True, kw_only=True)
class SampleViews:
    """Makes the records of single samples.

    Attributes:
        what: Name of the method in messages.
        classes: Names of the dataset's classes, shown for the integers in masks and labels; may be empty.
    """

    what: str
    classes: Sequence[str]

    def view(
        self, described: Any, default_image: Any, spell: Callable[[Sequence[int]], str]
    ) -> SampleView:
        """Return the record of a sample.

        Args:
            described: Result of `describe_sample`.
            default_image: Image of the batch, used if the method returns no image; None if there is none.
            spell: Function that returns the text of tokens.

        Returns:
            Those keys of `image` and `mask` (PNG data URLs), `boxes`, `text`, `label` and `predicted` that are
            known; see docs/how-to/evaluate-a-model.md.

        Raises:
            ConfigError: A key is unknown or a value has another form; the message names both.
        """
        if not isinstance(described, Mapping):
            raise ConfigError(
                f"{self.what} returned {type(described).__name__}, expected a dict with some of {', '.join(_KEYS)}"
            )
        for key in described:
            if key not in _KEYS:
                remedy = did_you_mean(str(key), _KEYS, otherwise="leave it out")
                self._refuse(str(key), "an unknown key", f"one of {', '.join(_KEYS)}", remedy)
        image = self._image(described.get("image"), default_image)
        size = None if image is None else _size(image)
        found: SampleView = {}
        if image is not None:
            found["image"] = _drawn(image)
        if "mask" in described:
            found["mask"] = self._mask(described["mask"], size)
        if "boxes" in described:
            found["boxes"] = self._boxes(described, size)
        if "text" in described:
            found["text"] = self._text(described["text"], spell)
        return found | {
            k: self._value(k, described[k]) for k in ("label", "predicted") if k in described
        }

    def _refuse(self, key: str, value: str, expected: str, remedy: str = "fix the method") -> None:
        raise ConfigError(f"{self.what} returned {key} as {value}, expected {expected}; {remedy}")

    def _image(self, given: Any, default: Any) -> np.ndarray | None:
        if given is None:
            image = None if default is None else _array(default)
            return image if image is not None and is_image(image.shape) else None
        image = _array(given)
        if not is_image(image.shape) or image.dtype.kind not in "iufb":
            expected = "numbers of the shape [H, W], [C, H, W] or [H, W, C] with 1 or 3 channels"
            self._refuse("image", _form(image), expected, "return the image of one sample")
        return image

    def _pair(self, key: str, given: Any, names: Sequence[str] = _PAIR) -> SampleView:
        if not isinstance(given, Mapping) or not given.keys() <= set(names):
            shown = (
                f"a dict with {', '.join(map(str, given))}"
                if isinstance(given, Mapping)
                else type(given).__name__
            )
            self._refuse(key, shown, f"a dict with some of {', '.join(names)}")
        return {name: given[name] for name in names if given.get(name) is not None}

    def _mask(self, given: Any, size: tuple[int, int] | None) -> SampleView:
        masks = {kind: _array(mask) for kind, mask in self._pair("mask", given).items()}
        for kind, mask in masks.items():
            if (
                mask.dtype.kind not in "iub"
                or mask.ndim != 2
                or not mask.size
                or mask.shape != (size or mask.shape)
            ):
                expected = (
                    f"integers of the shape {list(size)}, the image's"
                    if size
                    else "integers of the shape [H, W]"
                )
                self._refuse(f"mask.{kind}", _form(mask), f"{expected}, a class for each pixel")
        numbers = sorted(
            {int(one) for mask in masks.values() for one in np.unique(mask) if one > 0}
        )
        names = {str(number): self._name(number) for number in numbers[:MAX_CLASSES]}
        return {kind: mask_picture(mask, MAX_SIDE) for kind, mask in masks.items()} | {
            "classes": names
        }

    def _boxes(self, described: Mapping[Any, Any], size: tuple[int, int] | None) -> SampleView:
        if size is None:
            self._refuse(
                "boxes", "boxes without an image", "boxes and an image", "return the image as well"
            )
        assert size is not None
        boxes = {kind: _array(of) for kind, of in self._pair("boxes", described["boxes"]).items()}
        labels = self._pair("labels", described.get("labels", {}))
        scores = {"predicted": described["scores"]} if described.get("scores") is not None else {}
        found: SampleView = {}
        left_out = 0
        for kind, array in boxes.items():
            if array.dtype.kind not in "iuf" or (
                array.size and (array.ndim != 2 or array.shape[1] != 4)
            ):
                self._refuse(
                    f"boxes.{kind}",
                    _form(array),
                    "numbers of the shape [n, 4]: left, top, right, bottom",
                )
            rows = array.reshape(-1, 4)
            beside = {"label": self._beside(f"labels.{kind}", labels.get(kind), len(rows))}
            beside["score"] = self._beside("scores", scores.get(kind), len(rows))
            found[kind] = _placed(
                rows, size, {name: of for name, of in beside.items() if of is not None}
            )
            left_out += len(rows) - len(found[kind])
        return found | ({"left_out": left_out} if left_out else {})

    def _beside(self, key: str, given: Any, count: int) -> list[Any] | None:
        if given is None:
            return None
        values = given if isinstance(given, list | tuple) else _array(given).reshape(-1).tolist()
        if len(values) != count:
            self._refuse(key, f"{len(values)} values", f"{count} values, one for each box")
        return [self._value(key, value) for value in values]

    def _text(self, given: Any, spell: Callable[[Sequence[int]], str]) -> dict[str, str]:
        found = {}
        for name, value in self._pair("text", given, _TEXTS).items():
            if not isinstance(value, str):
                tokens = _array(value)
                if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
                    self._refuse(
                        f"text.{name}", _form(tokens), "a string, or its tokens as integers [n]"
                    )
                part = tokens[-_MAX_TOKENS:] if name == "prompt" else tokens[:_MAX_TOKENS]
                value = spell([int(one) for one in part])
            found[name] = _cut(value, from_end=name == "prompt")
        return found

    def _value(self, key: str, value: Any) -> str | float | None:
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            value = value.item() if _array(value).size == 1 else str(list(value.shape))
        if isinstance(value, str):
            return _cut(value, from_end=False)
        if (
            isinstance(value, int)
            and key != "scores"
            and (self.classes or key.startswith("labels"))
        ):
            return self._name(value)
        if not isinstance(value, int | float):
            self._refuse(key, type(value).__name__, "a string or a number")
        return _number(value)

    def _name(self, number: int) -> str:
        return str(self.classes[number]) if 0 <= number < len(self.classes) else str(number)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
        found: np.ndarray = value.numpy()
        return found
    return np.asarray(value)


def _form(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _size(image: np.ndarray) -> tuple[int, int]:
    """Return height and width of an image that `is_image` accepts."""
    if image.ndim == 3 and image.shape[0] not in (1, 3):
        return image.shape[0], image.shape[1]
    return image.shape[-2], image.shape[-1]


def _drawn(image: np.ndarray) -> str:
    if image.dtype == np.uint8:
        return picture(image, max_side=MAX_SIDE)
    values = image.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    return picture(values, (low, high), MAX_SIDE)


def _placed(
    rows: np.ndarray, size: tuple[int, int], beside: Mapping[str, Sequence[Any]]
) -> list[SampleView]:
    """Return boxes as fractions of the image's width and height, by falling score.

    Boxes are clipped to the image. Boxes that are not finite, empty or wholly outside are left out, and
    all boxes after the first `MAX_BOXES`.
    """
    height, width = size
    shares = rows.astype(np.float64) / [width, height, width, height]
    shares = np.where(np.isnan(shares), np.nan, np.clip(shares, 0, 1))
    finite = np.isfinite(rows.astype(np.float64)).all(axis=1)
    is_kept = finite & (shares[:, 0] < shares[:, 2]) & (shares[:, 1] < shares[:, 3])
    kept = np.flatnonzero(is_kept).tolist()
    if scores := beside.get("score"):
        kept.sort(
            key=lambda place: -math.inf if scores[place] is None else scores[place], reverse=True
        )
    return [
        {"at": [round(share, 4) for share in shares[place].tolist()]}
        | {name: of[place] for name, of in beside.items()}
        for place in kept[:MAX_BOXES]
    ]


def _cut(text: str, *, from_end: bool) -> str:
    if len(text) > MAX_CHARS:
        text = "…" + text[-MAX_CHARS:] if from_end else text[:MAX_CHARS] + "…"
    # UTF-8 cannot encode a lone surrogate
    return text.translate(_VISIBLE).encode("utf-8", "replace").decode()


def _number(value: float) -> float | None:
    return (
        value if isinstance(value, int) else float(f"{value:.6g}") if math.isfinite(value) else None
    )
