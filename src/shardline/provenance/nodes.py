"""Actions and files, the nodes of the provenance graph."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardline.config.plans import order_of_part
from shardline.provenance.rules import ORDER, nearest_first
from shardline.records.jobs import JobRecord
from shardline.records.runs import TrainingProvenance

Ids = Mapping[str, str]
Names = Mapping[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class FileNode:
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
        return f"{kind} {digits[:12]}" if digits else ""


@dataclass(frozen=True, kw_only=True)
class ActionNode:
    """A job that wrote files.

    Attributes:
        id: `rule/key`.
        ids: what it was about, such as the `run`.
        inputs, outputs: declared names of files by the rule's parameters; that of a folder ends in `/`.
        record: what the job recorded of itself; None where nothing is known.
        settings: what it was set to, by dotted key.
        code: digest of the code that it ran; empty where no identity document records it.
        training: what a training recorded beside that.
        accepted_as: by the name of an output, the file of an accepting result that has its content.
    """

    id: str
    rule: str
    ids: Ids = field(default_factory=dict)
    inputs: Names = field(default_factory=dict)
    outputs: Names = field(default_factory=dict)
    record: JobRecord | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    training: TrainingProvenance | None = None
    accepted_as: Ids = field(default_factory=dict)

    @property
    def recorded(self) -> JobRecord:
        """Its record, of a job that has left one."""
        assert self.record
        return self.record

    @property
    def circumstances(self) -> str:
        """When and where it ran, and by which code, as far as that is recorded."""
        ran = (self.record.ended, f"on {self.record.host}") if self.record else ()
        return ", ".join(filter(None, (*ran, f"code {self.code}" if self.code else "")))

    @cached_property
    def files_read(self) -> list[str]:
        """The files that it read, those first that were made last; without folders."""
        names = flat({key: self.inputs[key] for key in nearest_first(self.rule, self.inputs)})
        return list(dict.fromkeys(name for name in names if not name.endswith("/")))

    @property
    def order(self) -> tuple[object, ...]:
        """What actions are sorted by: their rule's place in the pipeline, then what they are about."""
        job, _, part = self.id.rpartition("/")
        return ORDER.index(self.rule), job, *order_of_part(part)


def flat(names: Names) -> list[str]:
    """Return the files of all parameters."""
    return [name for each in names.values() for name in each]
