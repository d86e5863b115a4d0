"""The space of a sweep: settings that vary, their values, and rows of values in a fixed order."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any

from msgspec import UNSET

from shardline.config.settings import Plain, fill, schema_at
from shardline.config.settings.run_settings import RunSettings
from shardline.config.settings.sweep_settings import Dimension
from shardline.config.validate import coerce, problems_of, suggest_setting
from shardline.core.canonical import canonical_json
from shardline.core.errors import ConfigError

# A value of each dimension: a number, the place of a choice, or None where `when` does not apply.
Row = list[int | float | None]

_KINDS = ("uniform", "log", "int", "int_log", "choices")
_A_SWEEP_EACH = "write a sweep for each value, with another base run"
_EXCLUDED = {
    "nodes": f"decides the geometry; {_A_SWEEP_EACH}",
    "devices": f"decides the geometry; {_A_SWEEP_EACH}",
    "accelerator": f"decides the geometry; {_A_SWEEP_EACH}",
    "strategy": f"decides the geometry; {_A_SWEEP_EACH}",
    "elastic": f"decides the geometry; {_A_SWEEP_EACH}",
    "environment": f"decides the environment; {_A_SWEEP_EACH}",
    "fold": f"decides the rows of the dataset; {_A_SWEEP_EACH}",
    "dataset": f"decides the dataset; {_A_SWEEP_EACH}",
    "model": f"decides the program; {_A_SWEEP_EACH}",
    "code_files": f"decides the program; {_A_SWEEP_EACH}",
    "init_from": f"decides the weights at the start; {_A_SWEEP_EACH}",
    "init": f"decides the weights at the start; {_A_SWEEP_EACH}",
    "average": f"names other runs; {_A_SWEEP_EACH}",
    "ensemble": f"names other runs; {_A_SWEEP_EACH}",
    "uncounted_args": "decides which settings count; set it in the base run",
    "seed": "is no choice to search for; set `seeds` for several trainings per trial",
    "evaluation": "changes no validation metric; drop it from the space",
    "checkpoint": "changes no validation metric; drop it from the space",
}


class Space:
    """The settings that a sweep varies, each after the settings that its `when` names.

    Args:
        entries: `space` of the sweep.

    Attributes:
        dimensions: Values of each setting, by dotted key.
    """

    def __init__(self, entries: Mapping[str, list[Any] | Dimension]) -> None:
        given = {
            key: one if isinstance(one, Dimension) else Dimension(choices=one)
            for key, one in sorted(entries.items())
        }
        self.dimensions: dict[str, Dimension] = {}
        while len(self.dimensions) < len(given):
            ready = [
                key
                for key, one in given.items()
                if key not in self.dimensions and one.when.keys() <= self.dimensions.keys()
            ]
            if not ready:
                left = sorted(given.keys() - self.dimensions.keys())
                raise ConfigError(
                    f".{left[0]}.when names {', '.join(sorted(given[left[0]].when))}, which is not in the space, or "
                    "the conditions form a circle; add the setting, or drop the condition"
                )
            self.dimensions[ready[0]] = given[ready[0]]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Dotted keys in the order of a row."""
        return tuple(self.dimensions)

    @cached_property
    def choices(self) -> dict[str, list[Any]]:
        """Choices by key, of the settings that have choices."""
        return {
            key: [typed(key, one) for one in values]
            for key, dimension in self.dimensions.items()
            if (values := dimension.choices)
        }

    def applies(self, key: str, settings: Plain) -> bool:
        """Return whether a setting is varied, given the settings before it."""
        return all(
            name in settings
            and canonical_json(settings[name])
            in {canonical_json(typed(name, one)) for one in (wanted if isinstance(wanted, list) else [wanted])}
            for name, wanted in self.dimensions[key].when.items()
        )  # fmt: skip

    def settings_of(self, row: Sequence[int | float | None]) -> dict[str, Any]:
        """Return the varied settings of a row by dotted key, with their types."""
        return {
            key: self.choices[key][int(value)] if key in self.choices else typed(key, value)
            for key, value in zip(self.keys, row, strict=True)
            if value is not None
        }

    def draw(self, value_of: Any) -> Row:
        """Return a row whose values come from `value_of(key, dimension)`, with None where `when` does not apply."""
        settings: dict[str, Any] = {}
        row: Row = []
        for key, dimension in self.dimensions.items():
            value = value_of(key, dimension) if self.applies(key, settings) else None
            row.append(value)
            if value is not None:
                settings[key] = self.choices[key][value] if key in self.choices else value
        return row

    def grid(self) -> Iterator[Row]:
        """Yield every combination of choices once, the last setting fastest."""
        seen = set[str]()
        for places in itertools.product(*(range(len(self.choices[key])) for key in self.keys)):
            if not self.has_conditions:
                yield [*places]
                continue
            place = dict(zip(self.keys, places, strict=True))
            row = self.draw(lambda key, _, place=place: place[key])
            if (text := str(row)) not in seen:
                seen.add(text)
                yield row

    @cached_property
    def has_conditions(self) -> bool:
        """Whether a setting is varied only with certain others."""
        return any(one.when for one in self.dimensions.values())

    @cached_property
    def num_points(self) -> int:
        """The number of combinations of choices; without conditions, none of them is made."""
        if self.has_conditions:
            return sum(1 for _ in self.grid())
        return math.prod(len(self.choices[key]) for key in self.keys)

    def rows(self, number: int) -> Iterator[Row]:
        """Yield the first rows of the grid."""
        return itertools.islice(self.grid(), number)

    def random_row(self, random: Random) -> Row:
        """Return a row at random, for checks; samplers of studies have their own."""

        def value_of(key: str, dimension: Dimension) -> int | float:
            if key in self.choices:
                return random.randrange(len(self.choices[key]))
            kind, (low, high) = kind_of(dimension), bounds_of(dimension)
            if "log" in kind:
                found = math.exp(random.uniform(math.log(low), math.log(high)))
            else:
                found = random.uniform(low, high)
            return min(max(round(found), int(low)), int(high)) if "int" in kind else found

        return self.draw(value_of)

    def ends(self, *, is_last: bool) -> dict[str, Any]:
        """Return the first or the last choice of each setting, or that end of its range, where `when` applies."""

        def value_of(key: str, dimension: Dimension) -> int | float:
            if key in self.choices:
                return (len(self.choices[key]) - 1) * is_last
            return bounds_of(dimension)[is_last]

        return self.settings_of(self.draw(value_of))

    def settings_for(self, key: str) -> dict[str, Any]:
        """Return settings of other dimensions with which a setting is varied."""
        found: dict[str, Any] = {}
        for name, wanted in self.dimensions[key].when.items():
            found |= self.settings_for(name)
            found[name] = typed(name, wanted[0] if isinstance(wanted, list) else wanted)
        return found

    def values_of(self, key: str) -> list[Any]:
        """Return the choices of a setting, or the ends of its range."""
        if key in self.choices:
            return self.choices[key]
        return [typed(key, one) for one in bounds_of(self.dimensions[key])]


