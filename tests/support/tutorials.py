"""A tutorial as a person follows it: its files are written, its commands are typed, its screens compared.

In a page, a fence ```` ```python title="mypkg/models.py" ```` is a file to write, a fence ```` ```console ```` is a
screen: a line `$ command` is typed, the lines below are what it shows. There, `...` stands for anything, and `^C` is
pressed once all that is above has appeared. Words are compared, not where lines break. A screen below a comment
`<!-- not run: reason -->` is left out.

    python -m tests.support.tutorials docs/tutorials/first-experiment.md FOLDER

types all of a page and prints what it shows, to be copied into the page.
"""

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.screen import OnTerminal

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^```(?P<kind>\w+)(?P<options>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MASKS = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?", "<date>"),
    (r"\b\d+:\d\d(:\d\d)?\b", "<time>"),
    (r"\bjust now\b|\b\d+ (second|minute|hour)s? ago\b", "<ago>"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b", "<digest>"),
    (r"\bon [\w.-]+(, code\b| [│└])", r"on <host>\1"),
    (r"\bstep \d+\b", "step #"),
    (r"\b\d+(-\d+)? x\d+\b", "# x#"),  # CPUs of a rank
    (r"(?<![\w.])[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?= (s|ms|B|kB|MB|GB|steps/s|MB/s|us)\b)", "#"),
    (r"\b\d\d+(?= files\b)", "#"),  # a crate has a file for each module that a job ran
    # Of three digits or more: figures, while a page's own settings stay.
    (r"(?<![\w.=])[+-]?(?=(?:[.,]?\d){3})\d[\d,]*(\.\d+)?(e[+-]?\d+)?\b", "#"),
    (r"[─━]+", "─"),
]


@dataclass(frozen=True)
class Typed:
    """A command and what the page says it shows."""

    command: str
    shown: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Written:
    """A file of the page."""

    path: str
    text: str
    line: int


@dataclass
class Page:
    """The steps of a tutorial, in order, and its screens that are not run."""

    path: Path
    steps: list[Typed | Written] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[Typed]:
        """The commands that are run."""
        return [step for step in self.steps if isinstance(step, Typed)]


def read_page(path: Path) -> Page:
    """Return the steps of a page.

    Raises:
        ValueError: a screen does not begin with a command.
    """
    page, content = Page(path), path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(content):
        line = content.count("\n", 0, match.start("text")) + 1
        title = re.search(r'title="([^"]+)"', match["options"])
        if match["reason"]:
            page.left_out.append(f"{path.name}:{line}: {match['reason']}")
        elif title:
            page.steps.append(Written(title[1], match["text"], line))
        elif match["kind"] == "console":
            page.steps += _commands(match["text"], line)
    return page


def _commands(text: str, line: int) -> Iterator[Typed]:
    if not text.startswith("$ "):
        raise ValueError(f"line {line}: a screen begins with a command, `$ ...`")
    lines = text.splitlines()
    starts = [number for number, one in enumerate(lines) if one.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        command, first = lines[start][2:], start + 1
        while command.endswith("\\") and first < end:
            command, first = f"{command}\n{lines[first]}", first + 1
        yield Typed(command, tuple(lines[first:end]), line + start)


class Shell:
    """A shell that keeps folder and variables between commands, each of which has a terminal of its own."""

    def __init__(
        self, folder: Path, *, columns: int = 120, machine: Callable[..., Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None, timeout_s: float = 600.0,
    ) -> None:  # fmt: skip
        """Begin in a folder.

        Args:
            folder: Where the first command runs.
            columns: Width of the terminal.
            machine: What makes a command line one that runs on another machine.
            env: Variables beside this process's.
            timeout_s: Seconds that a command may take.
        """
        self.folder, self.status = folder, 0
        self._columns, self._timeout_s = columns, timeout_s
        self._machine = machine or (lambda *words: words)
        self._env = {"NO_COLOR": "1", "GIT_CONFIG_GLOBAL": os.devnull, **(env or {})}
        self._variables = folder.with_name(f"{folder.name}.variables")

    def run(self, command: str, until: Callable[[str], bool] | None = None) -> str:
        """Return what a command shows; with `until`, Ctrl-C is pressed once that holds of the screen."""
        variables, place = shlex.quote(str(self._variables)), shlex.quote(str(self.folder))
        script = (
            f"cd {place}; [ ! -f {variables} ] || . {variables}; (exit {self.status})\n{command}\n"
            f'status=$?; {{ export -p; echo "# $PWD"; }} > {variables}; exit $status'
        )
        words = ["env", "--default-signal=INT", *self._machine("bash", "-c", script)]
        terminal = OnTerminal(words, self.folder, self._columns, 60, self._env)
        end = time.monotonic() + self._timeout_s
        while terminal.read():
            if until and until(terminal.screen.all()):
                os.killpg(terminal.process.pid, signal.SIGINT)
                until = None
            if time.monotonic() > end:
                os.killpg(terminal.process.pid, signal.SIGTERM)
                raise TimeoutError(f"{command}\n{terminal.screen.all()}")
        shown = terminal.end()
        if until:
            raise ValueError(f"{command}\nended before Ctrl-C was to be pressed:\n{shown}")
        self.status = terminal.process.returncode
        if self._variables.exists():
            self.folder = Path(self._variables.read_text().rstrip().rpartition("\n# ")[2])
        return shown


def follow(page: Page, shell: Shell, tell: Callable[[str], None] | None = None) -> list[str]:
    """Take all steps of a page, and return how the screens differ from it.

    Raises:
        ValueError: a command that Ctrl-C is to end ended by itself.
        TimeoutError: a command took too long.
    """
    differences = []
    for number, step in enumerate(page.steps):
        if isinstance(step, Written):
            path = shell.folder / step.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            continue
        above, pressed, below = _parted(step.shown)
        begun = time.monotonic()
        shown = shell.run(step.command, partial(_has, above) if pressed else None)
        if tell:
            seconds = time.monotonic() - begun
            tell(f"$ {step.command}\n{shown.rstrip()}\n# {shell.status}, {seconds:.1f} s")
        where = f"{page.path.name}:{step.line}: {step.command}"
        after = page.steps[number + 1] if number + 1 < len(page.steps) else None
        is_asked = isinstance(after, Typed) and after.command == "echo $?"
        if shell.status and not pressed and not is_asked:
            differences.append(f"{where}\nexit code {shell.status}:\n{shown}")
        elif not _is_shown(("...", *below) if pressed else step.shown, shown):
            masks = f"the page: {masked(' '.join(step.shown))}\nthe screen: {masked(shown)}"
            differences.append(f"{where}\n{shown}\nor, masked,\n{masks}")
    return differences


def _parted(shown: tuple[str, ...]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    if "^C" not in shown:
        return shown, False, ()
    at = shown.index("^C")
    return shown[:at], True, shown[at + 1 :]


def masked(text: str) -> str:
    """Return the words of a text, without what differs from run to run: digests, dates, times, long numbers."""
    words = " ".join(text.split())
    for pattern, mask in _MASKS:
        words = re.sub(pattern, mask, words)
    return words


def _has(lines: Sequence[str], screen: str) -> bool:
    return _is_shown(("...", *lines, "..."), screen)


def _is_shown(lines: Sequence[str], screen: str) -> bool:
    """Return whether a screen is what a page shows, wherever lines are broken; `...` stands for anything."""
    parts = [re.escape(part.strip()) for part in masked("\n".join(lines)).split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), masked(screen)) is not None


if __name__ == "__main__":
    where = Path(sys.argv[2]).resolve()
    where.mkdir()
    found = follow(read_page(Path(sys.argv[1])), Shell(where), lambda text: print(text, flush=True))
    print("\n\n".join(["", "DIFFERENCES", *found]) if found else "as the page shows")
