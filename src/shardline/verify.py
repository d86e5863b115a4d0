"""Whether what is there is undamaged: files held against the digests that were written with them."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from shardline.config.checks import SHIPPED_MODELS
from shardline.config.documents import counted_settings
from shardline.config.project import RESULTS, Project, pointer
from shardline.crate.metadata import METADATA, check_crate_seal, files_of_crate
from shardline.errors import DataError
from shardline.files import read_object
from shardline.identity import DIGEST_LENGTH, digest, short_digest
from shardline.identity.content import file_sha256
from shardline.seals import check_seal
from shardline.shardfile import file_digest, shard_path
from shardline.verify_store import check_markers, check_parts, check_statistics, check_training

_READERS = 4  # a network disk answers several at once


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found of one dataset, run or report.

    Attributes:
        kind: `dataset`, `run` or `report`.
        summary: what was looked at.
        problems: one sentence each; none if all is well.
        bad_shards: files of a dataset's shards that are missing or damaged.
        bad_parts: names of a dataset's parts whose lists of shards are damaged.
    """

    kind: str
    id: str
    summary: str
    problems: list[str]
    bad_shards: list[str] = field(default_factory=list)
    bad_parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Findings:
    """Collects problems that have one remedy."""

    remedy: str
    problems: list[str] = field(default_factory=list)
    bad_shards: list[str] = field(default_factory=list)
    bad_parts: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.problems.append(f"{problem}; {self.remedy}")

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.add(f"{what} is {found}, expected {expected}")

    def expect_sha256(self, path: Path, expected: str) -> None:
        try:
            self.expect(f"{path}: its SHA-256", file_sha256(path), expected)
        except OSError as error:
            self.add(f"{path} cannot be read ({error.strerror}), expected {expected}")

    def read(self, path: Path) -> dict[str, Any] | None:
        try:
            return read_object(path, remedy=self.remedy)
        except DataError as error:
            self.problems.append(str(error))
            return None

    def read_sealed(self, path: Path) -> dict[str, Any] | None:
        document = self.read(path)
        if document is not None and (problem := check_seal(path, document)):
            self.add(problem)
        return document

    def but(self, remedy: str) -> "_Findings":
        """Return findings of another remedy that end up in the same list."""
        return _Findings(remedy, self.problems)


def verify_target(project: Project, kind: str, item: str, *, deep: bool = False) -> Verdict:
    """Verify a `dataset`, a `run` or a `report` by its id.

    Args:
        deep: look at what else the store holds of it, see `verify_store`.
    """
    if kind == "dataset":
        return verify_dataset(project, item, deep=deep)
    if kind == "report":
        return verify_report(item)
    return verify_run(item, project.store / "work" / item if deep else None)


def verify_dataset(project: Project, dataset_id: str, *, deep: bool = False) -> Verdict:
    """Hold a dataset's shards and parts against its manifest, and the manifest against its folder's name.

    Args:
        deep: also its statistics against its rows, and the markers of verified shards.
    """
    manifest = RESULTS / "datasets" / dataset_id / "manifest.json"
    shards = project.store / "datasets" / dataset_id
    if dataset_id in project.datasets:
        remedy = f"`shardline verify --repair {project.datasets[dataset_id].names[0]}` lets it be rebuilt"
    else:  # the config has moved on, so that nothing could rebuild a part of it
        remedy = (
            f"delete {manifest.parent} and {shards}, or bring back the settings it was made from"
        )
    return _judge(
        "dataset",
        manifest.parent,
        remedy,
        lambda found: _check_dataset(found, manifest, shards, deep=deep),
    )


def verify_run(run_id: str, work: Path | None = None) -> Verdict:
    """Hold a run's sealed files against each other, its identity and its dataset's manifest.

    Args:
        work: its folder in the store, whose training checkpoints and attempts are then verified too.
    """
    folder = RESULTS / "runs" / run_id
    remedy = f"delete {folder} and run the pipeline again"
    return _judge("run", folder, remedy, lambda found: _check_run(found, folder, work))


def verify_report(report_id: str) -> Verdict:
    """Hold a report, and the small files that it was made from, against the digests in its crate."""
    folder = RESULTS / "reports" / report_id
    remedy = f"delete {folder} and run the pipeline again"
    return _judge("report", folder, remedy, lambda found: _check_report(found, folder))


