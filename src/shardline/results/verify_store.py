"""Whether what the store holds beside the shards is undamaged: parts, markers, trainings' states and attempts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import convert

from shardline.checkpoints.folder import find_damage
from shardline.config.scripts import is_script
from shardline.core.errors import DataError
from shardline.core.files import problem_of_form, read_object
from shardline.core.seals import check_seal
from shardline.data.pack_plans import problems_of_plans
from shardline.data.parts import count_rows, differing_columns, read_part
from shardline.data.shard_format import Layout
from shardline.data.shard_map import ShardMap
from shardline.data.statistics import merge_all
from shardline.data.statistics_file import read_statistics
from shardline.records.attempts import Attempt
from shardline.records.datasets import Manifest, Shard
from shardline.supervision.attempts import read_attempts

_BEGUN = ("host", "job", "retry", "started")  # of an attempt, which no later one changes
_AGAIN = "delete it, and the shard is read again before it is trained on"


def check_parts(
    shards: Path, dataset: str, manifest: Mapping[str, Any], remedy: str
) -> dict[str, str]:
    """Hold the lists of a dataset's parts against their seals and the manifest.

    Args:
        shards: the dataset's folder in the store.
        dataset: its id.
        remedy: ends each sentence.

    Returns:
        A sentence for each list that is wrong, by the name of its part.
    """
    known = {one["file"]: convert(one, Shard) for one in manifest["shards"]}
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


def check_markers(shards: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Verify the markers of verified shards against their seals and the manifest."""
    known = {record["file"]: record for record in manifest["shards"]}
    for path in sorted((shards / "verified").glob("*/*.safetensors")):
        try:
            marker = read_object(path, remedy=_AGAIN)
        except FileNotFoundError:
            continue  # a training replaces it
        except DataError as error:
            yield str(error)
            continue
        problem = check_seal(path, marker)
        if not problem and marker.get("blake3") != known.get(path.name, {}).get("blake3"):
            problem = f"{path} is of another shard than the manifest's"
        if problem:
            yield f"{problem}; {_AGAIN}"


def check_plans(shards: Path, manifest: Mapping[str, Any], *, deep: bool) -> Iterator[str]:
    """Verify the plans of packs against their digests and, if deep, against the rows of the shards."""
    if any((shards / "packs").glob("*.safetensors")):
        try:
            problems = list(problems_of_plans(ShardMap(manifest, shards), deep=deep))
        except (DataError, LookupError):  # the shards themselves are at fault
            return
        yield from (f"{problem}; delete it, and it is made again" for problem in problems)


def check_statistics(shards: Path, manifest: Mapping[str, Any]) -> str | None:
    """Verify the manifest's statistics against the rows of the shards, which are undamaged."""
    if problem := problem_of_form(shards, manifest, Manifest):
        return problem
    class_counts, schema = manifest["statistics"]["class_counts"], manifest["schema"]
    for record in manifest["shards"]:
        try:
            layout = Layout.of(schema, sum(record["rows"].values()), record.get("values"))
        except DataError as error:
            return f"{shards}: {record['file']}: {error}"
        if layout.bytes != record["bytes"]:
            return f"{shards}: {record['file']} has other rows than the manifest"
    numbered = enumerate(manifest["shards"])
    found = merge_all(count_rows(shards, numbered, schema))
    wrong = differing_columns(found, read_statistics(manifest, shards))
    if found.class_counts != class_counts:
        wrong.append("class_counts")
    if not wrong:
        return None
    return f"{shards}: the rows of the shards give another {', '.join(wrong)} than the manifest"


def check_training(
    work: Path, spec: Mapping[str, Any], provenance: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Verify the training checkpoints and attempts of a run.

    Args:
        work: the run's folder in the store.
        spec: run.json.
        provenance: provenance.json of the training, where these files are its own; else empty.

    Returns:
        What was looked at, and a sentence for each problem.
    """
    good, problems = 0, []
    if not is_script(spec["model_class"]):  # a script's own are named and written as it likes
        good, found = find_damage(work / "checkpoints", spec["identity"])
        remedy = "delete it, and the training resumes from the one before"
        problems += [f"{problem}; {remedy}" for problem in found]
    try:
        attempts = read_attempts(work)
        problems += _other_attempts(work, attempts, provenance.get("attempt_log") or [])
    except DataError as error:
        problems.append(str(error))
        attempts = []
    return f"{good} training checkpoints, {len(attempts)} attempts", problems


def _other_attempts(
    work: Path, found: Sequence[Attempt], sealed: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield a sentence if the attempts are not those that the training sealed."""
    begun = [[one.get(key) for key in _BEGUN] for one in sealed]
    if found and [[getattr(one, key) for key in _BEGUN] for one in found[: len(sealed)]] != begun:
        path = work / "attempts.jsonl"
        yield (
            f"{path} has other attempts than the attempt_log of provenance.json; move the file away to count attempts "
            "from 1 again"
        )
