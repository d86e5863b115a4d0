"""Files, the actions that made them, and what these read: as data, and as Graphviz's text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class File:
    """A file, or a source that is none.

    Attributes:
        name: path from the project's folder; of a source file, the name it was read under.
        digest: `sha256:...` or `blake3:...` as recorded; empty where none is.
        made_by: id of the action that wrote it; empty of a source.
        members: names of a source's files.
    """

    name: str
    digest: str = ""
    made_by: str = ""
    members: tuple[str, ...] = ()

    @property
    def short_digest(self) -> str:
        """The digest as people read it."""
        kind, _, digits = self.digest.partition(":")
        return f"{kind} {digits[:_SHOWN_DIGITS]}" if digits else ""


@dataclass(kw_only=True)
class Action:
    """A job that wrote files.

    Attributes:
        inputs: names of the files that it read.
        code: digest of the code that it ran, from an identity document; empty where none records it.
        record: what it recorded of itself, such as host and times; empty of older files.
    """

    id: str
    inputs: list[str] = field(default_factory=list)
    code: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def circumstances(self) -> str:
        """When and where it ran, and by which code, as far as that is recorded."""
        known = (
            str(self.record.get("ended", "")),
            f"on {self.record['host']}" if self.record.get("host") else "",
            f"code {self.code}" if self.code else "",
        )
        return ", ".join(filter(None, known))


@dataclass(kw_only=True)
class Lineage:
    """The files and actions behind one file.

    Attributes:
        file: the file that was asked for.
        problem: what is wrong with it, if its bytes are not the recorded ones.
        files: by name.
        actions: by id.
    """

    file: str
    problem: str = ""
    files: dict[str, File] = field(default_factory=dict)
    actions: dict[str, Action] = field(default_factory=dict)

    def dot(self) -> str:
        """Return the graph in Graphviz's language: files as boxes, actions as ellipses."""
        return "\n".join(["digraph lineage {", *map("  {};".format, self._statements()), "}"])

    def _statements(self) -> Iterator[str]:
        yield "rankdir=LR"
        yield 'node [fontname="sans-serif", fontsize=10]'
        for file in self.files.values():
            style = ", style=bold" if file.name == self.file else ""
            label = _quoted(file.name, file.short_digest)
            yield f"{_quoted(file.name)} [shape=box, label={label}{style}]"
        for action in self.actions.values():
            label = _quoted(action.id, action.circumstances)
            yield f"{_quoted(action.id)} [shape=ellipse, label={label}]"
            for name in action.inputs:
                yield f"{_quoted(name)} -> {_quoted(action.id)}"
        for file in self.files.values():
            for before in (*file.members, *([file.made_by] if file.made_by else [])):
                yield f"{_quoted(before)} -> {_quoted(file.name)}"


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line)
    return '"{}"'.format("\\n".join(escaped))
