"""Checks for identity documents, in `identity.json` and other files.

A document stays a plain JSON object, since its digest covers all keys, also unknown ones.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import UNSET, UnsetType, convert, field

from shardline.core.files import read_object
from shardline.records.base import Record, decode

IdentityDocument = dict[str, Any]
_Settings = TypeVar("_Settings")


class _Environment(Record, frozen=True, kw_only=True):
    packages: dict[str, Any] = field(default_factory=dict)


class _Document(Record, Generic[_Settings], frozen=True, kw_only=True):
    """The identity document of any stage."""

    settings: _Settings
    model: str | UnsetType = UNSET
    inputs: dict[str, Any] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    code_files: dict[str, str] = field(default_factory=dict)
    environment: _Environment = _Environment()


class _TrainingSettings(Record, frozen=True, kw_only=True):
    seed: int


def check_identity(document: IdentityDocument) -> None:
    """Reject a value that is no identity document.

    Raises:
        msgspec.ValidationError: A field does not fit. The message names the field.
    """
    convert(document, _Document[dict[str, Any]])


def read_identity(path: Path, *, remedy: str) -> IdentityDocument:
    """Read the identity document of a training.

    Raises:
        DataError: The file cannot be read or does not fit. The message ends with the remedy.
    """
    document = read_object(path, remedy=remedy)
    decode(document, _Document[_TrainingSettings], where=path, remedy=remedy)
    return document


def weights_of_inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the weight of each dataset, by id, from `inputs` in the identity document of a training."""
    if "dataset" in inputs:
        return {str(inputs["dataset"]): "1"}
    return {str(key): str(weight) for key, weight in inputs.get("datasets", ())}
