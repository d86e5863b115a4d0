"""`accepted.json`: the record of a result that was accepted from an earlier identity."""

from pathlib import Path

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record, read_record
from shardline.records.datasets import Id, Name
from shardline.records.identities import IdentityDocument
from shardline.records.jobs import JobRecord

ACCEPTED = "accepted.json"


class Difference(Record, frozen=True, kw_only=True):
    """A difference between two identities.

    Attributes:
        kind: Part of the identity document, such as `settings`.
        text: Sentence about the difference.
    """

    kind: str
    text: str


class FirstSteps(Record, frozen=True, kw_only=True):
    """Comparison of the first steps before an acceptance.

    Attributes:
        steps: Number of optimiser steps that were trained again.
        values: Number of compared values.
    """

    steps: int
    values: int


class Origin(Record, frozen=True, kw_only=True):
    """The earlier result that was accepted.

    Attributes:
        id: Id of the earlier result.
        identity: Digest of the earlier identity document.
        document: Earlier identity document.
        accepted: Acceptance of the earlier result, if that was accepted too.
        manifest_sha256: SHA-256 of the earlier manifest, for a dataset.
    """

    id: Id
    identity: str
    document: IdentityDocument
    accepted: "Accepted | UnsetType" = UNSET
    manifest_sha256: str | UnsetType = UNSET


class Accepted(Record, frozen=True, kw_only=True):
    """accepted.json: why an earlier result replaces the one that the config describes.

    Attributes:
        id: Present id of the result.
        identity: Digest of the present identity document.
        from_: The earlier result.
        reason: Reason that the user gave.
        differs: Differences between the two identities.
        definitions: Changed definitions of the user's code, each with the digest before and now; null if missing.
        first_steps: Comparison of the first steps, if `--after-steps` was given.
        files: SHA-256 of the accepted files, by name.
        action: Record of the acceptance: who, when and where.
    """

    id: Id
    identity: str
    from_: Origin = field(name="from")
    reason: str
    differs: list[Difference]
    definitions: dict[str, tuple[str | None, str | None]] | UnsetType = UNSET
    first_steps: FirstSteps | UnsetType = UNSET
    files: dict[Name, str] = field(default_factory=dict)
    action: JobRecord

    @property
    def origin(self) -> Origin:
        """The result at the start of a chain of acceptances: the one that was trained or built."""
        return self.from_.accepted.origin if self.from_.accepted else self.from_

    def __str__(self) -> str:
        """Return one sentence: from which result, by whom, when and why."""
        return (
            f"accepted from {self.from_.id} by {self.action.agent} on {self.action.ended}: "
            f"{self.full_reason}"
        )

    @property
    def full_reason(self) -> str:
        """The reason, with the comparison of the first steps."""
        if not self.first_steps:
            return self.reason
        return (
            f"{self.reason} (the first {self.first_steps.steps} steps, trained again, gave the "
            f"{self.first_steps.values} recorded values)"
        )


def accepted_of(folder: Path) -> Accepted | None:
    """Read `accepted.json` in a folder of results; None if the file does not exist.

    Raises:
        DataError: The file cannot be read or does not fit.
    """
    path = folder / ACCEPTED
    if not path.exists():
        return None
    remedy = f"delete {folder} and accept the earlier result again"
    return read_record(path, Accepted, remedy=remedy)
