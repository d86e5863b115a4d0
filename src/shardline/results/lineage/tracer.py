"""Following a file to what made it, from sealed files alone: no config, no Snakemake."""

from collections.abc import Iterator
from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.config.names import names_that_have_been
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.provenance.graph import ActionNode, FileNode, ProvenanceGraph
from shardline.provenance.rules import GIVEN, SOURCE, ids_in
from shardline.provenance.sealed_records import SealedRecords
from shardline.results.lineage.lineage import Lineage, ShownAction

REMEDY = "bring it back, or run the pipeline again to write it"


def trace(path: Path, layout: ResultsLayout) -> Lineage:
    """Find out what made a file of the results or the store.

    Args:
        path: the file; a link stands for what it points at.
        layout: where results and store lie.

    Raises:
        ConfigError: no record names what made such a file.
        DataError: it is not there, or a sealed file that it was made from is not.
    """
    tracer = _Tracer(SealedRecords(layout=layout, remedy=REMEDY))
    name = _name_of(path, layout)
    if not path.exists():
        raise DataError(f"{path} is not there, expected a file; check the path")
    found = tracer.lineage
    found.file = name
    tracer.add(name)
    found.problem = _problem(path, found.files[name])
    return found


def _name_of(path: Path, layout: ResultsLayout) -> str:
    """Return a path from the project's folder, links followed; in the store by the store's name."""
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
    """Follows files to their actions, each once."""

    def __init__(self, records: SealedRecords) -> None:
        self.lineage = Lineage(file="")
        self.records, self.graph = records, ProvenanceGraph(records)

    def add(self, name: str) -> str:
        """Add a file with all that is behind it, and return its name."""
        if name in self.lineage.files:
            return name
        if name == self.lineage.file or not self._is_part(name):
            self.lineage.files[name] = FileNode(name=name)  # damaged files may form a loop
        if not (found := self.graph.find(name)):
            raise ConfigError(self._unknown(name))
        file, action = found
        self._act(action)
        self.lineage.files[name] = file
        return name

    def _is_part(self, name: str) -> bool:
        return ids_in(name, self.graph.templates["part"]) is not None

    def _unknown(self, name: str) -> str:
        """Return why nothing is known of a file."""
        folder, names = Path(name).parent, self.records.names
        known = [
            Path(template).name
            for template in self.graph.templates.values()
            if ids_in(str(folder), str(Path(template).parent)) and "{" not in Path(template).name
        ]
        if known:
            expected = f"one of {', '.join(sorted(known))}"
        else:
            expected = (
                f"a file of a run, a dataset or a report in {names.results}, or a shard or training checkpoint in the "
                f"store ({names.store})"
            )
        return f"nothing is recorded of {name}, expected {expected}; name one of these"

    def _act(self, node: ActionNode) -> None:
        """Add an action with its inputs, once."""
        if node.id not in self.lineage.actions:
            made = ShownAction(id=node.id, code=node.code, record=node.record)
            self.lineage.actions[node.id] = made  # before its inputs: damaged files may form a loop
            made.inputs = list(dict.fromkeys(self._inputs(node)))

    def _inputs(self, node: ActionNode) -> Iterator[str]:
        for name in node.files_read:
            if name in GIVEN:
                rows = names_that_have_been(self.records.layout, "run").get(node.ids["run"], [])
                row = f"row {', '.join(rows)}" if rows else "a row"
                yield self._source(f"{row} of the run table, the config's defaults")
            elif name in node.inputs.get(SOURCE, []):
                yield self._source_of(node.ids["dataset"])
            elif node.accepted and not self.records.at(name).exists():
                yield self._source(f"{name}, deleted since: {node.accepted}")
            else:
                yield self.add(name)

    def _source(self, name: str, *members: str) -> str:
        self.lineage.files[name] = FileNode(name=name, members=members)
        return name

    def _source_of(self, dataset: str) -> str:
        """Add a dataset's source, with the files that it read and their digests of then."""
        manifest = self.records.manifest(dataset)
        identity = manifest.identity if manifest else {}
        kind = identity.get("settings", {}).get("source", {}).get("type")
        name = (
            f"source {kind} of {dataset}"
            if kind
            else f"source of {dataset}, known once the dataset is sealed"
        )
        digests = identity.get("source", {}).items()
        read = {f"{name}: {key.partition('/')[2]}": f"sha256:{sha256}" for key, sha256 in digests}
        self.lineage.files |= {key: FileNode(name=key, digest=read[key]) for key in read}
        return self._source(name, *read)
