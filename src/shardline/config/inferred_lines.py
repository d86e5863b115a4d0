"""What a dataset's files say that no setting does, as a block of lines."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_SHOWN = 8


def block(name: str, inferred: Mapping[str, Any]) -> str:
    """Return the block of lines that is printed of a dataset; empty where nothing is inferred."""
    given = dict(inferred)
    not_read = given.pop("not read", {})
    lines = [f"{key}: {_shown(value)}" for key, value in given.items()]
    lines += list(_not_read(not_read))
    return (
        f"dataset {name} is read as\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
    )


def _not_read(not_read: Mapping[str, Any]) -> Iterator[str]:
    for reason, one in not_read.items():
        more = ", ..." if one["count"] > len(one["first"]) else ""
        yield f"not read, {reason}: {one['count']:,} ({', '.join(one['first'])}{more})"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{key} ({of})" for key, of in value.items()]
    if not isinstance(value, list | tuple):
        return json.dumps(value) if isinstance(value, str) and not value.isalnum() else str(value)
    more = len(value) - _SHOWN
    return ", ".join(map(str, value[:_SHOWN])) + (f" and {more:,} more" if more > 0 else "")
