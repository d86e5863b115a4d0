"""Record of a job, under `action` in each file that the job writes."""

from shardline.records.base import Record


class Commit(Record, frozen=True, kw_only=True):
    """State of a Git checkout.

    Attributes:
        commit: Commit hash.
        dirty: Whether files differed from the commit.
        diff_digest: Digest of these differences.
    """

    commit: str | None = None
    dirty: bool | None = None
    diff_digest: str | None = None


class JobRecord(Record, frozen=True, kw_only=True):
    """Record of a job, see `provenance.actions`.

    Attributes:
        id: Rule and subject of the job, such as `train/{run}`. Numbers in the report link to this id.
        rule: Rule of the job.
        started: Start time, UTC, ISO 8601.
        ended: End time, UTC, ISO 8601.
        host: Name of the machine.
        agent: Login name of the user.
        command: Words of the command line.
        variables: Environment variables, by name.
        software: Versions of the software, by name.
        git: State of the project's checkout.
        image: Digest of the container image.
        num_cpus: Number of CPUs that the job could use.
        memory_bytes: Memory of the machine.
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
