"""The secret of a job, in a folder that its nodes share, and the keys that are derived from it.

The secret is a random key in a file. It is never in a variable or an argument, which Azure ML
shows to everybody in the workspace. The hub's greeting names the file, so that a follower never
looks for it too early: mounts remember for minutes that a file does not exist.
"""

import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_executor_plugin_azureml.node.child_process import log
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.place import Place
from snakemake_executor_plugin_azureml.node.wire import LostError

NONCE_BYTES = 32
_KEY_BYTES = 32
_ID_BYTES = 16
_MAGIC = b"SAN2"
GREETING_BYTES = len(_MAGIC) + _ID_BYTES + NONCE_BYTES


@dataclass(frozen=True)
class Secret:
    """A key that only processes with access to the job's folder have.

    Attributes:
        identifier: name of the key's file; not secret.
    """

    identifier: str
    key: bytes = field(repr=False)

    def greeting(self, nonce: bytes) -> bytes:
        """Return the hub's first bytes: the identifier of its secret, and this connection's nonce."""
        return _MAGIC + bytes.fromhex(self.identifier) + nonce

    def derived(self, purpose: str, *nonces: bytes) -> bytes:
        """Return the key of one direction of one connection; each direction has another key."""
        return hmac.digest(self.key, b"\0".join([purpose.encode(), *nonces]), "sha256")


def folder_of(place: Place, mounts: Mapping[str, str]) -> Path:
    """Return the folder that all processes of the job share.

    Raises:
        NodeError: the job has several nodes and no mount.
    """
    if not mounts and not place.is_one_node:
        raise NodeError(
            f"{place.origin}: the job has several nodes and no mounted folder for the secret of its "
            "processes; set azureml-mounts to a folder of a datastore"
            "read their secret; set azureml-mounts to a folder of a datastore"
        )
    root = Path(next(iter(mounts.values()), ".")).absolute()
    return root / ".snakemake-azureml" / hashlib.sha256(place.job.encode()).hexdigest()[:32]


def make_secret(folder: Path) -> Secret:
    """Write a new secret, and delete the secrets of earlier starts of the job.

    Raises:
        NodeError: the folder cannot be written.
    """
    remove_secrets(folder)
    secret = Secret(secrets.token_hex(_ID_BYTES), secrets.token_bytes(_KEY_BYTES))
    path = folder / secret.identifier
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(secret.key)
            file.flush()
            os.fsync(file.fileno())
            is_open_to_others = bool(os.fstat(file.fileno()).st_mode & 0o077)
    except OSError as error:
        raise NodeError(
            f"the job's secret cannot be written to {path} ({error.strerror}); "
            "grant the job's identity write access to the mounted folder"
        ) from None
    if is_open_to_others:
        log(
            f"{folder} does not keep file modes: everyone with read access to that folder can read the job's secret"
        )
    return secret


def remove_secrets(folder: Path) -> None:
    """Delete all secrets of a job, and their parent folder if it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def read_greeting(greeting: bytes, folder: Path) -> tuple[Secret, bytes]:
    """Return the secret that a hub's greeting names, and the hub's nonce.

    Raises:
        LostError: the sender is no hub, or another job's hub.
    """
    if not greeting.startswith(_MAGIC):
        raise LostError("another program uses this port")
    rest = greeting[len(_MAGIC) :]
    identifier, nonce = rest[:_ID_BYTES].hex(), rest[_ID_BYTES:]
    try:
        with os.fdopen(os.open(folder / identifier, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            key = file.read(_KEY_BYTES + 1)
    except FileNotFoundError:
        key = b""
    except OSError as error:
        raise LostError(f"{folder / identifier} cannot be read ({error.strerror})") from None
    if len(key) != _KEY_BYTES:
        raise LostError(
            f"another job's leader listens on this port, or the leader's secret is not yet below {folder}"
        )
    return Secret(identifier, key), nonce
