"""`accepted.json`: the record beside a result that an earlier identity's files stand for."""

from pathlib import Path

from msgspec import UNSET, UnsetType, field

from shardline.records.base import Record, read_record
from shardline.records.datasets import Id, Name
from shardline.records.identities import IdentityDocument
from shardline.records.jobs import JobRecord

ACCEPTED = "accepted.json"


class Difference(Record, frozen=True, kw_only=True):
    """What differs between the two identities: a kind, such as `settings`, and a sentence."""

    kind: str
    text: str


class FirstSteps(Record, frozen=True, kw_only=True):
    """How many steps were trained again before an acceptance, and how many values were compared."""

    steps: int
    values: int


class Origin(Record, frozen=True, kw_only=True):
    """The earlier result.

    Attributes:
        identity: digest of its document.
        document: its identity document.
        accepted: the acceptance on which it rests itself.
        manifest_sha256: of a dataset's manifest.
    """

    id: Id
    identity: str
    document: IdentityDocument
    accepted: "Accepted | UnsetType" = UNSET
    manifest_sha256: str | UnsetType = UNSET


class Accepted(Record, frozen=True, kw_only=True):
    """accepted.json.

    Attributes:
        id: of the result now.
        identity: digest of its identity document.
        reason: as the user gave it.
        differs: between the two identities.
        definitions: of the user's code that differ, with both digests; None where one did not exist.
        files: SHA-256 of the files that were taken over.
        action: who, when and where.
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
        """The origin of the first acceptance of a chain: what really was trained or built."""
        return self.from_.accepted.origin if self.from_.accepted else self.from_

    def __str__(self) -> str:
        """In one sentence from what, by whom, when and why."""
        return (
            f"accepted from {self.from_.id} by {self.action.agent} on {self.action.ended}: "
            f"{self.full_reason}"
        )

    @property
    def full_reason(self) -> str:
        """The reason, with what was trained again before."""
        if not self.first_steps:
            return self.reason
        return (
            f"{self.reason} (the first {self.first_steps.steps} steps, trained again, gave the "
            f"{self.first_steps.values} recorded values)"
        )


def accepted_of(folder: Path) -> Accepted | None:
    """Return `accepted.json` of a folder of results; None where nothing was accepted.

    Raises:
        DataError: it cannot be read, or has another form.
    """
    path = folder / ACCEPTED
    if not path.exists():
        return None
    remedy = f"delete {folder} and accept the earlier result again"
    return read_record(path, Accepted, remedy=remedy)
