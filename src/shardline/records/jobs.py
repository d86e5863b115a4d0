"""What a job has recorded of itself, under `action` of the file that it wrote."""

from shardline.records.base import Record


class Commit(Record, frozen=True, kw_only=True):
    """State of a git checkout."""

    commit: str | None = None
    dirty: bool | None = None
    diff_digest: str | None = None


class JobRecord(Record, frozen=True, kw_only=True):
    """The record of a job, see `provenance.actions`.

    Attributes:
        id: the rule and what the job was about, such as `train/{run}`: what a number names as its source.
        started: UTC, ISO 8601, as is `ended`.
        agent: login name.
        command: the words of the command line.
        variables: environment variables by name.
        software: versions by name.
        image: digest of the container image.
        num_cpus: CPUs that the job could use.
        memory_bytes: memory of the machine.
    """

    id: str
    rule: str
    started: str
    ended: str
    host: str
    agent: str
    command: list[str]
    variables: dict[str, str]
    software: dict[str, str]
    git: Commit
    image: str | None
    num_cpus: int
    memory_bytes: int
