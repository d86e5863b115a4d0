"""Results of a verification: sentences about problems, each with a remedy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.records.base import Record, decode

_Record = TypeVar("_Record", bound=Record)
_Read = TypeVar("_Read", covariant=True)


class _Reader(Protocol[_Read]):
    def __call__(self, path: Path, *, remedy: str) -> _Read: ...


@dataclass(kw_only=True)
class VerifyResult:
    """Result of verifying one dataset, run or report.

    Attributes:
        kind: `dataset`, `run`, `report` or `names`.
        id: Id of the dataset, run or report.
        summary: Verified files, in a few words.
        problems: One sentence for each problem.
        bad_shards: Names of missing or damaged shards.
        bad_parts: Names of parts with a damaged list of shards.
    """

    kind: str
    id: str
    summary: str = ""
    problems: list[str] = field(default_factory=list)
    bad_shards: list[str] = field(default_factory=list)
    bad_parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Findings:
    """Collector of problems with the same remedy."""

    verdict: VerifyResult
    remedy: str

    def add(self, problem: str) -> None:
        """Add a problem with the remedy."""
        self.verdict.problems.append(f"{problem}; {self.remedy}")

    def expect(self, what: str, found: object, expected: object) -> None:
        """Add a problem if a value is not the expected one."""
        if found != expected:
            self.add(f"{what} is {found}, expected {expected}")

    def expect_sha256(self, path: Path, expected: str) -> None:
        """Add a problem if a file cannot be read or has another SHA-256."""
        try:
            self.expect(f"{path}: its SHA-256", file_sha256(path), expected)
        except OSError as error:
            self.add(f"{path} cannot be read ({error.strerror}), expected {expected}")
        except ValueError:
            self.add(f"{str(path)!r} is not a valid file name")

    def read(self, reader: _Reader[_Read], path: Path) -> _Read | None:
        """Read a file; on an error, add a problem and return None."""
        try:
            return reader(path, remedy=self.remedy)
        except DataError as error:
            self.verdict.problems.append(str(error))
            return None

    def record(self, path: Path, kind: type[_Record]) -> _Record | None:
        """Read a sealed record and check its seal; on an error, add a problem and return None."""
        document = self.read(read_object, path)
        if document is None:
            return None
        if problem := check_seal(path, document):
            self.add(problem)
        try:
            return decode(document, kind, where=path, remedy=self.remedy)
        except DataError as error:
            self.verdict.problems.append(str(error))
            return None

    def but(self, remedy: str) -> "Findings":
        """Return a collector with another remedy for the same result."""
        return Findings(self.verdict, remedy)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def digest_of(document: object) -> str:
    """Return the digest of a document, or a text if it has none."""
    try:
        return digest(document)
    except ValueError:  # no identity document contains NaN or infinity
        return "none (it contains NaN or infinity)"
