"""Transforms of torch datasets, applied to samples when rows are read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET

from shardline.config.resolved import PythonObject
from shardline.core.error_texts import short_traceback
from shardline.core.errors import DataError, ShardlineError
from shardline.data.python.opened import ALL
from shardline.data.python.reader import Reader
from shardline.data.python.samples import WHOLE, given_back, places_of, stored
from shardline.data.python.seeds import kept_generators
from shardline.data.transforms.transform_steps import Sample
from shardline.records.datasets import Call, Manifest, SampleForm
from shardline_io.order.chance import Key, generator_of

_INDEX = (1 << 40) - 1  # of a row id, see `data.python.source`


@dataclass(frozen=True, kw_only=True)
class OwnTransforms:
    """Transforms that a dataset has of its own, for the rows of a split.

    Attributes:
        given: The object of the source.
        form: Form of the samples, from the manifest.
        split: Split of the rows.
        has_chance: Whether each pass over the rows draws other random numbers.
    """

    given: PythonObject
    form: SampleForm
    split: str
    has_chance: bool

    @property
    def calls(self) -> list[Call]:
        """Calls to make for a row."""
        return _of_split(self.form, self.split)

    @property
    def name(self) -> str:
        """Name in messages."""
        attributes = dict.fromkeys(call.attribute for call in self.calls)
        return f"{' and '.join(attributes)} of {self.given.path}"

    def make(self) -> Callable[[Key, Sample], Sample]:
        """Construct the object of the source; once in a process.

        Raises:
            ConfigError, DataError: the object cannot be constructed on this machine.
        """
        return self.steps(_open(msgspec.json.encode(self.given)))

    def steps(self, reader: Reader) -> Callable[[Key, Sample], Sample]:
        """Return the function that applies the transforms of an open object to a sample."""
        split = ALL if ALL in reader.opened.splits else self.split
        rows = reader.opened.splits[split]

        def apply(key: Key, sample: Sample) -> Sample:
            index, length = int(key[3]) & _INDEX, rows.length
            # a check reads rows of the train split as rows of the others
            place = 0 if length is None else rows.index(index % length)
            found = [reader.recorders.find(rows.dataset, place, call) for call in self.calls]
            seed = seed_of(key if self.has_chance else (*key[:2], 0, key[3]))
            with kept_generators(seed):
                for number, (call, transform) in enumerate(zip(self.calls, found, strict=True)):
                    if transform:
                        give_seed(transform, seed + number)
                        sample = self._apply(transform, call, sample)
            return sample

        return apply

    def _apply(self, transform: Callable[..., Any], call: Call, sample: Sample) -> Sample:
        arguments = [self._value(sample, place) for place in call.arguments]
        keywords = {name: self._value(sample, place) for name, place in call.keywords.items()}
        found = try_call(transform, *arguments, **keywords)
        if keywords:
            results = [(place, found[name]) for name, place in call.keywords.items()]
        elif len(arguments) == 1:
            results = [(call.arguments[0], found)]
        else:
            results = list(zip(call.arguments, found, strict=True))
        for place, value in results:
            sample = self._replaced(sample, place, value)
        return sample

    def _value(self, sample: Sample, place: str) -> Any:
        """Return the value at a place of a sample, as the dataset had it."""
        if place in sample:
            return given_back(sample[place], self.form.kinds.get(place, "value"))
        names = [name for name in sample if name.startswith(f"{place}.")]
        if place == WHOLE:
            names = [name for name in self.form.kinds if name in sample]
        values = {name: self._value(sample, name) for name in names}
        if place == WHOLE and self.form.form == "tuple":
            return tuple(values.values())
        nested: dict[str, Any] = {}
        for name, value in values.items():
            *groups, last = name[len(place) + bool(place) :].split(".")
            table = nested
            for group in groups:
                table = table.setdefault(group, {})
            table[last] = value
        return nested

    def _replaced(self, sample: Sample, place: str, value: Any) -> Sample:
        """Return a sample with another value at a place."""
        if place == WHOLE:
            names = tuple(self.form.kinds)
            others = {name: of for name, of in sample.items() if name not in names}
            return others | columns_of_value(value, names if self.form.form == "tuple" else ())
        return with_value(sample, place, value)


def calls_of(manifest: Manifest, split: str) -> list[Call]:
    """Return the calls of transforms that the rows of a split need, if any."""
    return _of_split(manifest.samples, split) if manifest.samples is not UNSET else []


def _of_split(form: SampleForm, split: str) -> list[Call]:
    return form.calls.get(split) or form.calls.get(ALL, [])


@lru_cache(maxsize=8)
def _open(given: bytes) -> Reader:
    with kept_generators():
        return Reader(msgspec.json.decode(given, type=PythonObject), 0)


def columns_of_value(value: Any, names: tuple[str, ...]) -> Sample:
    """Return what a transform returned as values by column.

    Raises:
        DataError: a value is neither numbers, nor an image, text or bytes.
    """
    found = {}
    for name, one, is_column in places_of(value, names):
        if is_column:
            try:
                found[name] = stored(one)
            except DataError as error:
                raise DataError(f"returned for column {name} {error}") from None
    return found


def with_value(sample: Sample, place: str, value: Any) -> Sample:
    """Return a sample with the value that a transform returned for a column, or for columns below a name."""
    new = columns_of_value((value,), (place,))
    found: Sample = {}
    for name, of in sample.items():
        found |= new if name == place or name.startswith(f"{place}.") else {name: of}
    return found


def seed_of(key: Key) -> int:
    """Return the seed of a sample's random numbers, for transforms that draw from global generators."""
    return int(generator_of(*key).integers(2**62))


def give_seed(transform: Any, seed: int) -> None:
    """Seed a transform that has generators of its own, as albumentations has."""
    if hasattr(transform, "set_random_seed"):
        transform.set_random_seed(seed % 2**32)


def try_call(transform: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a transform.

    Raises:
        DataError: the transform fails.
    """
    try:
        return transform(*arguments, **keywords)
    except ShardlineError:
        raise
    except Exception as error:
        raise DataError(f"failed: {short_traceback(error)}") from error
