"""The files and actions behind one file: as data, and as Graphviz's text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardline.provenance.graph import FileNode
from shardline.records.base import encode
from shardline.records.jobs import JobRecord


@dataclass(kw_only=True)
class ShownAction:
    """A job that wrote files, as lineage shows it.

    Attributes:
        inputs: names of the files that it read.
        code: digest of the code that it ran, from an identity document; empty where none records it.
        record: what it recorded of itself; None where nothing is known.
    """

    id: str
    inputs: list[str] = field(default_factory=list)
    code: str = ""
    record: JobRecord | None = None

    @property
    def circumstances(self) -> str:
        """When and where it ran, and by which code, as far as that is recorded."""
        ran = (self.record.ended, f"on {self.record.host}") if self.record else ()
        return ", ".join(filter(None, (*ran, f"code {self.code}" if self.code else "")))


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
    files: dict[str, FileNode] = field(default_factory=dict)
    actions: dict[str, ShownAction] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        actions = {
            action.id: vars(action) | {"record": encode(action.record) if action.record else {}}
            for action in self.actions.values()
        }
        files = {file.name: vars(file) for file in self.files.values()}
        return {**vars(self), "files": files, "actions": actions}

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
