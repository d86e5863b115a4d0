"""Resume certificates: `certificates/resume-*.json`."""

from shardline.records.base import Record
from shardline.records.jobs import JobRecord


class CertifiedEnvironment(Record, frozen=True, kw_only=True):
    """Environment that a certificate is valid for.

    Attributes:
        python: Version of Python.
        torch: Version of torch.
        packages: Digest of all installed packages.
    """

    python: str | None
    torch: str | None
    packages: str


class Certified(Record, frozen=True, kw_only=True):
    """Code, environment and machine that a certificate is valid for.

    Attributes:
        code: Digest of the training code.
        environment: Versions of the packages.
        machine: Models of the devices.
        launcher: Launcher of the ranks.
        world_sizes: Numbers of ranks.
    """

    code: str
    environment: CertifiedEnvironment
    machine: list[str]
    launcher: str | None
    world_sizes: list[int | None]


class Interruption(Record, frozen=True, kw_only=True):
    """An injected fault.

    Attributes:
        ranks: Number of ranks of the training.
        place: Place in the training, such as `mid-epoch`.
        step: Optimiser steps done.
        time: Time of the fault, in seconds since the epoch.
        pid: Process id of the rank.
    """

    ranks: int
    place: str
    step: int
    time: float
    pid: int


class ResumeCertificate(Record, frozen=True, kw_only=True):
    """Result of the fault-injection test `resume`.

    Attributes:
        identity: Code, environment and machine that the certificate is valid for.
        interruptions: Injected faults.
        compared: Whether `weights`, `optimizer` and `ledger` were bit-identical to an uninterrupted training.
        verdict: `survived` or `not survived`.
        action: Record of the test.
    """

    identity: Certified
    interruptions: list[Interruption]
    compared: dict[str, bool]
    verdict: str
    action: JobRecord
