"""Images, tables and texts as a model gives them to its logger, turned into records."""

import base64
import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from msgspec import UNSET

from shardline.core.errors import ConfigError
from shardline.core.png import COLOR_TYPES, png_bytes
from shardline.core.redaction import mask
from shardline.records.metrics import Logged

_LEVEL = 6  # of compression: the training waits for it
_RGBA = 4
_PLAIN = (str, bool, int, type(None))


def images_of(name: str, images: Any, captions: Any = None) -> list[Logged]:
    """Return the records of images.

    Args:
        images: An image or a list of them: arrays or tensors of [H, W], [C, H, W] or [H, W, C] with C 1, 3 or 4, a
            batch [N, C, H, W], images of Pillow, or figures of matplotlib. Floating point values are from 0 to 1.
        captions: A text for each image.

    Raises:
        ConfigError: A value is no image, or the number of captions is another.
    """
    listed = [*_listed(name, images)]
    texts = [captions] if isinstance(captions, str) else [*(captions or [])]
    if texts and len(texts) != len(listed):
        raise ConfigError(
            f"log_image({name!r}) got {len(listed)} images and {len(texts)} captions; give one caption for each image"
        )
    return [
        Logged(name=name, png=_png(name, image), caption=_text(texts[at]) if texts else UNSET)
        for at, image in enumerate(listed)
    ]


def table_of(name: str, columns: Any, data: Any, dataframe: Any, call: str) -> Logged:
    """Return the record of a table, from columns and rows or from a data frame.

    Raises:
        ConfigError: Neither is given, or a row has another length than the columns.
    """
    if dataframe is not None:
        columns, data = [*dataframe.columns], dataframe.to_numpy(dtype=object).tolist()
    if data is None:
        raise ConfigError(
            f"{call}({name!r}) got no rows; give columns=[...] and data=[[...], ...], or dataframe="
        )
    rows = [[_cell(cell) for cell in row] for row in data]
    widths = {len(row) for row in rows}
    titles = [*map(_text, columns)] if columns is not None else [""] * max(widths, default=0)
    if widths - {len(titles)}:
        raise ConfigError(
            f"{call}({name!r}) got {len(titles)} columns and rows of {', '.join(map(str, sorted(widths)))} cells; give "
            "each row one cell for each column"
        )
    return Logged(name=name, columns=titles, rows=rows)


def text_of(name: str, text: str) -> Logged:
    """Return the record of a text, with secrets masked."""
    return Logged(name=name, text=_text(text))


def _text(value: object) -> str:
    return mask(str(value))


def _cell(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has neither NaN nor infinity
    return value if isinstance(value, _PLAIN) and not isinstance(value, str) else _text(value)


def _listed(name: str, images: Any) -> Iterator[np.ndarray]:
    for one in images if isinstance(images, list | tuple) else [images]:
        array = _array(name, one)
        yield from array if array.ndim == 4 else [array]


def _array(name: str, image: Any) -> np.ndarray:
    if isinstance(image, torch.Tensor):
        image = image.detach().cpu()
        return np.asarray(image.float() if image.is_floating_point() else image)
    if isinstance(image, np.ndarray):
        return image
    package = type(image).__module__.partition(".")[0]
    if package == "PIL":
        return np.asarray(image.convert("RGB"))
    if hasattr(image, "savefig"):
        pixels = io.BytesIO()
        image.savefig(pixels, format="rgba", dpi=image.dpi)
        width = int(image.bbox.bounds[2])
        return np.frombuffer(pixels.getvalue(), np.uint8).reshape(-1, width, _RGBA)
    raise _unknown(name, f"a {type(image).__qualname__}")


def _png(name: str, array: np.ndarray) -> str:
    image = _channels_last(array)
    if image is None or not image.size:
        raise _unknown(name, f"an array of shape {list(array.shape)}")
    if image.dtype != np.uint8:
        # floating point values are from 0 to 1, as for TensorBoard
        scale = 255 if image.dtype.kind in "fb" else 1
        finite = np.nan_to_num(image.astype(np.float32), nan=0.0)
        image = np.rint(np.clip(finite * scale, 0, 255)).astype(np.uint8)
    if image.shape[2] == _RGBA:  # over white, as a page shows it
        alpha = image[:, :, 3:].astype(np.float32) / 255
        image = np.rint(image[:, :, :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    png = png_bytes(np.ascontiguousarray(image), COLOR_TYPES[image.shape[2]], level=_LEVEL)
    return base64.b64encode(png).decode()


def _channels_last(array: np.ndarray) -> np.ndarray | None:
    known = (*COLOR_TYPES, _RGBA)
    if array.ndim not in (2, 3) or array.dtype.kind not in "fiub":
        return None
    if array.ndim == 2:
        return array[:, :, None]
    if array.shape[0] in known:
        return np.moveaxis(array, 0, 2)
    return array if array.shape[2] in known else None


def _unknown(name: str, found: str) -> ConfigError:
    return ConfigError(
        f"log_image({name!r}) got {found}, expected images of [H, W], [C, H, W] or [H, W, C] with 1, 3 or 4 channels, "
        "a batch [N, C, H, W], images of Pillow or figures of matplotlib; convert it to one of these"
    )
