"""`report.json`: what its readers rely on."""

from msgspec import UNSET, UnsetType

from shardline.records.base import Record
from shardline.records.datasets import Action, Id


class HeadlineInReport(Record, frozen=True, kw_only=True):
    """`headline` of a run: which action made it."""

    action: str


class RunInReport(Record, frozen=True, kw_only=True):
    """A run."""

    id: Id
    headline: HeadlineInReport


class ReportIndex(Record, frozen=True, kw_only=True):
    """The runs of a report, and the action that wrote it."""

    runs: list[RunInReport]
    action: Action | UnsetType | None = UNSET
