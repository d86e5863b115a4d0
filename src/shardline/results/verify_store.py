"""Verification of the store: parts, markers, pack plans, statistics, training checkpoints and attempts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardline.checkpoints.folder import find_damage
from shardline.config.scripts import is_script
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.data.folds import of_fold
from shardline.data.pack_plans import problems_of_plans
from shardline.data.parts import count_rows, differing_columns, read_part
from shardline.data.preprocessing import differing_values
from shardline.data.shard_format import ShardLayout
from shardline.data.shard_map import ShardMap
from shardline.data.split_plans import read_plan
from shardline.data.statistics import merge_all
from shardline.data.statistics_file import read_statistics
from shardline.records.attempts import Attempt
from shardline.records.datasets import Manifest
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance
from shardline.supervision.attempt_log import read_attempts

_BEGUN = ("host", "job", "retry", "started")  # fields of an attempt that never change
_AGAIN = "delete it, and the shard is read again before it is trained on"


def check_parts(shards: Path, dataset: str, manifest: Manifest, remedy: str) -> dict[str, str]:
    """Verify the lists of a dataset's parts against their seals and the manifest.

    Args:
        shards: Folder of the dataset in the store.
        dataset: Id of the dataset.
        remedy: End of each sentence.

    Returns:
        A sentence for each wrong list, by name of the part.
    """
    known = {one.file: one for one in manifest.shards}
    problems = {}
    for path in sorted((shards / "parts").glob("*.json")):
        try:
            records = read_part(path, dataset, remedy=remedy).shards
        except DataError as error:
            problems[path.stem] = str(error)
            continue
        for record in records:
            if record != known.get(record.file):
                problems[path.stem] = (
                    f"{path}: its record of {record.file} differs from the manifest's; {remedy}"
                )
    return problems


def check_split_plan(shards: Path, dataset: str) -> str | None:
    """Verify the plan of a dataset's splits against its seal, if there is one."""
    path = shards / "splits.json"
    if not path.exists():
        return None
    try:
        read_plan(path, dataset, remedy="delete it; a repair makes it again")
    except DataError as error:
        return str(error)
    return None


def check_markers(shards: Path, manifest: Manifest) -> Iterator[str]:
    """Verify the markers of verified shards against their seals and the manifest."""
    known = {record.file: record.blake3 for record in manifest.shards}
    for path in sorted((shards / "verified").glob("*/*.safetensors")):
        try:
            marker = read_object(path, remedy=_AGAIN)
        except FileNotFoundError:
            continue  # a training replaces it
        except DataError as error:
            yield str(error)
            continue
        problem = check_seal(path, marker)
        if not problem and marker.get("blake3") != known.get(path.name):
            problem = f"{path} is of another shard than the manifest's"
        if problem:
            yield f"{problem}; {_AGAIN}"


def check_plans(shards: Path, manifest: Manifest, *, deep: bool) -> Iterator[str]:
    """Verify pack plans against their digests and, if deep, against the rows of the shards."""
    if any((shards / "packs").glob("*.safetensors")):
        try:
            problems = list(problems_of_plans(ShardMap(manifest, shards), deep=deep))
        except (DataError, LookupError):  # the shards themselves are damaged
            return
        yield from (f"{problem}; delete it, and it is made again" for problem in problems)


def check_statistics(shards: Path, manifest: Manifest) -> str | None:
    """Verify the manifest's statistics against the rows of undamaged shards."""
    for record in manifest.shards:
        try:
            layout = ShardLayout.of_shard(manifest.schema, record)
        except DataError as error:
            return f"{shards}: {record.file}: {error}"
        if layout.bytes != record.bytes:
            return f"{shards}: {record.file} has other rows than the manifest"
    fitted = manifest.preprocessing
    found = merge_all(count_rows(shards, enumerate(manifest.shards), manifest.schema, fitted))
    wrong = []
    for fold in (None, *range(manifest.folds or 0)):
        expected = read_statistics(of_fold(manifest, fold), shards, fold)
        wrong += differing_columns(found.train(fold), expected)
    if fitted:
        wrong += differing_values(manifest, found, shards)
    if found.class_counts != manifest.statistics.class_counts:
        wrong.append("class_counts")
    if not wrong:
        return None
    return f"{shards}: the shards' rows and the manifest differ in {', '.join(wrong)}"


def check_training(
    work: Path, spec: ResolvedRun, provenance: TrainingProvenance
) -> tuple[str, list[str]]:
    """Verify the training checkpoints and attempts of a run.

    Args:
        work: Folder of the run in the store.
        spec: Record in run.json.
        provenance: Record in provenance.json; an empty one if the result was accepted from another run.

    Returns:
        A summary of the verified files, and a sentence for each problem.
    """
    good, problems = 0, []
    if not is_script(spec.model_class):  # scripts choose the form of their checkpoints
        good, found = find_damage(work / "checkpoints", spec.identity)
        remedy = "delete it, and the training resumes from the one before"
        problems += [f"{problem}; {remedy}" for problem in found]
    try:
        attempts = read_attempts(work)
        problems += _other_attempts(work, attempts, provenance.attempt_log or [])
    except DataError as error:
        problems.append(str(error))
        attempts = []
    return f"{good} training checkpoints, {len(attempts)} attempts", problems


def _other_attempts(
    work: Path, found: Sequence[Attempt], sealed: Sequence[Attempt]
) -> Iterator[str]:
    """Yield a sentence if the attempts differ from those in the sealed provenance."""
    before, begun = (
        [[getattr(one, key) for key in _BEGUN] for one in attempts]
        for attempts in (found[: len(sealed)], sealed)
    )
    if found and before != begun:
        path = work / "attempts.jsonl"
        yield (
            f"{path} has other attempts than the attempt_log of provenance.json; move the file away to count attempts "
            "from 1 again"
        )
