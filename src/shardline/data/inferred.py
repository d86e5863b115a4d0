"""Properties that a source infers from a dataset's files, and files that it does not read."""

import json
from collections.abc import Mapping
from typing import Any

from shardline.data.sources import Source


def describe(source: Source) -> dict[str, Any]:
    """Return what a source inferred from its files, for the dataset's provenance."""
    found = {"files": len(source.files)} if source.files else {}
    own = source.inferred  # in a user's class, possibly an unrelated attribute
    found |= own if isinstance(own, Mapping) and _is_plain(own) else {}
    return found | ({"not read": dict(source.not_read)} if source.not_read else {})


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
