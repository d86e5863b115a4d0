"""What a dataset's files say that no setting does, and what lies beside them and is not read."""

import json
from collections.abc import Mapping
from typing import Any

from shardline.data.sources import Source


def describe(source: Source) -> dict[str, Any]:
    """Return what is inferred from a source's files, as the dataset's provenance records it."""
    found: dict[str, Any] = {"files": len(source.files)} if source.files else {}
    own = source.inferred
    if isinstance(own, Mapping) and _is_plain(
        own
    ):  # a class of the user's may mean something else by the name
        found |= own
    return found | ({"not read": dict(source.not_read)} if source.not_read else {})


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
