"""The files and actions behind one file, as data and as a Graphviz graph."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardline.provenance.nodes import ActionNode, FileNode
from shardline.records.base import encode


@dataclass(kw_only=True)
class Lineage:
    """The files and actions behind one file.

    Attributes:
        file: Name of the traced file.
        problem: Sentence about the file, if its bytes differ from the recorded ones; else empty.
        files: Files by name.
        actions: Actions by id.
    """

    file: str
    problem: str = ""
    files: dict[str, FileNode] = field(default_factory=dict)
    actions: dict[str, ActionNode] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        actions = {
            action.id: {
                "id": action.id, "inputs": action.files_read, "code": action.code,
                "record": encode(action.record) if action.record else {},
            }
            for action in self.actions.values()
        }  # fmt: skip
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
            for name in action.files_read:
                yield f"{_quoted(name)} -> {_quoted(action.id)}"
        for file in self.files.values():
            for before in (*file.members, *([file.made_by] if file.made_by else [])):
                yield f"{_quoted(before)} -> {_quoted(file.name)}"


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line)
    return '"{}"'.format("\\n".join(escaped))
