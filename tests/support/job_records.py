"""What jobs would have recorded of themselves."""

from typing import Any

from msgspec import convert

from shardline.records.base import encode
from shardline.records.jobs import JobRecord

_RECORD = {
    "started": "2026-05-04T09:00:00Z", "ended": "2026-05-04T09:00:30Z", "host": "n1", "agent": "someone",
    "command": ["python"], "variables": {}, "software": {"python": "3.11.7"}, "git": {}, "image": None,
    "num_cpus": 2, "memory_bytes": 8000,
}  # fmt: skip


def job_record(action: str, **changes: Any) -> JobRecord:
    """Return the record of the job that an action's id names."""
    return convert(
        {**_RECORD, "id": action, "rule": action.partition("/")[0], **changes}, JobRecord
    )


def job_document(action: str, **changes: Any) -> dict[str, Any]:
    """Return the record as a file holds it."""
    return encode(job_record(action, **changes))
