"""Transforms of torch datasets: left out while rows are read, with a record of how they are called.

A torch dataset may have the attributes `transform`, `target_transform` and `transforms` of torchvision.
While rows are read, a `_Recorder` is in each of them, which returns what it gets.
"""

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardline.data.python.samples import places_of
from shardline.records.datasets import Call

ATTRIBUTES = ("transform", "transforms", "target_transform")


class Called(NamedTuple):
    """A call of a recorder.

    Attributes:
        owner: Dataset with the transform.
        attribute: Name of the attribute.
        arguments: Values that the recorder got and returned.
        keywords: Values by name, if it was called with keywords.
    """

    owner: Any
    attribute: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class NotFoundError(Exception):
    """A sample does not contain what a recorder returned.

    Attributes:
        owner: Dataset with the transform.
        attribute: Name of the attribute.
    """

    def __init__(self, call: Called) -> None:
        super().__init__(call.attribute)
        self.owner, self.attribute = call.owner, call.attribute


class _Marked:
    """Base class of numbers and texts that can be found again in a sample, by their identity."""


class _Recorder:
    def __init__(self, calls: list[Called], owner: Any, attribute: str) -> None:
        self._calls, self._owner, self._attribute = calls, owner, attribute
        self._original = getattr(owner, attribute)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        arguments = tuple(map(_marked, arguments))
        keywords = {name: _marked(value) for name, value in keywords.items()}
        self._calls.append(Called(self._owner, self._attribute, arguments, keywords))
        if keywords:
            return keywords
        return arguments[0] if len(arguments) == 1 else arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _marked(value: Any) -> Any:
    """Return an equal number or text with an identity of its own, since Python shares small numbers."""
    if type(value) in (int, float, str, bytes):
        return _MARKED[type(value)](value)
    return value


_MARKED: dict[type, Any] = {
    kind: type(f"Marked{kind.__name__}", (_Marked, kind), {}) for kind in (int, float, str, bytes)
}


class Recorders:
    """Recorders in the datasets of an object, and the transforms that they stand for.

    Args:
        datasets: datasets of the splits.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.calls: list[Called] = []
        self._originals: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.left: list[tuple[Any, str]] = []  # transforms that are applied while rows are read
        for one in datasets:
            for dataset in all_below(one):
                if id(dataset) not in self._originals and (own := _own_transforms(dataset)):
                    self._originals[id(dataset)] = dataset, own
                    for attribute in [*own]:
                        self._put(dataset, attribute)

    def _put(self, dataset: Any, attribute: str) -> None:
        try:
            setattr(dataset, attribute, _Recorder(self.calls, dataset, attribute))
        except AttributeError:  # a property
            self._forget(dataset, attribute)

    def _forget(self, dataset: Any, attribute: str) -> None:
        del self._originals[id(dataset)][1][attribute]
        self.left.append((dataset, attribute))

    def put_back(self, dataset: Any, attribute: str) -> None:
        """Apply a transform while rows are read, since the class changes what it returns."""
        setattr(dataset, attribute, self._originals[id(dataset)][1][attribute])
        self._forget(dataset, attribute)

    def chain(self, dataset: Any, index: int) -> list[Any]:
        """Return the datasets with transforms around a sample, the outermost first."""
        return [one for one in path_to(dataset, index) if self._of(one)]

    def _of(self, dataset: Any) -> Mapping[str, Any]:
        return self._originals[id(dataset)][1] if id(dataset) in self._originals else {}

    def find(self, dataset: Any, index: int, call: Call) -> Callable[..., Any] | None:
        """Return the transform of a recorded call for a sample; None if there is none around it."""
        chain = self.chain(dataset, index)
        return self._of(chain[call.level]).get(call.attribute) if call.level < len(chain) else None

    def in_place(self) -> list[tuple[Any, str]]:
        """Return the datasets and attributes with a recorder."""
        return [(owner, name) for owner, own in self._originals.values() for name in own]

    def places(
        self, calls: Sequence[Called], dataset: Any, index: int, sample: Any, names: Sequence[str]
    ) -> tuple[Call, ...]:
        """Return calls for a sample, with the places of their values in the sample.

        Args:
            calls: calls of the recorders while the sample was read.
            dataset: dataset of the split.
            index: index of the sample in it.
            sample: what the dataset returned.
            names: names of the values of a tuple.

        Raises:
            NotFoundError: the sample does not contain what a recorder returned, as it is.
        """
        chain = [id(one) for one in self.chain(dataset, index)]
        places: dict[int, list[str]] = {}
        for name, value, _ in places_of(sample, names):
            places.setdefault(id(value), []).append(name)
        asked: dict[int, int] = {}
        for one in calls:
            for value in (*one.arguments, *one.keywords.values()):
                asked[id(value)] = asked.get(id(value), 0) + 1
        taken: dict[int, int] = {}

        def place(one: Called, value: Any) -> str:
            found = places.get(id(value), [])
            number = taken[id(value)] = taken.get(id(value), 0) + 1
            if not found or (len(found) > 1 and len(found) != asked[id(value)]):
                raise NotFoundError(one)
            return found[number - 1] if len(found) > 1 else found[0]

        result = []
        for one in calls:
            if id(one.owner) not in chain:
                raise NotFoundError(one)
            result.append(
                Call(
                    attribute=one.attribute,
                    level=chain.index(id(one.owner)),
                    arguments=[place(one, value) for value in one.arguments],
                    keywords={name: place(one, value) for name, value in one.keywords.items()},
                )
            )
        return tuple(result)


def _own_transforms(dataset: Any) -> dict[str, Any]:
    given = getattr(dataset, "__dict__", {})  # a method or property of the class is no attribute
    return {name: given[name] for name in ATTRIBUTES if callable(given.get(name))}


def children_of(dataset: Any) -> tuple[Any, ...]:
    """Return the datasets inside a `Subset` or `ConcatDataset`, or a class with the same attribute."""
    several = getattr(dataset, "datasets", None)
    if isinstance(several, list | tuple):
        return tuple(several)
    inner = getattr(dataset, "dataset", None)
    return () if inner is None or inner is dataset else (inner,)


def all_below(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all datasets inside it."""
    yield dataset
    for child in children_of(dataset):
        yield from all_below(child)


def path_to(dataset: Any, index: int) -> Iterator[Any]:
    """Yield the datasets around a sample, from the outermost to the innermost."""
    yield dataset
    children = children_of(dataset)
    if len(children) == 1 and not hasattr(dataset, "cumulative_sizes"):
        indices = getattr(dataset, "indices", None)
        yield from path_to(children[0], index if indices is None else int(indices[index]))
    elif children and hasattr(dataset, "cumulative_sizes"):
        sizes = list(dataset.cumulative_sizes)
        place = min(bisect.bisect_right(sizes, index), len(children) - 1)
        yield from path_to(children[place], index - (sizes[place - 1] if place else 0))