def _judge(kind: str, folder: Path, remedy: str, check: Callable[[_Findings], str]) -> Verdict:
    findings, summary = _Findings(remedy), ""
    try:
        summary = check(findings)
    # what a file of unexpected form leads to: such files are what we look for
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        findings.add(f"{folder}: a file has not the form that the pipeline writes ({error!r})")
    return Verdict(
        kind=kind,
        id=folder.name,
        summary=summary,
        problems=findings.problems,
        bad_shards=findings.bad_shards,
        bad_parts=findings.bad_parts,
    )


def _check_dataset(findings: _Findings, path: Path, shards: Path, *, deep: bool) -> str:
    manifest = findings.read(path)
    if manifest is None:
        return ""
    found, expected = short_digest(manifest["identity"]), path.parent.name[-DIGEST_LENGTH:]
    findings.expect(f"{path}: the digest of its identity", found, expected)
    _check_dataset_provenance(findings, path)
    records = manifest["shards"]
    if records and not shards.is_dir():
        findings.bad_shards.extend(record["file"] for record in records)
        mounted = "set SHARDLINE_STORE to where the store is mounted; if the folder was deleted, "
        findings.but(mounted + findings.remedy).add(f"{shards} is not there")
        return ""
    with ThreadPoolExecutor(_READERS) as pool:
        problems = pool.map(lambda record: _check_shard(shards, record), records)
        for record, problem in zip(records, problems, strict=True):
            if problem:
                findings.add(problem)
                findings.bad_shards.append(record["file"])
    _check_store(findings, shards, manifest, deep=deep)
    size = sum(record["bytes"] for record in records)
    return f"{count(len(records), 'shard')}, {size / 1e6:,.1f} MB"


def _check_store(
    findings: _Findings, shards: Path, manifest: Mapping[str, Any], *, deep: bool
) -> None:
    parts = check_parts(shards, shards.name, manifest, findings.remedy)
    findings.problems.extend(parts.values())
    findings.bad_parts.extend(parts)
    if deep:
        findings.problems.extend(check_markers(shards, manifest))
        # rows are counted of undamaged shards alone
        if not findings.bad_shards and (problem := check_statistics(shards, manifest)):
            findings.but("delete the dataset's folders, and run the pipeline again").add(problem)


def _check_dataset_provenance(findings: _Findings, manifest: Path) -> None:
    path = manifest.with_name("provenance.json")
    provenance = findings.read_sealed(path) if path.exists() else None
    for name, sha256 in (provenance or {}).get("files", {}).items():
        findings.expect_sha256(manifest.with_name(Path(name).name), sha256)


def _check_shard(folder: Path, record: Mapping[str, Any]) -> str | None:
    try:
        path = shard_path(folder, record["file"])
    except DataError as error:
        return str(error).partition(";")[0]
    try:
        size = path.stat().st_size
        if size != record["bytes"]:
            return f"{path} has {size:,} bytes, expected {record['bytes']:,}"
        found = file_digest(path)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}), expected {record['bytes']:,} bytes"
    if found != record["blake3"]:
        return f"{path} has BLAKE3 digest {found[:12]}..., expected {record['blake3'][:12]}..."
    return None


def _check_run(findings: _Findings, folder: Path, work: Path | None) -> str:
    spec = findings.read_sealed(folder / "run.json")
    document = findings.read(folder / "identity.json")
    if spec is None or document is None:
        return ""
    _check_spec(findings, folder, spec, document)
    trained = _check_results(findings, folder, spec)
    if work is None:
        return trained
    looked_at, problems = check_training(work, spec)
    findings.problems.extend(problems)
    return f"{trained}, {looked_at}"


