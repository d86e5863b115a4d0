"""Resume certificates: `certificates/resume-*.json`."""

from shardline.records.base import Record
from shardline.records.jobs import JobRecord


class CertifiedEnvironment(Record, frozen=True, kw_only=True):
    """Versions of Python and torch, and the digest of all packages."""

    python: str | None
    torch: str | None
    packages: str


class Certified(Record, frozen=True, kw_only=True):
    """What a certificate holds for: code and environment must be those of a training that it fits.

    Attributes:
        code: digest of the training code.
        machine: models of the devices.
    """

    code: str
    environment: CertifiedEnvironment
    machine: list[str]
    launcher: str | None
    world_sizes: list[int | None]


class Interruption(Record, frozen=True, kw_only=True):
    """An injected fault.

    Attributes:
        ranks: of the training.
        place: such as `mid-epoch`.
        step: optimiser steps done.
        time: seconds since the epoch.
        pid: of the rank.
    """

    ranks: int
    place: str
    step: int
    time: float
    pid: int


class ResumeCertificate(Record, frozen=True, kw_only=True):
    """What the fault-injection test `resume` showed.

    Attributes:
        compared: whether `weights`, `optimizer` and `ledger` were those of an uninterrupted training.
        verdict: `survived` or `not survived`.
        action: of the test.
    """

    identity: Certified
    interruptions: list[Interruption]
    compared: dict[str, bool]
    verdict: str
    action: JobRecord
