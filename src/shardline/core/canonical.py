"""Canonical JSON, and digests of documents."""

import hashlib
import json
from typing import Any

DIGEST_LENGTH = 12


def canonical_json(document: Any) -> str:
    """Write a document so that equal content gives equal text.

    Keys are sorted and floats keep Python's shortest exact form (`0.1`, never
    a rounded one). So two texts differ only if a value or its type differs.

    Raises:
        ValueError: a float is NaN or infinite, which JSON cannot represent.
        TypeError: a value is not a JSON type.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(document: Any) -> str:
    """Return the SHA-256 of a document's canonical JSON, as 64 hex digits."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def short_digest(document: Any) -> str:
    """Return the first 12 hex digits of a document's digest, as paths contain it."""
    return digest(document)[:DIGEST_LENGTH]
