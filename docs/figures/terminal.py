"""Record a terminal, and draw the recording as an animated SVG without scripts."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape

COLUMNS, ROWS = 100, 24
PAUSE_S = 0.2  # between two frames of a running command
CHARACTER, LINE = 8.4, 18  # pixels of a cell at 14 pixels of text
PALETTE = ("#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#e6edf3")
_SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07|\x1b[=>78]")

Style = tuple[str | None, bool, bool]  # colour, bold, dim
Cell = tuple[str, Style]
PLAIN: Style = (None, False, False)


@dataclass
class Screen:
    """What a terminal shows: enough of it for Snakemake and rich."""

    rows: int = ROWS
    columns: int = COLUMNS
    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = PLAIN
    _rest: str = ""

    def feed(self, text: str) -> None:
        """Take what a program has printed."""
        text, at = self._rest + text, 0
        self._rest = ""
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    if len(text) - at < 64:  # cut off by the end of what was read
                        self._rest = text[at:]
                        return
                    at += 1
                    continue
                if found[2]:
                    self._control(found[1], found[2])
                at = found.end()
                continue
            self._character(text[at])
            at += 1

    def _character(self, one: str) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self.row += 1
            self.column = 0
        elif one == "\b":
            self.column = max(0, self.column - 1)
        elif one >= " ":
            if self.column == self.columns:
                self.row, self.column = self.row + 1, 0
            line = self._line()
            line.extend([(" ", PLAIN)] * (self.column + 1 - len(line)))
            line[self.column] = (one, self.style)
            self.column += 1

    def _line(self) -> list[Cell]:
        while len(self.lines) <= self.row:
            self.lines.append([])
        return self.lines[self.row]

    def _control(self, numbers: str, kind: str) -> None:
        values = [int(one) for one in numbers.split(";") if one.isdigit()]
        number = values[0] if values else 1
        match kind:
            case "A":
                self.row = max(0, self.row - number)
            case "B":
                self.row += number
            case "C":
                self.column = min(self.columns - 1, self.column + number)
            case "D":
                self.column = max(0, self.column - number)
            case "G":
                self.column = number - 1
            case "K":
                line = self._line()
                del line[0 if values == [2] else self.column :]
            case "J":
                self._line()
                del self._line()[self.column :], self.lines[self.row + 1 :]
            case "m":
                self._colour(values or [0])

    def _colour(self, values: list[int]) -> None:
        colour, bold, dim = self.style
        for one in values:
            if one == 0:
                colour, bold, dim = PLAIN
            elif one in (1, 2):
                bold, dim = bold or one == 1, dim or one == 2
            elif one == 22:
                bold = dim = False
            elif 30 <= one <= 37 or 90 <= one <= 97:
                colour = PALETTE[one % 10]
            elif one == 39:
                colour = None
        self.style = (colour, bold, dim)

    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """Return the lines in view."""
        return tuple(tuple(line) for line in self.lines[-self.rows :])


@dataclass
class Recording:
    """Frames with the second from which each is shown."""

    frames: list[tuple[float, tuple[tuple[Cell, ...], ...]]] = field(default_factory=list)
    screen: Screen = field(default_factory=Screen)
    now: float = 0.0

    def show(self, seconds: float = 0.0) -> None:
        """Keep what the screen shows, for some seconds."""
        found = self.screen.shown()
        if not self.frames or self.frames[-1][1] != found:
            self.frames.append((self.now, found))
        self.now += seconds

    def type(self, command: str) -> None:
        """Show how a command is typed."""
        self.screen.feed("\x1b[32m$\x1b[0m ")
        self.show(0.8)
        for one in command:
            self.screen.feed(one)
            self.show(0.04)
        self.show(0.5)
        self.screen.feed("\r\n")

    def run(
        self,
        command: list[str],
        cwd: str,
        env: dict[str, str],
        *,
        watch: Callable[[int, str], None],
        longest_s: float = 1.5,
    ) -> int:
        """Run a command in a terminal of its own, and record what it shows.

        Args:
            watch: is called with the command's process id and all of its output up to now, about ten times a second.
            longest_s: longer waits are shown as this one.

        Returns:
            The exit code.
        """
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(cwd)
            os.execvpe(command[0], command, env)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        output, last = "", time.monotonic()
        try:
            for chunk in _chunks(terminal):
                output += chunk
                if chunk:
                    self.now += min(time.monotonic() - last, longest_s)
                    last = time.monotonic()
                    self.screen.feed(chunk)
                    if self.now - self.frames[-1][0] >= PAUSE_S:
                        self.show()
                watch(process, output)
        except BaseException:
            os.kill(process, signal.SIGTERM)
            raise
        finally:
            os.close(terminal)
        self.show()
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _chunks(terminal: int) -> Iterator[str]:
    """Yield what a terminal's program prints, and nothing each tenth of a second."""
    rest = b""
    while True:
        if not select.select([terminal], [], [], 0.1)[0]:
            yield ""
            continue
        try:
            found = os.read(terminal, 65536)
        except OSError:  # it has ended
            return
        if not found:
            return
        rest += found
        text = rest.decode("utf-8", errors="ignore")
        rest = rest[len(text.encode()) :] if len(rest) - len(text.encode()) < 4 else b""
        yield text


