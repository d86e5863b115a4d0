"""Documents that somebody altered: each byte, each field, and several at once."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Path = tuple[Any, ...]


def bytes_changed(content: bytes) -> Iterator[bytes]:
    """Yield a file with each byte changed and removed, and cut short in every 16th place."""
    for place in range(len(content)):
        bit = (1, 4, 32)[place % 3]
        yield content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        yield content[:place] + content[place + 1 :]
        if place % 16 == 0:
            yield content[:place]


def fields_changed(document: Any) -> Iterator[Any]:
    """Yield a document with each field, at any depth, changed and removed."""
    for path in paths_of(document):
        yield changed(document, path, other(value_at(document, path)))
        yield changed(document, path)


def other(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 50
    if isinstance(value, str):
        return f"{value}x"
    return [*value, *value, 1] if isinstance(value, list) else {}


def edits(document: Any, *, keep: str) -> st.SearchStrategy[Any]:
    """Generate documents with one to three fields changed, removed or swapped, the seal being kept."""
    paths = [path for path in paths_of(document) if path[0] != keep]
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5),
        st.sampled_from([value_at(document, path) for path in paths]),
    )  # fmt: skip

    def apply(chosen: list[tuple[Path, bool, Any]]) -> Any:
        found = document
        for path, is_removed, value in chosen:
            try:
                found = changed(found, path, *([] if is_removed else [value]))
            except (LookupError, TypeError):
                continue  # the edit before has removed it
        return found

    edit = st.tuples(st.sampled_from(paths), st.booleans(), values)
    return st.lists(edit, min_size=1, max_size=3).map(apply)


def paths_of(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where each field of a document is, by keys and indexes."""
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def value_at(document: Any, path: Path) -> Any:
    """Return a field."""
    for key in path:
        document = document[key]
    return document


def changed(document: Any, path: Path, *value: Any) -> Any:
    """Return a copy with a field of another value, or without it."""
    copy = deepcopy(document)
    parent = value_at(copy, path[:-1])
    if value:
        parent[path[-1]] = value[0]
    else:
        del parent[path[-1]]
    return copy
