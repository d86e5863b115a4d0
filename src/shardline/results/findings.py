"""What a verification finds: sentences, each with a remedy."""

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
    """What was found of one dataset, run or report.

    Attributes:
        kind: `dataset`, `run`, `report` or `names`.
        summary: what was looked at.
        problems: one sentence each; none if all is well.
        bad_shards: files of a dataset's shards that are missing or damaged.
        bad_parts: names of a dataset's parts whose lists of shards are damaged.
    """

    kind: str
    id: str
    summary: str = ""
    problems: list[str] = field(default_factory=list)
    bad_shards: list[str] = field(default_factory=list)
    bad_parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Findings:
    """Puts problems that have one remedy into a verdict."""

    verdict: VerifyResult
    remedy: str

    def add(self, problem: str) -> None:
        """Add a problem, and what to do."""
        self.verdict.problems.append(f"{problem}; {self.remedy}")

    def expect(self, what: str, found: object, expected: object) -> None:
        """Add a problem where a value is not the expected one."""
        if found != expected:
            self.add(f"{what} is {found}, expected {expected}")

    def expect_sha256(self, path: Path, expected: str) -> None:
        """Add a problem where a file has not the expected SHA-256, or cannot be read."""
        try:
            self.expect(f"{path}: its SHA-256", file_sha256(path), expected)
        except OSError as error:
            self.add(f"{path} cannot be read ({error.strerror}), expected {expected}")
        except ValueError:
            self.add(f"{str(path)!r} cannot be a file's name")

    def read(self, reader: _Reader[_Read], path: Path) -> _Read | None:
        """Return what a file holds; None where it cannot be read or has another form, which is a problem."""
        try:
            return reader(path, remedy=self.remedy)
        except DataError as error:
            self.verdict.problems.append(str(error))
            return None

    def record(self, path: Path, kind: type[_Record]) -> _Record | None:
        """Return a sealed record; None where it cannot be read, which is a problem as a seal that does not fit is."""
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
        """Return findings of another remedy that end up in the same verdict."""
        return Findings(self.verdict, remedy)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def digest_of(document: object) -> str:
    """Return the digest of a document that was read, or that it has none."""
    try:
        return digest(document)
    except ValueError:  # NaN or infinity, which no file of an identity holds
        return "none (it holds NaN or infinity)"
