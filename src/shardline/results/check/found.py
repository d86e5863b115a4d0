"""What a check finds: sentences, each of some runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["error", "warning", "not checked", "read"]
_NAMES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence about some runs, or about the machine.

    Attributes:
        kind: `error` where a run would fail; `warning` for an estimate; `not checked` for what only
            another machine can tell; `read` for what the files of a dataset say that no setting does.
        sentence: what was found, what was expected and what to do.
        runs: names of the runs that it concerns; none: all.
    """

    kind: Kind
    sentence: str
    runs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The sentence behind the runs' names."""
        if not self.runs:
            return self.sentence
        shown, more = ", ".join(self.runs[:_NAMES_SHOWN]), len(self.runs) - _NAMES_SHOWN
        return f"{shown}{f' and {more} more' if more > 0 else ''}: {self.sentence}"


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return what would let a run fail."""
    return [one for one in findings if one.kind == "error"]


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with those of one sentence as one; errors come first."""
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
