"""Write the metadata of a crate beside the report, or the whole crate as a zip."""

import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from shardline.config.project import Project
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.errors import DataError
from shardline.core.files import atomic_writer, write_bytes
from shardline.provenance.crate.contents import Contents, collect, files_for_commands, records_of
from shardline.provenance.crate.metadata import METADATA, metadata_bytes
from shardline.provenance.sealed_records import SealedRecords
from shardline.records.base import read_record
from shardline.records.jobs import JobRecord
from shardline.records.reports import Report

_DATE = (1980, 1, 1, 0, 0, 0)  # earliest date of a zip
_STORED = (".safetensors", ".png")  # incompressible


def write_metadata(
    project: Project, target: Path, *, records: SealedRecords, report_action: JobRecord
) -> None:
    """Write the metadata of the crate of the present report.

    Args:
        target: `ro-crate-metadata.json` in the report's folder.
        records: Reader of the sealed files.
        report_action: Record of the job that rendered the report.
    """
    from shardline.provenance.crate.describe import describe

    document = describe(collect(project, records), report_action)
    write_bytes(target, metadata_bytes(document))


def write_zip(project: Project, target: Path, *, config: Path, with_data: bool) -> int:
    """Pack the present report and its provenance into a zip, and return the number of files.

    The same files give the same bytes.

    Args:
        config: Config file.
        with_data: Whether to add models and shards.

    Raises:
        DataError: There is no report, or a file is missing or damaged.
    """
    from shardline.provenance.crate.describe import describe

    if not project.report.exists():
        raise DataError(f"{project.report} does not exist; run `snakemake` to its end first")
    contents = collect(project, records_of(project), config=config, with_data=with_data)
    document = describe(contents, _report_action(project))
    contents.items |= dict(files_for_commands(project))
    with atomic_writer(target) as file:
        return _write(file, contents, metadata_bytes(document))


def _report_action(project: Project) -> JobRecord | None:
    path = project.report.with_name("report.json")
    remedy = "run `snakemake` again"
    return read_record(path, Report, remedy=remedy).action or None if path.exists() else None


def _write(file: IO[bytes], contents: Contents, metadata: bytes) -> int:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_entry(METADATA), metadata)
        for path, source in sorted(_sources(contents)):
            if isinstance(source, bytes):
                archive.writestr(_entry(path), source)
                continue
            with (
                source.open("rb") as read,
                archive.open(_entry(path), "w", force_zip64=True) as write,
            ):
                shutil.copyfileobj(read, write, 1 << 20)
        return len(archive.namelist())


def _entry(path: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, _DATE)
    entry.compress_type = zipfile.ZIP_STORED if path.endswith(_STORED) else zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # independent of the system
    return entry


def _sources(contents: Contents) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the path in the crate and the source of each file, after verifying its checksum.

    Raises:
        DataError: A file is missing or damaged; the message names the file.
    """
    for path, item in contents.items.items():
        if item.is_here:
            _check(item.source, item.known_sha256, digest=file_sha256)
            yield path, item.source
    for path, (shard, blake3) in contents.shards.items():
        _check(shard, blake3, digest=file_blake3)
        yield path, shard


def _check(source: Path | bytes, expected: str | None, digest: Callable[[Path], str]) -> None:
    if isinstance(source, bytes) or expected is None:
        return
    try:
        found = digest(source)
    except OSError as error:
        raise DataError(
            f"{source} cannot be read ({error.strerror}); the crate needs this file; omit --with-data, or fetch "
            "the file"
        ) from None
    if found != expected:
        raise DataError(
            f"{source} has digest {found[:12]}..., expected {expected[:12]}...; run `shardline verify` for the remedy"
        )