def svg(recording: Recording, title: str, hold_s: float = 5.0) -> str:
    """Return a recording as an animated SVG, which begins again after its end has been shown for some seconds."""
    frames = recording.frames
    length = frames[-1][0] + hold_s
    width, height = COLUMNS * CHARACTER + 32, ROWS * LINE + 32
    known: dict[tuple[Cell, ...], int] = {}
    drawn, rules = [], []
    for number, (start, lines) in enumerate(frames):
        end = frames[number + 1][0] if number + 1 < len(frames) else length
        uses = "".join(
            f'<use href="#l{known.setdefault(line, len(known))}" y="{at * LINE}"/>'
            for at, line in enumerate(lines)
            if line
        )
        drawn.append(f'<g class="f" style="animation-name:f{number}">{uses}</g>')
        first, last = 100 * start / length, 100 * end / length
        before = (
            f"0%{{visibility:hidden}}{first:.3f}%{{visibility:visible}}"
            if number
            else "0%{visibility:visible}"
        )
        after = (
            f"{last:.3f}%{{visibility:hidden}}100%{{visibility:hidden}}"
            if number + 1 < len(frames)
            else ""
        )
        rules.append(f"@keyframes f{number}{{{before}{after or '100%{visibility:visible}'}}}")
    defined = "".join(
        f'<text id="l{number}">{_spans(line)}</text>' for line, number in known.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>"
        "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#c9d1d9;white-space:pre}"
        f".f{{visibility:hidden;animation:{length:.2f}s step-end infinite}}{''.join(rules)}</style>"
        f'<defs>{defined}</defs><rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
        f'<g transform="translate(16 28)">{"".join(drawn)}</g></svg>\n'
    )


def _spans(line: tuple[Cell, ...]) -> str:
    """Return a line as text in runs of one style, each at its column."""
    found, at = [], 0
    while at < len(line):
        style, end = line[at][1], at
        while end < len(line) and line[end][1] == style:
            end += 1
        text = "".join(one for one, _ in line[at:end])
        if text.strip():
            colour, bold, dim = style
            look = f' fill="{colour}"' if colour else ""
            look += ' font-weight="bold"' if bold else ""
            look += ' opacity="0.6"' if dim else ""
            length = f' textLength="{len(text) * CHARACTER:.1f}"' if len(text) > 1 else ""
            found.append(f'<tspan x="{at * CHARACTER:.1f}"{length}{look}>{escape(text)}</tspan>')
        at = end
    return "".join(found)
