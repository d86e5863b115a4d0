"""Tracing a file to its sources, from sealed files only: no config, no Snakemake."""

from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.provenance.graph import ProvenanceGraph
from shardline.provenance.nodes import FileNode
from shardline.provenance.rules import ids_in
from shardline.provenance.sealed_records import SealedRecords
from shardline.results.lineage.lineage import Lineage

REMEDY = "restore it, or run the pipeline again to write it"


def trace(path: Path, layout: ResultsLayout) -> Lineage:
    """Trace a file of the results or the store to its sources.

    Args:
        path: File or link to a file.
        layout: Layout of results and store.

    Raises:
        ConfigError: No record describes such a file.
        DataError: The file, or a sealed file behind it, does not exist.
    """
    tracer = _Tracer(SealedRecords(layout=layout, remedy=REMEDY))
    name = _name_of(path, layout)
    if not path.exists():
        raise DataError(f"{path} does not exist; check the path")
    found = tracer.lineage
    found.file = name
    tracer.add(name)
    found.problem = _problem(path, found.files[name])
    return found


def _name_of(path: Path, layout: ResultsLayout) -> str:
    """Return a path relative to the project's folder, with links followed; in the store, by the store's name."""
    real, names = path.resolve(), layout.declared
    for shown in (names.store, names.results, Path()):
        folder = (layout.root / shown).resolve()
        if real.is_relative_to(folder):
            return str(shown / real.relative_to(folder))
    return str(real)


def _problem(path: Path, file: FileNode) -> str:
    kind, _, expected = file.digest.partition(":")
    if not expected:
        return ""
    digest = {"sha256": file_sha256, "blake3": file_blake3}[kind](path)
    if digest == expected:
        return ""
    return (
        f"{file.name} is not what {file.made_by} wrote: its {kind.upper()} is {digest[:12]}..., recorded is "
        f"{expected[:12]}...; run `shardline verify` for the remedy"
    )


class _Tracer:
    """Tracer that visits each file and action once."""

    def __init__(self, records: SealedRecords) -> None:
        self.lineage = Lineage(file="")
        self.graph, self._names = ProvenanceGraph(records), records.layout.declared

    def add(self, name: str) -> None:
        """Add a file with everything behind it."""
        files, templates = self.lineage.files, self.graph.templates
        if name in files:
            return
        if name in self.graph.sources:
            files |= {file.name: file for file in self.graph.sources[name]}
            return
        if name == self.lineage.file or ids_in(name, templates["part"]) is None:
            files[name] = FileNode(name=name)  # avoids a loop of damaged files
        if not (found := self.graph.find(name)):
            raise ConfigError(self._unknown(name))
        file, action = found
        if action.id not in self.lineage.actions:
            self.lineage.actions[action.id] = action
            for read in action.files_read:
                self.add(read)
        files[name] = file

    def _unknown(self, name: str) -> str:
        """Return the message for a file without a record."""
        folder = str(Path(name).parent)
        templates = map(Path, self.graph.templates.values())
        beside = {
            path.name for path in templates if ids_in(folder, str(path.parent)) and path.suffix
        }
        known = sorted(file for file in beside if "{" not in file)
        expected = f"one of {', '.join(known)}" if known else (
            f"a file of a run, a dataset or a report in {self._names.results}, or a shard or training checkpoint in "
            f"the store ({self._names.store})"
        )  # fmt: skip
        return f"nothing is recorded of {name}, expected {expected}; name one of these"
