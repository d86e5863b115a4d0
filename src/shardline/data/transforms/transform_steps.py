"""Construction and calls of the transforms in the settings, with errors that name setting and sample."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shardline.config.code_paths import SHIPPED_TRANSFORMS
from shardline.core.construct import make_object
from shardline.core.error_texts import short_traceback
from shardline.core.errors import ConfigError, DataError
from shardline.core.objects import as_table, read_object
from shardline_io.order.chance import Key, generator_of

if TYPE_CHECKING:
    from shardline.data.python.applied import OwnTransforms

CALLABLE = "callable"  # the shipped transform that calls any other
Sample = dict[str, Any]  # by column: a read-only array, bytes, a text, or None
Samples = Sequence[tuple[Key, Sample]]
Transform = Callable[..., Sample]
Result = TypeVar("Result")
Where = Callable[[Key], str]  # describes a sample, such as "dataset web-12ab: row id 7"


@dataclass(frozen=True, kw_only=True)
class TransformSpec:
    """A transform as written in the settings. Each thread or process makes its own instance.

    Attributes:
        written: Import path or name of a shipped transform; a table with `type` and arguments; or
            a list of these.
        what: Name of the setting, such as `data.transform`.
        has_chance: Whether the transform is called with a generator in addition to the sample.
        own: Transforms that datasets have of their own, by the key of their part of the stream; they are
            applied after the others.
    """

    written: Any
    what: str
    has_chance: bool = True
    own: Mapping[int, "OwnTransforms"] = field(default_factory=dict)

    @property
    def draws_from_globals(self) -> bool:
        """Whether steps draw from seeded global generators, which threads would share."""
        return bool(self.own) or any(_type_of(one) == CALLABLE for one in _listed(self.written))

    def make(self) -> "TransformSteps":
        """Import and construct the transform.

        Raises:
            ConfigError: The transform cannot be imported, constructed or called with the arguments
                that it gets. The message names the setting.
        """
        named = [(self.what, self.written)]
        if isinstance(self.written, list | tuple):
            named = [(f"{self.what}.{place}", one) for place, one in enumerate(self.written)]
        return TransformSteps(
            [
                _Step(f"{n}={_type_of(one)}", _make(one, n), self.has_chance)
                for n, one in (named if self.written is not None else ())
            ],
            has_chance=self.has_chance,
            own={part: _OwnStep(one.name, one.make()) for part, one in self.own.items()},
        )


def _listed(written: Any) -> Sequence[Any]:
    return written if isinstance(written, list | tuple) else [] if written is None else [written]


def _type_of(written: Any) -> str:
    return str(as_table(written, "data.transform")["type"])


def _make(written: Any, name: str) -> Transform:
    named = read_object(written, name, expected="a shipped transform or an import path")
    transform: Transform = make_object(named, "", shipped=SHIPPED_TRANSFORMS)
    return transform


class _Step:
    """One transform of a list, with its name for errors."""

    def __init__(self, name: str, transform: Transform, has_chance: bool) -> None:
        self.name, self._transform = name, transform
        given, wanted = (None,) * (1 + has_chance), "(sample, generator)"
        if not has_chance:
            wanted = "(sample)"
        try:
            inspect.signature(transform).bind(*given)
        except TypeError as error:
            raise ConfigError(
                f"{name} cannot be called with {wanted} ({error}), expected a class with "
                f"`def __call__(self, {wanted.strip('()')})`; for use in both settings, declare `generator=None`"
            ) from None

    def __call__(self, sample: Sample, *generator: np.random.Generator) -> Sample:
        try:
            result = self._transform(sample, *generator)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{self.name}: {error}") from None
        except Exception as error:
            raise DataError(f"{self.name} failed: {short_traceback(error)}") from error
        if not isinstance(result, dict):
            raise DataError(
                f"{self.name} returned {type(result).__name__}, expected a dict by column; return the sample from it"
            )
        return result


@dataclass(frozen=True)
class _OwnStep:
    """The transforms that a dataset has of its own, with their name for errors."""

    name: str
    apply: Callable[[Key, Sample], Sample]

    def __call__(self, key: Key, sample: Sample) -> Sample:
        try:
            return self.apply(key, sample)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{self.name}: {error}") from error.__cause__


class TransformSteps:
    """A list of transforms that are called in order.

    Args:
        steps: Transforms in order.
        has_chance: Whether to call them with a generator.
        own: Transforms of the datasets, by the key of their part of the stream.
    """

    def __init__(
        self, steps: Sequence[_Step], *, has_chance: bool, own: Mapping[int, _OwnStep] | None = None
    ) -> None:
        self.steps, self._has_chance, self._own = steps, has_chance, own or {}

    def __call__(
        self, key: Key, sample: Sample, *, note: Callable[[str, Sample], None] | None = None
    ) -> Sample:
        """Return the transformed sample, which depends on key and sample alone.

        Args:
            key: Key of the sample, which seeds its generator.
            sample: Values by column.
            note: Function that is called with the name and result of each step.

        Raises:
            DataError: A step failed or returned no dict. The message names the step.
        """
        generator = (generator_of(*key),) if self._has_chance else ()
        sample = dict(sample)  # a step may change the dict
        for step in self.steps:
            sample = step(sample, *generator)
            if note:
                note(step.name, sample)
        if own := self._own.get(key[1]):
            sample = own(key, sample)
            if note:
                note(own.name, sample)
        return sample


def transform_all(
    steps: Callable[[Key, Sample], Result], samples: Samples, where: Where
) -> list[Result]:
    """Return the result of `steps` for each sample.

    Raises:
        DataError, ConfigError: A sample cannot be transformed. The message names sample and step.
    """
    results = []
    for key, sample in samples:
        try:
            results.append(steps(key, sample))
        except (ConfigError, DataError) as error:
            raise type(error)(f"{where(key)}: {error}") from error.__cause__
    return results
