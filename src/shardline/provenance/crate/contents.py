"""Files of a crate: their path in the crate, their source and their digests."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.core.digests import file_sha256
from shardline.core.package import workflow_folder
from shardline.core.redaction import MASK, is_secret, mask, mask_values
from shardline.data.shard_format import shard_path
from shardline.data.statistics_file import STATISTICS_FILE
from shardline.provenance.crate.metadata import METADATA
from shardline.provenance.sealed_records import SealedRecords
from shardline.records.acceptances import ACCEPTED
from shardline.records.datasets import DatasetProvenance, Manifest
from shardline.records.runs import RunRecord
from shardline.records.trainings import TrainingProvenance

WORKFLOW = "workflow"
CONFIG = Path("config/config.yaml")
CITATION = Path("CITATION.cff")
_RUN_FILES = ("run.json", "identity.json", "metrics.jsonl", "provenance.json")
_WORKFLOW_FILES = ("Snakefile", "rules/*.smk", "scripts/*.py", "envs/*")
_README = f"""# Report of a Shardline pipeline and its provenance

`{METADATA}` describes the files here and the jobs that made them, as a
[Provenance Run Crate](https://w3id.org/ro/wfrun/provenance/0.5).

- `results/reports/`: the report. Open `index.html` in a browser.
- `results/runs/`: settings, identity, metrics, provenance and evaluation of each run.
- `results/studies/`: proposals and results of the trials of each finished sweep. Runs of trials are not in the crate.
- `results/certificates/`: whether resumed trainings of this code were bit-identical.
- `results/datasets/`: manifest (rows, bytes and checksum of each shard) and provenance of each dataset.
- `config/`: config and run table, with likely secrets masked.
- `workflow/`: the pipeline and its locked packages.

For models and shards that are not in this crate, the metadata contains checksums. In this folder,
`shardline lineage FILE` traces a file to its sources. If the crate contains models and shards,
`shardline verify` verifies all files, and `shardline replay RUN` evaluates a model again. Both need the
project's own modules in this folder, if the runs use any. `results/layout.json` and the lock outside
`workflow/` are for these commands.
"""
_REMEDY = "run the pipeline again to write it"


@dataclass(frozen=True, kw_only=True)
class Item:
    """File that a crate describes.

    Attributes:
        source: path of the file, or its content.
        is_here: whether the crate contains the file, or only its digest.
        known_sha256: digest of the file, if known without reading it.
    """

    source: Path | bytes
    is_here: bool = True
    known_sha256: str | None = None

    @cached_property
    def sha256(self) -> str | None:
        """SHA-256 of the content; None if unknown."""
        if isinstance(self.source, bytes):
            return hashlib.sha256(self.source).hexdigest()
        return self.known_sha256 or (file_sha256(self.source) if self.source.exists() else None)

    @property
    def bytes(self) -> int | None:
        """Size in bytes; None if the file is not on this machine."""
        if isinstance(self.source, bytes):
            return len(self.source)
        return self.source.stat().st_size if self.source.exists() else None


@dataclass(kw_only=True)
class Contents:
    """Contents of a crate.

    Attributes:
        project: project of the results.
        records: reader of the sealed files.
        items: files by path in the crate.
        with_data: whether the crate contains models and shards.
        shards: paths and BLAKE3 digests of shards by path in the crate; empty without data.
        manifests, provenances: manifests and provenances of datasets by id.
        runs: runs by evaluation id.
    """

    project: Project
    records: SealedRecords
    with_data: bool
    items: dict[str, Item] = field(default_factory=dict)
    shards: dict[str, tuple[Path, str]] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    provenances: dict[str, DatasetProvenance] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)

    @property
    def paths(self) -> ResultsLayout:
        """Layout of paths in the crate, relative to the project's folder."""
        return self.project.layout.declared

    @property
    def report_folder(self) -> Path:
        """Folder of the report in the crate."""
        return self.paths.result("report", self.project.report.parent.name)


def collect(
    project: Project, records: SealedRecords, *, config: Path = CONFIG, with_data: bool = False
) -> Contents:
    """Find the files of the present report, its runs, their datasets and the workflow.

    Args:
        config: Config file; the crate gets a copy with likely secrets masked.
        with_data: Whether to add models and shards to the crate.

    Raises:
        DataError: A small file is missing; the message names the file.
    """
    contents = Contents(project=project, records=records, with_data=with_data)
    for name, item in _project_files(project, config):
        contents.items[name] = item
    for dataset in project.datasets.values():
        _add_dataset(contents, dataset.id)
    for run in project.runs.values():
        _add_run(contents, run.id, run.evaluation_id)
    for study, number in project.finished_studies:
        _add_study(contents, study, number)
    report = records.at(contents.report_folder / project.report.name).parent
    for path in sorted(report.rglob("*")):
        if path.is_file() and path.name != METADATA and not path.name.startswith("."):
            contents.items[str(contents.report_folder / path.relative_to(report))] = Item(
                source=path
            )
    return contents


def files_for_commands(project: Project) -> Iterator[tuple[str, Item]]:
    """Yield the files that only the commands need in an unzipped crate; the metadata does not describe them."""
    layout, lock = project.layout, project.named_lock
    if layout.layout_file.exists():
        yield str(layout.declared.layout_file), Item(source=layout.layout_file)
    if lock and not Path(lock).is_absolute() and ".." not in Path(lock).parts:
        yield str(Path(lock)), _masked_file(project.lock_file)


def records_of(project: Project, places: Mapping[str, Path] | None = None) -> SealedRecords:
    """Return a reader of the sealed files of a project that masks likely secrets.

    Args:
        places: Paths of files that are not at their declared name, for example with a storage plugin.
    """
    return SealedRecords(layout=project.layout, remedy=_REMEDY, places=places or {}, is_masked=True)


def _project_files(project: Project, config: Path) -> Iterator[tuple[str, Item]]:
    """Yield config, run table, lock and workflow files."""
    root = project.workdir
    if (root / config).exists():
        yield str(CONFIG), Item(source=without_secrets((root / config).read_bytes()))
    for path in (Path(project.table), CITATION, Path("Snakefile")):
        if (root / path).is_file():
            is_inside = not path.is_absolute() and ".." not in path.parts
            name = str(path) if is_inside else f"{CONFIG.parent}/{path.name}"
            shown = _masked_table if path == Path(project.table) else mask
            yield name, Item(source=shown((root / path).read_text()).encode())
    yield "README.md", Item(source=_README.encode())
    yield f"{WORKFLOW}/{project.lock_file.name}", _masked_file(project.lock_file)
    folder = workflow_folder()
    for path in sorted(path for pattern in _WORKFLOW_FILES for path in folder.glob(pattern)):
        if path.is_file():
            yield f"{WORKFLOW}/{path.relative_to(folder)}", _masked_file(path)


def _masked_file(path: Path) -> Item:
    """Return a text file with likely secrets masked."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return Item(source=path if mask(text) == text else mask(text).encode())


def without_secrets(config: bytes) -> bytes:
    """Return a config file with secrets masked; unchanged if it has none.

    Masked are likely secrets, and all values of `runtime.variables` and `image.build_args`.
    """
    document = yaml.safe_load(config) or {}
    hidden = mask_values(document)
    for section, key in (("runtime", "variables"), ("image", "build_args")):
        part = hidden.get(section)
        if part and part.get(key):
            part[key] = _hidden(part[key])
    if hidden == document and mask(config.decode()) == config.decode():
        return config
    head = f"# Likely secrets are replaced by {MASK}, and comments are left out.\n"
    return (head + yaml.safe_dump(hidden, sort_keys=False, allow_unicode=True)).encode()


def _masked_table(text: str) -> str:
    """Return a run table with likely secrets masked; unchanged if it has none."""
    lines = [line.split("\t") for line in text.split("\n")]
    named = [is_secret(column.strip()) for column in lines[0]]
    shown = [
        [
            MASK if is_named and number and cell.strip() else mask(cell)
            for is_named, cell in zip_longest(named[: len(cells)], cells)
        ]
        for number, cells in enumerate(lines)
    ]
    return "\n".join("\t".join(cells) for cells in shown)


def _hidden(values: Any) -> Any:
    if isinstance(values, Mapping):
        return dict.fromkeys(values, MASK)
    return [f"{word.partition('=')[0]}={MASK}" if "=" in word else MASK for word in values]


def _add_dataset(contents: Contents, dataset: str) -> None:
    # old results have no provenance, and results can outlive the files of their dataset
    if manifest := contents.records.manifest(dataset):
        contents.manifests[dataset] = manifest
    if provenance := contents.records.dataset(dataset):
        contents.provenances[dataset] = provenance
    for name in ("manifest.json", "provenance.json"):
        path = contents.paths.result("dataset", dataset) / name
        if (source := contents.records.at(path)).exists():
            contents.items[str(path)] = Item(source=source)
    own = ResultsLayout(root=Path())  # independent of the project's store
    for path in (own.prepared(dataset), own.split_plan(dataset)):
        source = contents.project.layout.shards(dataset) / path.name
        if source.exists():
            contents.items[str(path)] = Item(source=source, is_here=contents.with_data)
    if contents.with_data and dataset in contents.manifests:
        store, found = contents.project.layout.shards(dataset), contents.manifests[dataset]
        for shard in found.shards:
            place = shard_path(store, shard.file), shard.blake3
            contents.shards[f"{shards_folder(dataset)}{shard.file}"] = place
        if found.statistics.blake3:
            place = store / STATISTICS_FILE, found.statistics.blake3
            contents.shards[f"{shards_folder(dataset)}{STATISTICS_FILE}"] = place


def shards_folder(dataset: str) -> str:
    """Return the folder of a dataset's shards in a crate."""
    return f"{ResultsLayout(root=Path()).shards(dataset)}/"  # independent of the project's store


def _add_study(contents: Contents, study: str, number: int) -> None:
    folder = contents.paths.study(study)
    files = [f"study-{number}.json"]
    for trial in range(number):
        here = contents.records.at(folder / str(trial))
        files += [f"{trial}/{path.name}" for path in sorted(here.glob("*.json"))]
    for name in files:
        contents.items[str(folder / name)] = Item(source=contents.records.at(folder / name))


def _add_run(contents: Contents, run: str, evaluation: str) -> None:
    folder = contents.paths.run(run)
    for name in (*_RUN_FILES, f"evaluations/{evaluation}.json"):
        path = contents.records.at(folder / name)
        if path.exists() or name != "identity.json":
            contents.items[str(folder / name)] = Item(source=path)
    read = RunRecord(
        spec=contents.records.spec(run),
        provenance=contents.records.read(folder / "provenance.json", TrainingProvenance),
        evaluation=contents.records.evaluation(run, evaluation),
    )
    contents.runs[evaluation] = read
    certificate = read.provenance.certificate
    for beside in (folder / ACCEPTED, *([Path(certificate.path)] if certificate else [])):
        if (path := contents.project.workdir / beside).exists():
            contents.items[str(beside)] = Item(source=path)
    model = contents.paths.model(run)
    contents.items[str(model)] = Item(
        source=contents.project.workdir / model,
        is_here=contents.with_data,
        known_sha256=read.provenance.files.get(model.name),
    )
    for base in read.provenance.bases or []:
        if base.run:  # a run outside of the report, unless its own files are added too
            path = contents.paths.model(base.run)
            known = (base.sha256 or None) if base.state == "best" else None
            item = Item(source=contents.project.workdir / path, is_here=False, known_sha256=known)
            contents.items.setdefault(str(path), item)
