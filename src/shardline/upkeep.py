"""Keeping results and store in order: what may go, and whether what stays is undamaged."""

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardline.config.project import RESULTS, Project
from shardline.errors import DataError, ShardlineError
from shardline.files import read_json
from shardline.identity import DIGEST_LENGTH, digest, short_digest
from shardline.identity.content import file_sha256
from shardline.why import NAMED, is_trained, name_of

_REPORT = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
_EVALUATION = re.compile(rf"{_REPORT.pattern}\.json")
_DOOMED = ".deleted"
_READERS = 4  # a network disk answers several at once; one core hashes about 2 GB/s


# --- gc -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A folder, file or link that the present config does not name.

    Attributes:
        bytes: size of all files in it; links count nothing.
        written: latest change of any file in it, seconds since the epoch.
    """

    path: Path
    reason: str
    bytes: int
    written: float


def find_garbage(project: Project) -> list[Garbage]:
    """List what results and store hold that the present config does not name.

    Only names that end in an identity's digest count, and links that point at
    nothing or at what is listed; links are never followed.
    """
    runs = {run.id: run.name for run in project.runs.values()}
    datasets = {dataset.id: dataset.name for dataset in project.datasets.values()}
    found = [
        *_unnamed(RESULTS / "runs", runs),
        *_unnamed(RESULTS / "datasets", datasets),
        *_outdated(RESULTS / "reports", _REPORT, project.report.parent.name, "earlier report"),
        *_old_evaluations(project),
        *_unnamed(project.store / "datasets", datasets),
        *_unnamed(project.store / "work", runs),
    ]
    return found + _dangling(project, {os.path.realpath(item.path) for item in found})


def last_results(project: Project, garbage: Iterable[Garbage]) -> list[str]:
    """Return the runs of the config that would be left without any sealed model."""
    models = [
        item.path / "model.safetensors" for item in garbage if item.path.parent == RESULTS / "runs"
    ]
    doomed = {name_of(model.parent) for model in models if model.exists()}
    return [run.name for run in project.runs.values() if run.name in doomed and not is_trained(run)]


def _unnamed(folder: Path, kept: Mapping[str, str]) -> Iterator[Garbage]:
    names = set(kept.values())
    for path in _entries(folder, NAMED):
        if path.name not in kept:
            known = name_of(path) in names
            yield _garbage(path, f"earlier {name_of(path)}" if known else "no longer in the config")


def _old_evaluations(project: Project) -> Iterator[Garbage]:
    for run in project.runs.values():
        if not run.folder.is_symlink():
            folder = run.folder / "evaluations"
            yield from _outdated(folder, _EVALUATION, run.evaluation.name, "earlier evaluation")


def _outdated(folder: Path, pattern: re.Pattern[str], kept: str, reason: str) -> Iterator[Garbage]:
    return (_garbage(path, reason) for path in _entries(folder, pattern) if path.name != kept)


def _entries(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return what bears an identity's name, or bore it before an interrupted deletion."""
    if folder.is_symlink() or not folder.is_dir():  # behind a link may lie a disk that is not ours
        return []
    names = ((path.name.removesuffix(_DOOMED), path) for path in folder.iterdir())
    return sorted(path for name, path in names if pattern.fullmatch(name))


def _dangling(project: Project, doomed: set[str]) -> list[Garbage]:
    links = [RESULTS / "report", *sorted((RESULTS / "latest").glob("*"))]
    links += [run.folder / "evaluation.json" for run in project.runs.values()]
    found = []
    for link in links:
        target = Path(os.path.realpath(link))
        if link.is_symlink() and not target.exists():
            found.append(_garbage(link, "link to nothing"))
        elif link.is_symlink() and doomed & {str(target), *map(str, target.parents)}:
            found.append(_garbage(link, "link to a listed item"))
    return found


def _garbage(path: Path, reason: str) -> Garbage:
    states = list(_states(path))
    return Garbage(
        path=path,
        reason=reason,
        bytes=sum(state.st_size for state in states if stat.S_ISREG(state.st_mode)),
        written=max((state.st_mtime for state in states), default=0.0),
    )


