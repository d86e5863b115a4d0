"""A transform of the settings, made and called: its mistakes are named by setting and sample."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from shardline.config.code_paths import SHIPPED_TRANSFORMS
from shardline.core.error_texts import check_arguments, import_class, short_traceback
from shardline.core.errors import ConfigError, DataError, ShardlineError
from shardline_io.order.chance import Key, generator_of

Sample = dict[str, Any]  # by column: an array (that cannot be written to), bytes, a text, or None
Samples = Sequence[tuple[Key, Sample]]
Transform = Callable[..., Sample]
Result = TypeVar("Result")
Where = Callable[[Key], str]  # names a sample in messages, such as "dataset web-12ab: row id 7"


@dataclass(frozen=True, kw_only=True)
class TransformSpec:
    """A transform as the settings name it; each thread or process makes its own.

    Attributes:
        written: an import path or the name of a shipped transform; a table with `type` and
            arguments; or a list of these.
        what: the setting, such as `data.transform`.
        has_chance: whether it is called with a generator beside the sample.
    """

    written: Any
    what: str
    has_chance: bool = True

    def make(self) -> "TransformSteps":
        """Import and construct the transform.

        Raises:
            ConfigError: it does not import, refuses its arguments or cannot be called with what it
                will be called with; the message names the setting.
        """
        named = [(self.what, self.written)]
        if isinstance(self.written, list | tuple):
            named = [(f"{self.what}.{place}", one) for place, one in enumerate(self.written)]
        return TransformSteps(
            [_Step(f"{n}={_type_of(one)}", _make(one, n), self.has_chance) for n, one in named],
            has_chance=self.has_chance,
        )


def _type_of(written: Any) -> str:
    return str(written["type"] if isinstance(written, Mapping) else written)


def _make(written: Any, name: str) -> Transform:
    path = _type_of(written)
    arguments = dict(written) if isinstance(written, Mapping) else {}
    arguments.pop("type", None)
    cls = import_class(SHIPPED_TRANSFORMS.get(path, path), name)
    check_arguments(cls, arguments, f"{name}={path}", "change the arguments beside `type`")
    try:
        transform: Transform = cls(**arguments)
    except ShardlineError as error:
        raise ConfigError(f"{name}={path}: {error}") from None
    except Exception as error:
        raise ConfigError(f"{name}={path} cannot be made: {short_traceback(error)}") from error
    return transform


class _Step:
    """One transform of a list, which is named where it fails."""

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
                f"`def __call__(self, {wanted.strip('()')})`; a transform for both settings has `generator=None`"
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
                f"{self.name} returned {type(result).__name__}, expected a dict by column; let it return the sample"
            )
        return result


class TransformSteps:
    """Transforms, one after another.

    Args:
        steps: in their order.
        has_chance: whether they are called with a generator.
    """

    def __init__(self, steps: Sequence[_Step], *, has_chance: bool) -> None:
        self.steps, self._has_chance = steps, has_chance

    def __call__(
        self, key: Key, sample: Sample, *, note: Callable[[str, Sample], None] | None = None
    ) -> Sample:
        """Return a sample transformed: a function of its key and the sample.

        Args:
            note: is given each step's name and result.

        Raises:
            DataError: a step failed, or gave no dict; the message names the step.
        """
        generator = (generator_of(*key),) if self._has_chance else ()
        sample = dict(sample)  # which a step may change
        for step in self.steps:
            sample = step(sample, *generator)
            if note:
                note(step.name, sample)
        return sample


def transform_all(
    steps: Callable[[Key, Sample], Result], samples: Samples, where: Where
) -> list[Result]:
    """Return samples transformed, or what else a function makes of each.

    Raises:
        DataError, ConfigError: one of them cannot be; the message names sample and step.
    """
    results = []
    for key, sample in samples:
        try:
            results.append(steps(key, sample))
        except (ConfigError, DataError) as error:
            raise type(error)(f"{where(key)}: {error}") from error.__cause__
    return results