def kind_of(dimension: Dimension) -> str:
    """Return the key that a dimension sets: `uniform`, `log`, `int`, `int_log` or `choices`."""
    return next(kind for kind in _KINDS if _of_kind(dimension, kind) is not UNSET)


def bounds_of(dimension: Dimension) -> tuple[float, float]:
    """Return the lowest and the highest number of a range."""
    low, high = _of_kind(dimension, kind_of(dimension))
    return low, high


def _of_kind(dimension: Dimension, kind: str) -> Any:
    return getattr(dimension, {"int": "integer", "int_log": "log_int"}.get(kind, kind))


def typed(key: str, value: Any) -> Any:
    """Return a value of a run's setting as a cell of the table would give it."""
    schema = schema_at(RunSettings, key)
    return fill(coerce(value, schema), schema)


def problems_of_space(entries: Mapping[str, list[Any] | Dimension]) -> Iterator[str]:
    """Yield the problems of a space; each begins with the key."""
    for key, entry in entries.items():
        dimension = entry if isinstance(entry, Dimension) else Dimension(choices=entry)
        if reason := _EXCLUDED.get(key.partition(".")[0]):
            yield f".{key} {reason}"
            continue
        if not _is_known(key):
            from shardline.config.settings import dotted_keys

            hint = suggest_setting(key, dotted_keys(RunSettings))
            yield f".{key} is not a known setting; {hint}"
            continue
        schema = schema_at(RunSettings, key)
        kinds = [kind for kind in _KINDS if _of_kind(dimension, kind) is not UNSET]
        if len(kinds) != 1:
            found = ", ".join(kinds) or "none of them"
            yield f".{key} sets {found}, expected exactly one of {', '.join(_KINDS)}; keep one"
            continue
        if kinds[0] == "choices":
            yield from _problems_of_choices(key, dimension, schema)
        else:
            yield from _problems_of_range(key, kinds[0], dimension, schema)
        parents = (".".join(key.split(".")[:n]) for n in range(1, key.count(".") + 1))
        for parent in parents:
            if parent in entries:
                yield f".{key} is a part of {parent}, which the space varies too; drop one of them"
        for name, wanted in dimension.when.items():
            if name not in entries:
                yield f".{key}.when.{name} is not in the space; add it, or drop the condition"
            elif _is_known(name):
                yield from _problems_of_condition(key, name, wanted, entries[name])


