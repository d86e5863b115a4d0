"""When each line of a history of result versions came to the main line, by `git log -L`."""

import ast
import subprocess
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path

VERSIONS = "src/shardline/identity/versions.py"
SOURCES = ("src", "requirements.lock", "requirements-azureml.lock")


class HistoryError(Exception):
    """The repository does not tell when a line was added."""


@dataclass(frozen=True)
class Bumps:
    """The commits of a repository that added lines to histories of result versions.

    Merges count as one commit, since nobody has results of what a branch held before.
    """

    repository: Path

    def last(self, versions: Mapping[str, int], since: str = "") -> str | None:
        """Return the first commit that had all of these versions; None if one is not committed yet.

        Args:
            versions: number of a line, from 1, by history.
            since: the first commit that takes the project's config, if earlier ones do not.

        Raises:
            HistoryError: the history of the repository is missing; names the remedy.
        """
        found = [self.commit_of(name, number) for name, number in versions.items()]
        found += [self.git("rev-parse", since).strip()] if since else []
        return None if None in found else min(filter(None, found), key=self._main.index)

    def commit_of(self, name: str, number: int) -> str | None:
        """Return the commit that added a line; None if it is not committed yet.

        Histories that started again have their first lines from the commit where they did: what came
        before has other identities, and is compared with nothing.

        Raises:
            HistoryError: see `last`.
        """
        head, start = self._main[0], self._start
        if start is None or self.count(head, name) < number:
            return None
        having = [start]
        if self.count(start, name) < number:
            first, last = self._statement(name)
            # from the newest to the oldest: later ones may have reformatted the line
            log = self.git(
                "log", "--first-parent", "--format=%H", "-s", f"-L{first},{last}:{VERSIONS}", f"{start}..{head}"
            )  # fmt: skip
            having = [commit for commit in log.split() if self.count(commit, name) >= number]
        if not having or self._is_shallow:
            raise HistoryError(
                f"no commit is known that added line {number} of the history {name} in {VERSIONS}, expected the "
                "whole history of the repository; fetch it (`git fetch --unshallow`)"
            )
        return having[-1]

    def count(self, commit: str, name: str) -> int:
        """Return how many lines a history had at a commit."""
        return len(histories(self.repository, commit).get(name, ()))

    def has_changed(self, commit: str) -> bool:
        """Return whether `src/` or a lock is other now than at a commit."""
        different = subprocess.run(
            ["git", "diff", "--quiet", commit, "--", *SOURCES], cwd=self.repository, check=False
        )
        new = self.git("ls-files", "--others", "--exclude-standard", "--", *SOURCES)
        return bool(different.returncode or new)

    def git(self, *arguments: str) -> str:
        """Return what git prints."""
        return run_git(self.repository, *arguments)

    def _statement(self, name: str) -> tuple[int, int]:
        """Return the first and last line, at HEAD, of the statement that defines a history."""
        places = {}
        for node in ast.parse(self.git("show", f"HEAD:{VERSIONS}")).body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else []
            for target in node.targets if isinstance(node, ast.Assign) else targets:
                places[ast.unparse(target)] = node.lineno, node.end_lineno or node.lineno
        module = load(self.git("show", f"HEAD:{VERSIONS}"))
        tables = [table for table in ("MODELS", "SOURCES") if name in getattr(module, table)]
        return places[tables[0] if tables else name.upper()]

    @cached_property
    def _start(self) -> str | None:
        """The commit in which the present histories started; None if it is not made yet."""
        present = epoch((self.repository / VERSIONS).read_text())
        log = self.git("log", "--first-parent", "--format=%H", "--", VERSIONS).split()
        of_now = list(
            takewhile(lambda one: epoch(self.git("show", f"{one}:{VERSIONS}")) == present, log)
        )
        return of_now[-1] if of_now else None

    @cached_property
    def _main(self) -> list[str]:
        return self.git("rev-list", "--first-parent", "HEAD").split()

    @cached_property
    def _is_shallow(self) -> bool:
        return self.git("rev-parse", "--is-shallow-repository").strip() == "true"


def run_git(repository: Path, *arguments: str) -> str:
    """Return what git prints; a checkout may be another user's.

    Raises:
        HistoryError: git fails; carries its message.
    """
    command = ["git", "-c", "safe.directory=*", *arguments]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HistoryError(
            f"git {arguments[0]} failed, expected a clone with its whole history "
            f"(`git fetch --unshallow`): {done.stderr.strip()}"
        )
    return done.stdout


def load(text: str) -> types.ModuleType:
    """Return a version of `versions.py`, which imports nothing but the standard library."""
    module = types.ModuleType("versions")
    exec(compile(text, VERSIONS, "exec"), vars(module))
    return module


def epoch(text: str) -> int:
    """Return how often the histories of a version of `versions.py` had started again."""
    return int(getattr(load(text), "EPOCH", 0))


@cache
def histories(repository: Path, commit: str) -> dict[str, tuple[object, ...]]:
    """Return the histories at a commit, none from before there were any."""
    try:
        text = run_git(repository, "show", f"{commit}:{VERSIONS}")
    except HistoryError:
        return {}
    found: dict[str, tuple[object, ...]] = getattr(load(text), "HISTORIES", {})
    return found


def joined(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the newest version of each history."""
    versions: dict[str, int] = {}
    for one in each:
        for name, number in one.items():
            versions[name] = max(number, versions.get(name, 0))
    return versions
