"""Whether what the store holds beside the shards is undamaged: parts, markers, trainings' states and attempts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardline.checkpoints.folder import find_damage
from shardline.config.scripts import is_script
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.data.pack_plans import problems_of_plans
from shardline.data.parts import count_rows, differing_columns, read_part
from shardline.data.shard_format import ShardLayout
from shardline.data.shard_map import ShardMap
from shardline.data.statistics import merge_all
from shardline.data.statistics_file import read_statistics
from shardline.records.attempts import Attempt
from shardline.records.datasets import Manifest
from shardline.records.runs import ResolvedRun, TrainingProvenance
from shardline.supervision.attempt_log import read_attempts

_BEGUN = ("host", "job", "retry", "started")  # of an attempt, which no later one changes
_AGAIN = "delete it, and the shard is read again before it is trained on"


def check_parts(shards: Path, dataset: str, manifest: Manifest, remedy: str) -> dict[str, str]:
    """Hold the lists of a dataset's parts against their seals and the manifest.

    Args:
        shards: the dataset's folder in the store.
        dataset: its id.
        remedy: ends each sentence.

    Returns:
        A sentence for each list that is wrong, by the name of its part.
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
    """Verify the plans of packs against their digests and, if deep, against the rows of the shards."""
    if any((shards / "packs").glob("*.safetensors")):
        try:
            problems = list(problems_of_plans(ShardMap(manifest, shards), deep=deep))
        except (DataError, LookupError):  # the shards themselves are at fault
            return
        yield from (f"{problem}; delete it, and it is made again" for problem in problems)


def check_statistics(shards: Path, manifest: Manifest) -> str | None:
    """Verify the manifest's statistics against the rows of the shards, which are undamaged."""
    for record in manifest.shards:
        try:
            layout = ShardLayout.of_shard(manifest.schema, record)
        except DataError as error:
            return f"{shards}: {record.file}: {error}"
        if layout.bytes != record.bytes:
            return f"{shards}: {record.file} has other rows than the manifest"
    found = merge_all(count_rows(shards, enumerate(manifest.shards), manifest.schema))
    wrong = differing_columns(found, read_statistics(manifest, shards))
    if found.class_counts != manifest.statistics.class_counts:
        wrong.append("class_counts")
    if not wrong:
        return None
    return f"{shards}: the rows of the shards give another {', '.join(wrong)} than the manifest"


def check_training(
    work: Path, spec: ResolvedRun, provenance: TrainingProvenance
) -> tuple[str, list[str]]:
    """Verify the training checkpoints and attempts of a run.

    Args:
        work: the run's folder in the store.
        spec: run.json.
        provenance: provenance.json of the training, where these files are its own; else an empty one.

    Returns:
        What was looked at, and a sentence for each problem.
    """
    good, problems = 0, []
    if not is_script(spec.model_class):  # a script's own are named and written as it likes
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
    """Yield a sentence if the attempts are not those that the training sealed."""
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
