"""Seals: a document contains the digest of its other content, so that any altered byte is found."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.core.canonical import digest
from shardline.core.files import json_bytes
from shardline.core.redaction import published

_SEAL = "sha256"


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a seal: key `sha256`, the digest of the canonical JSON of all other keys.

    NaN and infinity, which JSON lacks, become null. Secrets are masked first, since masking them
    later would break the seal.
    """
    text = json.dumps(published({key: document[key] for key in document if key != _SEAL}))
    rest = json.loads(text, parse_constant=lambda _: None)
    return {**rest, _SEAL: digest(rest)}


def check_seal(path: Path, document: Mapping[str, Any]) -> str | None:
    """Return a sentence if a sealed file was changed after it was written, else None.

    Args:
        path: the file; its bytes are compared with the form that `write_json` writes.
        document: content of the file.
    """
    try:
        is_as_written = path.read_bytes() == json_bytes(document)
        found = digest({key: document[key] for key in document if key != _SEAL})
    except ValueError:  # NaN, or a lone surrogate
        is_as_written = False
    if not is_as_written:
        return f"{path} has another form than it was written in"
    if document.get(_SEAL) != found:
        return f"{path}: the digest of its content is {found}, expected {document.get(_SEAL)} (its sha256)"
    return None
