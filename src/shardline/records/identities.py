"""`identity.json` and the identity documents in other files: what their readers rely on.

A document itself stays a JSON object: its digest is its address, and covers whatever it holds.
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
    """Refuse what is no identity document.

    Raises:
        msgspec.ValidationError: names the place in it.
    """
    convert(document, _Document[dict[str, Any]])


def read_identity(path: Path, *, remedy: str) -> IdentityDocument:
    """Return the identity document of a training.

    Raises:
        DataError: it cannot be read or has another form; ends with the remedy.
    """
    document = read_object(path, remedy=remedy)
    decode(document, _Document[_TrainingSettings], where=path, remedy=remedy)
    return document


def weights_of_inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the weight of each dataset by id, from `inputs` of a training's identity document."""
    if "dataset" in inputs:
        return {str(inputs["dataset"]): "1"}
    return {str(key): str(weight) for key, weight in inputs.get("datasets", ())}
