"""Adapter for transforms of other libraries: torchvision, albumentations, or any callable."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from shardline.core.construct import make_object
from shardline.core.error_texts import import_class
from shardline.core.errors import ConfigError, DataError
from shardline.core.objects import NamedObject
from shardline.core.suggest import did_you_mean
from shardline.data.python.applied import give_seed, try_call, with_value
from shardline.data.python.samples import given_back
from shardline.data.python.seeds import kept_generators
from shardline.data.transforms.transform_steps import Sample


class CallableTransform:
    """Call any transform with one column of the sample.

    The global generators of Python, NumPy and torch are seeded by the sample's own generator, so that a
    transform may draw from them.

    Args:
        of: Import path of the callable or of its class, or the callable.
        arguments: Arguments of the class.
        column: Name of the column.
        given: What the callable gets: an `image` of Pillow, a `tensor`, or an `array`. Default: an image;
            with `keyword`, an array.
        keyword: Name of the argument, if the callable takes keywords and returns a dict, as transforms of
            albumentations do.
    """

    def __init__(
        self, of: str | Callable[..., Any], arguments: dict[str, Any] | None = None, column: str = "image",
        given: Literal["image", "tensor", "array"] | None = None, keyword: str | None = None,
    ) -> None:  # fmt: skip
        kinds = ("image", "tensor", "array")
        if given is not None and given not in kinds:
            raise ConfigError(
                f"given={given!r} is not known, expected one of {', '.join(kinds)}; use one"
            )
        found = import_class(of, "of") if isinstance(of, str) else of
        if isinstance(of, str) and inspect.isclass(found):
            named = NamedObject(
                path=of, arguments=arguments or {}, path_key="of", key_of_arguments="arguments"
            )
            found = make_object(named, "")
        elif arguments:
            raise ConfigError(
                f"of={of} is no class, expected no arguments; remove them, or name the class"
            )
        if not callable(found):
            raise ConfigError(
                f"of={of} is {type(found).__name__}, expected a callable; name a function, a class or an object "
                "that can be called"
            )
        self.column, self._keyword, self._function = column, keyword, found
        self._given = given or ("array" if keyword else "image")

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the sample with the transformed column."""
        if self.column not in sample:
            remedy = did_you_mean(
                self.column, sample, otherwise="set `column` to the transform's column"
            )
            raise DataError(f"there is no column {self.column}, only {', '.join(sample)}; {remedy}")
        value = sample[self.column]
        if isinstance(value, bytes) and self._given != "image":
            value = np.asarray(given_back(value, "image"))
        value = given_back(value, self._given)
        if generator is None:
            found = self._call(value)
        else:
            seed = int(generator.integers(2**62))
            with kept_generators(seed):
                give_seed(self._function, seed)
                found = self._call(value)
        return with_value(sample, self.column, found)

    def _call(self, value: Any) -> Any:
        if self._keyword is None:
            return try_call(self._function, value)
        return try_call(self._function, **{self._keyword: value})[self._keyword]
