"""What a verification finds: sentences, each with a remedy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found of one dataset, run or report.

    Attributes:
        kind: `dataset`, `run` or `report`.
        summary: what was looked at.
        problems: one sentence each; none if all is well.
        bad_shards: files of a dataset's shards that are missing or damaged.
        bad_parts: names of a dataset's parts whose lists of shards are damaged.
    """

    kind: str
    id: str
    summary: str
    problems: list[str]
    bad_shards: list[str] = field(default_factory=list)
    bad_parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Findings:
    """Collects problems that have one remedy."""

    remedy: str
    problems: list[str] = field(default_factory=list)
    bad_shards: list[str] = field(default_factory=list)
    bad_parts: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Add a problem, and what to do."""
        self.problems.append(f"{problem}; {self.remedy}")

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

    def read(self, path: Path) -> dict[str, Any] | None:
        """Return a JSON object; None where it cannot be read, which is a problem."""
        try:
            return read_object(path, remedy=self.remedy)
        except DataError as error:
            self.problems.append(str(error))
            return None

    def read_sealed(self, path: Path) -> dict[str, Any] | None:
        """Return a sealed JSON object; a seal that does not fit is a problem."""
        document = self.read(path)
        if document is not None and (problem := check_seal(path, document)):
            self.add(problem)
        return document

    def but(self, remedy: str) -> "Findings":
        """Return findings of another remedy that end up in the same list."""
        return Findings(remedy, self.problems)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_bug(error: Exception) -> bool:
    """Return whether an error is no damaged file's: it misses an attribute of what is no value of JSON."""
    values = (dict, list, str, int, float, NoneType)
    return isinstance(error, AttributeError) and not isinstance(error.obj, values)


def judge(kind: str, folder: Path, remedy: str, check: Callable[[Findings], str]) -> Verdict:
    """Return what a check finds in a folder.

    Args:
        check: adds to the findings, and returns what was looked at.
    """
    findings, summary = Findings(remedy), ""
    try:
        summary = check(findings)
    # what a file of unexpected form leads to: such files are what we look for
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if is_bug(error):
            raise
        findings.add(f"{folder}: a file has not the form that the pipeline writes ({error!r})")
    return Verdict(
        kind=kind,
        id=folder.name,
        summary=summary,
        problems=findings.problems,
        bad_shards=findings.bad_shards,
        bad_parts=findings.bad_parts,
    )
