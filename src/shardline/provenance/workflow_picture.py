"""Workflow chart of the report: number of jobs per rule that ran or were fresh."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from shardline.provenance.nodes import ActionNode
from shardline.provenance.rules import ORDER, edges
from shardline.records.jobs import JobRecord
from shardline.records.reports import RuleCount, WorkflowPicture


def picture(jobs: Iterable[ActionNode], started: str | None) -> WorkflowPicture | None:
    """Count the jobs per rule that ran or were fresh.

    Args:
        jobs: Jobs behind a report, without the job that writes the report.
        started: Start of the pipeline run (UTC, ISO 8601); jobs that ended later ran in it.

    Returns:
        Counts; None if the start is unknown.
    """
    if started is None:
        return None
    by_rule: dict[str, list[JobRecord | None]] = {rule: [] for rule in ORDER}
    for job in jobs:
        by_rule[job.rule].append(job.record)
    *others, own = ORDER
    report = RuleCount(rule=own, ran=1, fresh=0, unknown=0, seconds=None)
    nodes = [_count(rule, by_rule[rule], _time(started)) for rule in others]
    return WorkflowPicture(started=started, nodes=[*nodes, report], edges=edges())


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
