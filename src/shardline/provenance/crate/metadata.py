"""Metadata file of a crate: canonical form, seal and file digests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import field

from shardline.core.canonical import digest
from shardline.core.files import read_object
from shardline.records.base import Record, decode

METADATA = "ro-crate-metadata.json"
SEAL = "#seal"


class _Entity(Record, frozen=True, kw_only=True):
    id: str = field(name="@id")
    sha256: str = ""


class _Crate(Record, frozen=True, kw_only=True):
    graph: list[_Entity] = field(name="@graph")


def read_crate(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return the metadata in a file.

    Raises:
        DataError: The file cannot be read or is malformed; the message ends with the remedy.
    """
    document = read_object(path, remedy=remedy)
    decode(document, _Crate, where=path, remedy=remedy)
    return document


def metadata_bytes(document: Mapping[str, Any]) -> bytes:
    """Return the metadata in its canonical form."""
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def seal_crate(document: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata with a seal entity, the digest of all other entities.

    The digest is that of the canonical JSON of the graph without the seal.
    """
    seal = {
        "@id": SEAL,
        "@type": "PropertyValue",
        "name": "SHA-256 of the canonical JSON of all other entities",
        "propertyID": "sha256",
        "value": _digest(document),
    }
    return {**document, "@graph": [*document["@graph"], seal]}


def check_crate_seal(path: Path, document: Mapping[str, Any]) -> str | None:
    """Return a sentence about a changed metadata file; None if the file is unchanged."""
    try:
        is_as_written = path.read_bytes() == metadata_bytes(document)
        found = _digest(document)
    except ValueError:  # NaN, or a lone surrogate
        is_as_written = False
    if not is_as_written:
        return f"{path} has another form than it was written in"
    stated = [entity.get("value") for entity in document["@graph"] if entity["@id"] == SEAL]
    if stated != [found]:
        expected = ", ".join(map(str, stated))
        return f"{path}: the digest of its entities is {found}, expected {expected} (its {SEAL})"
    return None


def _digest(document: Mapping[str, Any]) -> str:
    graph = [entity for entity in document["@graph"] if entity["@id"] != SEAL]
    return digest({**document, "@graph": graph})


def files_of_crate(document: Mapping[str, Any], *, below: Path) -> dict[Path, str]:
    """Return the SHA-256 of each file in a folder of the crate."""
    paths = {Path(unquote(entity["@id"])): entity for entity in document["@graph"]}
    return {
        path: entity["sha256"]
        for path, entity in paths.items()
        if path.is_relative_to(below) and "sha256" in entity
    }
