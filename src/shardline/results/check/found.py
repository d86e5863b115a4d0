"""Findings of a check: sentences about runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["error", "warning", "not checked", "read"]
_NAMES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence about some runs, or about the machine.

    Attributes:
        kind: `error` if a run would fail; `warning` for an estimate; `not checked` if only another
            machine can check; `read` for facts inferred from the files of a dataset.
        sentence: What was found, what was expected and what to do.
        runs: Names of the affected runs; empty for all.
    """

    kind: Kind
    sentence: str
    runs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Names of the runs, and the sentence."""
        if not self.runs:
            return self.sentence
        shown, more = ", ".join(self.runs[:_NAMES_SHOWN]), len(self.runs) - _NAMES_SHOWN
        return f"{shown}{f' and {more} more' if more > 0 else ''}: {self.sentence}"


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that would make a run fail."""
    return [one for one in findings if one.kind == "error"]


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Merge findings with the same sentence, and sort errors first."""
    runs: dict[tuple[Kind, str], dict[str, None]] = {}
    for one in findings:
        runs.setdefault((one.kind, one.sentence), {}).update(dict.fromkeys(one.runs))
    order: list[Kind] = ["error", "warning", "not checked", "read"]
    return [
        Finding(kind=kind, sentence=sentence, runs=tuple(names))
        for kind_wanted in order
        for (kind, sentence), names in runs.items()
        if kind == kind_wanted
    ]
