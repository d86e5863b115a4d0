"""Digests of files: SHA-256 and BLAKE3."""

import hashlib
from pathlib import Path

from blake3 import blake3

_PIECE_BYTES = 1 << 20  # digested while still in the processor's cache


def file_blake3(path: Path) -> str:
    """Return the BLAKE3 digest of a file's bytes, as 64 hex digits (`b3sum` gives the same).

    Raises:
        OSError: it cannot be read.
    """
    digest, piece = blake3(), bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            digest.update(memoryview(piece)[:size])
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
