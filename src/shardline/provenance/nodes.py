"""Nodes of the provenance graph: actions and files, and their counts for the workflow chart of the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from shardline.config.plans import order_of_part
from shardline.provenance.rules import OF_STUDIES, OPTIONAL, ORDER, edges, nearest_first
from shardline.records.jobs import JobRecord
from shardline.records.reports import RuleCount, WorkflowPicture
from shardline.records.trainings import TrainingProvenance

Ids = Mapping[str, str]
Names = Mapping[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class FileNode:
    """File, or source of a dataset.

    Attributes:
        name: path from the project's folder; for a source file, the name in the source.
        digest: recorded `sha256:...` or `blake3:...`; empty if unknown.
        made_by: id of the action that wrote the file; empty for a source.
        members: names of the files of a source.
    """

    name: str
    digest: str = ""
    made_by: str = ""
    members: tuple[str, ...] = ()

    @property
    def short_digest(self) -> str:
        """Shortened digest for people."""
        kind, _, digits = self.digest.partition(":")
        return f"{kind} {digits[:12]}" if digits else ""


@dataclass(frozen=True, kw_only=True)
class ActionNode:
    """Job that wrote files.

    Attributes:
        id: `rule/key`.
        ids: ids of the job, such as `run`.
        inputs, outputs: declared names of files by parameter of the rule; a folder's name ends in `/`.
        record: record of the job; None if unknown.
        settings: settings of the job by dotted key.
        code: digest of the job's code; empty if no identity document records it.
        training: provenance of a training.
        accepted_as: by name of an output, the file with the same content in the accepting result.
    """

    id: str
    rule: str
    ids: Ids = field(default_factory=dict)
    inputs: Names = field(default_factory=dict)
    outputs: Names = field(default_factory=dict)
    record: JobRecord | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    training: TrainingProvenance | None = None
    accepted_as: Ids = field(default_factory=dict)

    @property
    def recorded(self) -> JobRecord:
        """Record of a job that has one."""
        assert self.record
        return self.record

    @property
    def circumstances(self) -> str:
        """Recorded time, host and code."""
        ran = (self.record.ended, f"on {self.record.host}") if self.record else ()
        return ", ".join(filter(None, (*ran, f"code {self.code}" if self.code else "")))

    @cached_property
    def files_read(self) -> list[str]:
        """Input files without folders; files of later rules come first."""
        names = flat({key: self.inputs[key] for key in nearest_first(self.rule, self.inputs)})
        return list(dict.fromkeys(name for name in names if not name.endswith("/")))

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: place of the rule in the pipeline, then the id."""
        job, _, part = self.id.rpartition("/")
        return ORDER.index(self.rule), job, *order_of_part(part)


def flat(names: Names) -> list[str]:
    """Return the files of all parameters."""
    return [name for each in names.values() for name in each]


def picture(jobs: Iterable[ActionNode], started: str | None) -> WorkflowPicture | None:
    """Count the jobs per rule that ran or were fresh.

    Args:
        jobs: Jobs behind a report, without the job that writes the report.
        started: Start of the pipeline run (UTC, ISO 8601); jobs that ended later ran in it.

    Returns:
        Counts, without optional rules that have no job; None if the start is unknown.
    """
    if started is None:
        return None
    by_rule: dict[str, list[JobRecord | None]] = {rule: [] for rule in ORDER}
    for job in jobs:
        by_rule[job.rule].append(job.record)
    optional = {*OPTIONAL, *OF_STUDIES}
    *others, own = (rule for rule in ORDER if by_rule[rule] or rule not in optional)
    report = RuleCount(rule=own, ran=1, fresh=0, unknown=0, seconds=None)
    nodes = [_count(rule, by_rule[rule], _time(started)) for rule in others]
    return WorkflowPicture(started=started, nodes=[*nodes, report], edges=edges([*others, own]))


def _count(rule: str, records: Sequence[JobRecord | None], started: datetime) -> RuleCount:
    known = [record for record in records if record]
    ran = [record for record in known if _time(record.ended) >= started]
    seconds = [(_time(record.ended) - _time(record.started)).total_seconds() for record in ran]
    return RuleCount(
        rule=rule,
        ran=len(ran),
        fresh=len(known) - len(ran),
        unknown=len(records) - len(known),
        seconds=round(sum(seconds), 3) if seconds else None,
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