def _check_results(findings: _Findings, folder: Path, spec: Mapping[str, Any]) -> str:
    model, what = folder / "model.safetensors", "model"
    if model.exists():
        _check_model(findings, model, spec)
    elif _is_elsewhere(model):
        what = "model in the storage, not looked at"
    else:
        return "not trained yet"
    _check_metrics(findings, folder / "metrics.jsonl")
    sealed = _check_provenance(findings, folder, spec)
    evaluations = sorted((folder / "evaluations").glob("*.json"))
    for path in evaluations:
        _check_evaluation(findings.but(f"delete {path} and run the pipeline again"), path, sealed)
    return f"{what}, metrics, provenance, {count(len(evaluations), 'evaluation')}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _check_report(findings: _Findings, folder: Path) -> str:
    path = folder / METADATA
    metadata = findings.read(path)
    if metadata is None:
        return ""
    if problem := check_crate_seal(path, metadata):
        findings.add(problem)
    files = files_of_crate(metadata, below=RESULTS)
    for file, sha256 in files.items():
        # a repaired dataset has a newer record than the report knew; its own seal holds it
        if not file.match("datasets/*/provenance.json"):
            findings.expect_sha256(file, sha256)
    if not any(file.parent == folder for file in files):
        findings.add(f"{path} describes no file of the report")
    return f"page, crate and {count(len(files), 'file')} that they are of"


def _check_spec(
    findings: _Findings, folder: Path, spec: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    path, identity = folder / "run.json", digest(document)
    findings.expect(
        f"{folder / 'identity.json'}: its digest",
        identity[:DIGEST_LENGTH],
        folder.name[-DIGEST_LENGTH:],
    )
    findings.expect(f"{path}: identity", spec.get("identity"), identity)
    findings.expect(f"{path}: run", spec.get("run"), folder.name)
    if named := document.get("model"):  # of a user's class its code alone counts
        model_class = SHIPPED_MODELS.get(named, named)
        findings.expect(f"{path}: model_class", spec.get("model_class"), model_class)
    dataset = str(spec.get("dataset", {}).get("id"))[-DIGEST_LENGTH:]
    findings.expect(f"{path}: dataset", dataset, document.get("inputs", {}).get("dataset"))
    settings = counted_settings(spec.get("settings", {}))
    settings.pop("evaluation", None)
    if digest(settings) != digest(document.get("settings")):
        findings.add(f"{path}: settings are not those of identity.json")


def _check_model(findings: _Findings, path: Path, spec: Mapping[str, Any]) -> None:
    try:
        with safe_open(path, framework="np") as weights:
            metadata = weights.metadata() or {}
    except (SafetensorError, OSError) as error:
        findings.add(f"{path} is not a whole safetensors file ({error})")
        return
    found, expected = metadata.get("identity"), spec.get("identity")
    findings.expect(f"{path}: identity in its metadata", found, expected)


def _check_metrics(findings: _Findings, path: Path) -> None:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        findings.add(f"{path} cannot be read ({error})")
        return
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            findings.add(f"{path}, line {number} is not a JSON object with a step")
            return


def _check_provenance(
    findings: _Findings, folder: Path, spec: Mapping[str, Any]
) -> Mapping[str, str]:
    """Return the digests of the sealed files, by name."""
    path = folder / "provenance.json"
    provenance = findings.read_sealed(path)
    if provenance is None:
        return {}
    findings.expect(f"{path}: identity", provenance.get("identity"), spec.get("identity"))
    manifest = RESULTS / "datasets" / spec["dataset"]["id"] / "manifest.json"
    about_manifest = findings.but(f"bring back the manifest of the training, or {findings.remedy}")
    about_manifest.expect_sha256(manifest, provenance["manifest_sha256"])
    if certificate := provenance.get("certificate"):
        about_certificate = findings.but("bring back the certificate that the training found")
        about_certificate.expect_sha256(Path(certificate["path"]), certificate["sha256"])
    files: Mapping[str, str] = provenance.get("files", {})
    for name, sha256 in files.items():
        file = folder / Path(name).name
        if not _is_elsewhere(file):
            findings.expect_sha256(file, sha256)
    return files


def _is_elsewhere(file: Path) -> bool:
    """Whether a file was too large to be fetched from the storage."""
    return not file.exists() and pointer(file).exists()


def _check_evaluation(findings: _Findings, path: Path, sealed: Mapping[str, str]) -> None:
    evaluation = findings.read_sealed(path)
    if evaluation is not None:
        found = short_digest(evaluation.get("identity"))
        findings.expect(f"{path}: the digest of its identity", found, path.stem)
        findings.expect(f"{path}: run", evaluation.get("run"), path.parents[1].name)
        for name, sha256 in evaluation.get("files", {}).items():  # scripts judge themselves
            findings.expect(
                f"{path}: SHA-256 of the {name} it judged", sha256, sealed.get(name, sha256)
            )