def _is_known(key: str) -> bool:
    try:
        schema_at(RunSettings, key)
    except KeyError:
        return False
    return True


def _problems_of_condition(
    key: str, name: str, wanted: Any, entry: list[Any] | Dimension
) -> Iterator[str]:
    """Yield the values of a condition that the other setting never has."""
    other = entry if isinstance(entry, Dimension) else Dimension(choices=entry)
    values = wanted if isinstance(wanted, list) else [wanted]
    place = f".{key}.when.{name}"
    if not values:
        yield f"{place}=[] is empty, so {key} is never varied; list values of {name}, or drop the condition"
    if other.choices is not UNSET:
        known = [canonical_json(typed(name, one)) for one in other.choices or []]
        for value in values:
            if (text := canonical_json(typed(name, value))) not in known:
                yield f"{place}={text} is none of the values of {name}, which are {', '.join(known)}; name one of them"
    elif other.integer is UNSET and other.log_int is UNSET:
        yield (
            f"{place}: {name} is a range of real numbers, of which a sampler hardly draws the one that is named; list "
            f"values of {name}, or drop the condition"
        )


def _problems_of_choices(key: str, dimension: Dimension, schema: Any) -> Iterator[str]:
    values = dimension.choices or []
    texts = [canonical_json(coerce(one, schema)) for one in values]
    if not values:
        yield f".{key}=[] is empty; list at least one value"
    for text in sorted({one for one in texts if texts.count(one) > 1}):
        yield f".{key} lists {text} twice; drop one"
    for value in values:
        for problem in problems_of(coerce(value, schema), schema, key):
            yield f".{problem}"


def _problems_of_range(key: str, kind: str, dimension: Dimension, schema: Any) -> Iterator[str]:
    ends = _of_kind(dimension, kind)
    if len(ends) != 2 or ends[0] >= ends[1]:
        yield f".{key}.{kind}={ends}, expected the lowest and the highest number; write both, the lower first"
        return
    if "log" in kind and ends[0] <= 0:
        yield f".{key}.{kind}={ends} begins at {ends[0]}, expected a number above 0; raise it, or write `uniform`"
    if "int" not in kind and "integer" in schema.kinds and "number" not in schema.kinds:
        whole = {"uniform": "int", "log": "int_log"}[kind]
        yield f".{key} is a whole number, but {kind} draws others; write {whole}: [{ends[0]:g}, {ends[1]:g}]"
        return
    for end in ends:
        for problem in problems_of(coerce(end, schema), schema, key):
            yield f".{problem}"