def _states(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a file, or of all files and folders in a folder; links are not followed."""
    with contextlib.suppress(OSError):  # gone since it was listed, or not ours to read
        state = path.lstat()
        yield state
        if stat.S_ISDIR(state.st_mode):
            for entry in path.iterdir():
                yield from _states(entry)


def check_unlocked(workdir: Path) -> None:
    """Refuse to delete while Snakemake runs here.

    Raises:
        ShardlineError: a lock of Snakemake exists; the message names it.
    """
    for lock in sorted((workdir / ".snakemake" / "locks").glob("*")):
        raise ShardlineError(
            f"{lock.relative_to(workdir)} exists, so a Snakemake may be running here and nothing is deleted; "
            "wait for its end, or run `snakemake --unlock` if it crashed"
        )


def delete(garbage: Iterable[Garbage]) -> Iterator[Garbage]:
    """Delete each item and yield it once it is gone.

    A folder is renamed first: cut off half-way, no half of it can pass for a
    whole one when an earlier setting comes back.

    Raises:
        DataError: an item cannot be deleted; the message names it.
    """
    for item in garbage:
        try:
            _delete(item.path)
        except OSError as error:
            raise DataError(
                f"{error.filename or item.path} cannot be deleted ({error.strerror}); mend its owner or permissions"
            ) from None
        yield item


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(path.name.removesuffix(_DOOMED) + _DOOMED)
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)  # left by an interrupted deletion
        path.rename(doomed)
    shutil.rmtree(doomed)


# --- verify -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Verdict:
    """What was found of one dataset or run.

    Attributes:
        kind: `dataset` or `run`.
        summary: what was looked at.
        problems: one sentence each; none if all is well.
    """

    kind: str
    id: str
    summary: str = ""
    problems: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, expected: object, remedy: str) -> None:
        """Note a problem if two values differ."""
        if found != expected:
            self.problems.append(f"{what} is {found}, expected {expected}; {remedy}")


def sealed_bytes(dataset_id: str) -> int | None:
    """Return the size of a dataset's shards as its manifest says; None if it does not."""
    try:
        manifest = read_json(RESULTS / "datasets" / dataset_id / "manifest.json", remedy="")
        return int(manifest["bytes"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


def verify_dataset(
    project: Project, dataset_id: str, advance: Callable[[int], object] = lambda num_bytes: None
) -> Verdict:
    """Hold a dataset's shards against its manifest, and the manifest against its folder's name.

    Args:
        advance: called with the bytes of each shard once it was looked at.
    """
    verdict = Verdict(kind="dataset", id=dataset_id)
    with _any_form(verdict, RESULTS / "datasets" / dataset_id):
        _verify_dataset(verdict, project.store / "datasets" / dataset_id, advance)
    return verdict


@contextlib.contextmanager
def _any_form(verdict: Verdict, folder: Path) -> Iterator[None]:
    """Turn what a file of unexpected form leads to into a problem: such files are what we look for."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        verdict.problems.append(
            f"{folder}: a file has not the form that the pipeline writes ({error!r}); "
            "delete the folder and run the pipeline again"
        )


def _verify_dataset(verdict: Verdict, shards: Path, advance: Callable[[int], object]) -> None:
    path = RESULTS / "datasets" / verdict.id / "manifest.json"
    # the pipeline rebuilds a dataset only for a run that still needs it
    remedy = f"delete {path.parent} and {shards}, then run `snakemake --cores all {path}`"
    manifest = _read(verdict, path, remedy)
    if manifest is None:
        return
    found = short_digest(manifest["identity"])
    verdict.expect(
        f"{path}: the digest of its identity", found, verdict.id[-DIGEST_LENGTH:], remedy
    )
    records = manifest["shards"]
    with ThreadPoolExecutor(_READERS) as pool:
        for record, problem in zip(
            records, pool.map(lambda r: _check_shard(shards, r), records), strict=True
        ):
            advance(record["bytes"])
            if problem:
                verdict.problems.append(f"{problem}; {remedy}")
    size = sum(record["bytes"] for record in records)
    verdict.summary = f"{_count(len(records), 'shard')}, {size / 1e6:,.1f} MB"


def _check_shard(folder: Path, record: Mapping[str, Any]) -> str | None:
    path = folder / record["file"]
    try:
        size = path.stat().st_size
        if size != record["bytes"]:
            return f"{path} has {size:,} bytes, expected {record['bytes']:,}"
        sha256 = file_sha256(path)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}), expected {record['bytes']:,} bytes"
    if sha256 != record["sha256"]:
        return f"{path} has SHA-256 {sha256[:12]}..., expected {record['sha256'][:12]}..."
    return None


def _read(verdict: Verdict, path: Path, remedy: str) -> dict[str, Any] | None:
    try:
        document = read_json(path, remedy=remedy)
    except DataError as error:
        verdict.problems.append(str(error))
        return None
    if not isinstance(document, dict):
        verdict.problems.append(f"{path} holds no JSON object; {remedy}")
        return None
    return document


def verify_run(run_id: str) -> Verdict:
    """Hold a run's sealed files against each other, its identity and its dataset's manifest."""
    verdict = Verdict(kind="run", id=run_id)
    folder = RESULTS / "runs" / run_id
    with _any_form(verdict, folder):
        _verify_run(verdict, folder)
    return verdict


def _verify_run(verdict: Verdict, folder: Path) -> None:
    remedy = f"delete {folder} and run the pipeline again"
    spec = _read(verdict, folder / "run.json", remedy)
    document = _read(verdict, folder / "identity.json", remedy)
    if spec is None or document is None:
        return
    _check_spec(verdict, folder, spec, document, remedy)
    if not (folder / "model.safetensors").exists():
        verdict.summary = "not trained yet"
        return
    _check_model(verdict, folder / "model.safetensors", spec, remedy)
    _check_metrics(verdict, folder / "metrics.jsonl", remedy)
    _check_provenance(verdict, folder, spec, remedy)
    evaluations = sorted((folder / "evaluations").glob("*.json"))
    for evaluation in evaluations:
        _check_evaluation(verdict, evaluation)
    verdict.summary = "model, metrics, provenance, " + _count(len(evaluations), "evaluation")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _check_spec(
    verdict: Verdict,
    folder: Path,
    spec: Mapping[str, Any],
    document: Mapping[str, Any],
    remedy: str,
) -> None:
    identity, found = spec.get("identity"), digest(document)
    path = folder / "run.json"
    verdict.expect(
        f"{folder / 'identity.json'}: its digest", found[:12], folder.name[-DIGEST_LENGTH:], remedy
    )
    verdict.expect(f"{path}: identity", identity, found, remedy)
    verdict.expect(f"{path}: run", spec.get("run"), folder.name, remedy)
    verdict.expect(f"{path}: model_class", spec.get("model_class"), document.get("model"), remedy)
    dataset = str(spec.get("dataset", {}).get("id"))[-DIGEST_LENGTH:]
    verdict.expect(f"{path}: dataset", dataset, document.get("inputs", {}).get("dataset"), remedy)
    settings = {
        key: value for key, value in spec.get("settings", {}).items() if key != "evaluation"
    }
    if digest(settings) != digest(document.get("settings")):
        verdict.problems.append(f"{path}: settings are not those of identity.json; {remedy}")


def _check_model(verdict: Verdict, path: Path, spec: Mapping[str, Any], remedy: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as weights:
            metadata = weights.metadata() or {}
    except (SafetensorError, OSError) as error:
        verdict.problems.append(f"{path} is not a whole safetensors file ({error}); {remedy}")
        return
    verdict.expect(
        f"{path}: identity in its metadata", metadata.get("identity"), spec.get("identity"), remedy
    )


def _check_metrics(verdict: Verdict, path: Path, remedy: str) -> None:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        verdict.problems.append(f"{path} cannot be read ({error}); {remedy}")
        return
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            verdict.problems.append(
                f"{path}, line {number} is not a JSON object with a step; {remedy}"
            )
            return


def _check_provenance(verdict: Verdict, folder: Path, spec: Mapping[str, Any], remedy: str) -> None:
    path = folder / "provenance.json"
    provenance = _read(verdict, path, remedy)
    if provenance is None:
        return
    verdict.expect(f"{path}: identity", provenance.get("identity"), spec.get("identity"), remedy)
    manifest = RESULTS / "datasets" / spec["dataset"]["id"] / "manifest.json"
    _check_sha256(
        verdict,
        manifest,
        provenance["manifest_sha256"],
        f"bring back the manifest of the training, or {remedy}",
    )
    for name, sha256 in provenance.get("files", {}).items():
        _check_sha256(verdict, folder / Path(name).name, sha256, remedy)


def _check_sha256(verdict: Verdict, path: Path, expected: str, remedy: str) -> None:
    try:
        verdict.expect(f"{path}: its SHA-256", file_sha256(path), expected, remedy)
    except OSError as error:
        verdict.problems.append(
            f"{path} cannot be read ({error.strerror}), expected {expected}; {remedy}"
        )


def _check_evaluation(verdict: Verdict, path: Path) -> None:
    remedy = f"delete {path} and run the pipeline again"
    evaluation = _read(verdict, path, remedy)
    if evaluation is not None:
        document = evaluation.get("identity")
        verdict.expect(
            f"{path}: the digest of its identity", short_digest(document), path.stem, remedy
        )
        verdict.expect(f"{path}: run", evaluation.get("run"), verdict.id, remedy)
