"""Verification of datasets and reports against their recorded checksums."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.digests import file_blake3
from shardline.core.errors import DataError
from shardline.data.shard_format import shard_path
from shardline.data.statistics_file import problem_of_statistics
from shardline.provenance.crate.metadata import (
    METADATA,
    check_crate_seal,
    files_of_crate,
    read_crate,
)
from shardline.records.base import read_record
from shardline.records.datasets import DatasetProvenance, Manifest, Shard
from shardline.results.findings import Findings, VerifyResult, count, digest_of
from shardline.results.sweeps.verify_study import verify_study
from shardline.results.verify_runs import verify_run
from shardline.results.verify_store import (
    check_markers,
    check_parts,
    check_plans,
    check_split_plan,
    check_statistics,
)

_READERS = 4  # a network disk serves several reads at once


def verify_target(project: Project, kind: str, item: str, *, deep: bool = False) -> VerifyResult:
    """Verify a `dataset`, a `run`, a `report` or a `study` by its id.

    Args:
        deep: Verify the other files in the store too, see `verify_store`.
    """
    if kind == "dataset":
        return verify_dataset(project, item, deep=deep)
    if kind == "study":
        return verify_study(project, item, deep=deep)
    if kind == "report":
        return verify_report(project.layout, item)
    return verify_run(project.layout, item, deep=deep)


def verify_dataset(project: Project, dataset_id: str, *, deep: bool = False) -> VerifyResult:
    """Verify a dataset: shards and parts against the manifest, and the manifest against its id.

    Args:
        deep: Verify the statistics against the rows, and the markers of verified shards, too.
    """
    manifest, shards = project.layout.manifest(dataset_id), project.layout.shards(dataset_id)
    if dataset_id in project.datasets:
        name = project.datasets[dataset_id].names[0]
        remedy = f"run `shardline verify --repair {name}`, then `snakemake`"
    else:  # the config has changed, so the pipeline cannot rebuild a part of the dataset
        remedy = f"delete {manifest.parent} and {shards}, or restore the settings it was made from"
    findings = Findings(VerifyResult(kind="dataset", id=dataset_id), remedy)
    findings.verdict.summary = _check_dataset(findings, manifest, shards, deep=deep)
    return findings.verdict


def verify_report(layout: ResultsLayout, report_id: str) -> VerifyResult:
    """Verify a report, and the small files behind it, against the digests in its crate."""
    folder = layout.result("report", report_id)
    remedy = f"delete {folder} and run the pipeline again"
    findings = Findings(VerifyResult(kind="report", id=report_id), remedy)
    findings.verdict.summary = _check_report(findings, folder, layout)
    return findings.verdict


def _check_dataset(findings: Findings, path: Path, shards: Path, *, deep: bool) -> str:
    manifest = findings.read(partial(read_record, kind=Manifest), path)
    if manifest is None:
        return ""
    found = digest_of(manifest.identity)[:DIGEST_LENGTH]
    findings.expect(f"{path}: the digest of its identity", found, path.parent.name)
    _check_dataset_provenance(findings, path)
    records = manifest.shards
    if records and not shards.is_dir():
        findings.verdict.bad_shards.extend(record.file for record in records)
        mounted = "set SHARDLINE_STORE to where the store is mounted; if the folder was deleted, "
        findings.but(mounted + findings.remedy).add(f"{shards} is not there")
        return ""
    with ThreadPoolExecutor(_READERS) as pool:
        problems = pool.map(lambda record: _check_shard(shards, record), records)
        for record, problem in zip(records, problems, strict=True):
            if problem:
                findings.add(problem)
                findings.verdict.bad_shards.append(record.file)
    _check_store(findings, shards, manifest, deep=deep)
    size = sum(record.bytes for record in records)
    return f"{count(len(records), 'shard')}, {size / 1e6:,.1f} MB"


def _check_store(findings: Findings, shards: Path, manifest: Manifest, *, deep: bool) -> None:
    parts = check_parts(shards, shards.name, manifest, findings.remedy)
    findings.verdict.problems.extend(parts.values())
    findings.verdict.bad_parts.extend(parts)
    if problem := check_split_plan(shards, shards.name):
        findings.verdict.problems.append(problem)
    problem = problem_of_statistics(manifest, shards)
    if problem:
        findings.add(problem)
    # rows are read of undamaged shards alone
    is_bad = bool(findings.verdict.bad_shards)
    findings.verdict.problems.extend(check_plans(shards, manifest, deep=deep and not is_bad))
    if deep:
        findings.verdict.problems.extend(check_markers(shards, manifest))
        if not (is_bad or problem) and (problem := check_statistics(shards, manifest)):
            findings.but("delete the dataset's folders, and run the pipeline again").add(problem)


def _check_dataset_provenance(findings: Findings, manifest: Path) -> None:
    path = manifest.with_name("provenance.json")
    provenance = findings.record(path, DatasetProvenance) if path.exists() else None
    for name, sha256 in (provenance.files if provenance else {}).items():
        findings.expect_sha256(manifest.with_name(Path(name).name), sha256)


def _check_shard(folder: Path, record: Shard) -> str | None:
    try:
        path = shard_path(folder, record.file)
    except DataError as error:
        return str(error).partition(";")[0]
    try:
        size = path.stat().st_size
        if size != record.bytes:
            return f"{path} has {size:,} bytes, expected {record.bytes:,}"
        found = file_blake3(path)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}), expected {record.bytes:,} bytes"
    if found != record.blake3:
        return f"{path} has BLAKE3 digest {found[:12]}..., expected {record.blake3[:12]}..."
    return None


def _check_report(findings: Findings, folder: Path, layout: ResultsLayout) -> str:
    path = folder / METADATA
    metadata = findings.read(read_crate, path)
    if metadata is None:
        return ""
    if problem := check_crate_seal(path, metadata):
        findings.add(problem)
    held = files_of_crate(metadata, below=layout.declared.results)
    files = {layout.root / name: sha256 for name, sha256 in held.items()}
    for file, sha256 in files.items():
        # a repaired dataset has a newer record than the report; the seal of the record is verified
        if not file.match("datasets/*/provenance.json"):
            findings.expect_sha256(file, sha256)
    if not any(file.parent == folder for file in files):
        findings.add(f"{path} describes no file of the report")
    return f"page, crate and {count(len(files), 'file')} that they are of"
