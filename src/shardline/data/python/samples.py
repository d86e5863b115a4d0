"""Samples of a torch dataset: their named values, and the conversion of values to arrays, bytes and texts."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from shardline.core.error_texts import import_class
from shardline.core.errors import DataError

WHOLE = ""  # place of the whole sample


def is_image(value: object) -> bool:
    """Return whether a value is an image of Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of torch."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def form_of(sample: object) -> str:
    """Return the form of a sample: `dict`, `object` (with named attributes), `tuple` or `value`."""
    if isinstance(sample, Mapping):
        return "dict"
    if hasattr(sample, "_fields") or (is_dataclass(sample) and not isinstance(sample, type)):
        return "object"
    return "tuple" if isinstance(sample, tuple | list) else "value"


def places_of(sample: Any, names: Sequence[str] = ()) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name of each part of a sample, its value, and whether the value becomes a column.

    Args:
        names: names of the values of a tuple; by default, by their number and types.
    """
    yield WHOLE, sample, False
    form = form_of(sample)
    if form == "value":
        yield (*names, _name_of(sample))[0], sample, True
        return
    named: Mapping[Any, Any]
    if form == "tuple":
        names = names if len(names) == len(sample) else _names_of(sample)
        named = dict(zip(names, sample, strict=True))
    else:
        named = _named(sample)
    for name, value in named.items():
        yield from _below(str(name), value)


def _named(sample: Any) -> Mapping[Any, Any]:
    if isinstance(sample, Mapping):
        return sample
    if is_dataclass(sample):
        return {one.name: getattr(sample, one.name) for one in fields(sample)}
    return dict(zip(sample._fields, sample, strict=True))


def _below(name: str, value: Any) -> Iterator[tuple[str, Any, bool]]:
    form = form_of(value)
    if form == "value" or (form == "tuple" and not any(map(_is_part, value))):
        yield name, value, True
        return
    yield name, value, False
    inner = dict(enumerate(value)) if form == "tuple" else _named(value)
    for key, one in inner.items():
        yield from _below(f"{name}.{key}", one)


def _is_part(value: Any) -> bool:
    """Return whether a value in a list becomes a column of its own, unlike a number."""
    return not isinstance(value, bool | int | float | np.generic) and not (
        isinstance(value, tuple | list) and not any(map(_is_part, value))
    )


def _names_of(values: Sequence[Any]) -> list[str]:
    if len(values) != 2:
        return [f"value_{place}" for place in range(len(values))]
    return [_name_of(values[0]), "target" if form_of(values[1]) in ("dict", "object") else "labels"]


def _name_of(value: Any) -> str:
    if is_image(value):
        return "image"
    if isinstance(value, str | PurePath):
        return "text"
    return "content" if isinstance(value, bytes | bytearray | memoryview) else "features"


def kind_of_value(value: Any) -> str:
    """Return how a value is given back to a transform: as `image`, `tensor`, `array` or `value`."""
    if is_image(value):
        return "image"
    if is_tensor(value):
        return "tensor"
    return "array" if isinstance(value, np.ndarray) else "value"


def stored(value: Any, *, as_file: bool = False) -> np.ndarray | bytes | str | None:
    """Return a value as it is stored: an array, bytes, a text, or None for a missing value.

    Args:
        as_file: whether an image becomes the bytes of a PNG file, which is needed if sizes differ.

    Raises:
        DataError: the value cannot be stored; the message describes it without its column.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, PurePath):
        return str(value)
    if is_image(value):
        found: np.ndarray | bytes = _of_images("png" if as_file else "pixels")(value)
        return found
    if is_tensor(value):
        value = _array_of(value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"a value of type {_type_of(value)}, expected numbers, arrays, tensors, images of Pillow, texts or bytes; "
            "convert it in the class"
        )
    return array


def _type_of(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"{type(value).__name__}{f' of {dtype}' if dtype is not None else ''}"


def _array_of(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu()
    try:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"a tensor of {tensor.layout} {tensor.dtype} ({error}), expected a dense tensor of numbers; convert it in "
            "the class"
        ) from None


def _of_images(name: str) -> Any:
    """Return a function of `images`, which needs Pillow; not all environments have it."""
    return import_class(f"shardline.data.python.images:{name}", "images")


def size_of_image(image: Any) -> tuple[int, int, int] | None:
    """Return height, width and channels of an image that can be stored as an array, else None."""
    found: tuple[int, int, int] | None = _of_images("size_of_image")(image)
    return found


def given_back(value: Any, kind: str) -> Any:
    """Return a stored value as the dataset had it, for a transform; the inverse of `stored`.

    Raises:
        DataError: the value is not an image, although the dataset had one.
    """
    if value is None or is_image(value):
        return value
    if kind == "image":
        return _of_images("image_of")(value)
    if kind == "value":
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    array = np.array(value)  # a copy, since transforms may write into it
    return sys.modules["torch"].from_numpy(array) if kind == "tensor" else array
