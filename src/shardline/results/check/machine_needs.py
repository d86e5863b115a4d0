"""Check of this machine: packages, folders and disk. Imports no library for that."""

import importlib.util
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from shardline.config.checked_sources import BYTES
from shardline.config.code_paths import transforms_of
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.core.errors import ShardlineError
from shardline.core.files import check_writable
from shardline.results.check.found import Finding
from shardline.tracking.processes import check_packages
from shardline.training.rank_task import ModelResult

_STORE_S = 20.0  # a mount that does not answer hangs for ever
_ENCODED = ("decode", "random_resized_crop", "resize", "center_crop")
_SCHEMES = dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")) | dict.fromkeys(
    ("abfs", "abfss", "az"), ("adlfs", "azure-blob")
)
_UNPACKED = 4  # assumed compression ratio of texts


def check_machine(
    project: Project, runs: Mapping[str, RunPlan], sizes: Mapping[str, ModelResult], env: Mapping[str, str], *,
    is_elsewhere: bool = False,
) -> Iterator[Finding]:  # fmt: skip
    """Yield findings about packages, folders and disk that unfinished runs need.

    Args:
        runs: Runs by key of the project.
        sizes: Sizes of the models, as far as known, by the same key.
        env: Environment variables of this process.
        is_elsewhere: Whether jobs use other packages than this process.
    """
    is_reachable = True
    for folder in (project.store, project.layout.results, project.layout.logs):
        for sentence in _problems_of_folder(
            folder, "store" if folder == project.store else "folder"
        ):
            is_reachable = is_reachable and folder != project.store
            yield Finding(kind="error", sentence=sentence)
    is_elsewhere |= project.runtime.launcher == "azureml" or project.runtime.environment != "job"
    if not is_elsewhere:
        yield from _packages(project, runs, env)
    if is_reachable:
        yield from _disk(project, runs, sizes)


def _problems_of_folder(folder: Path, what: str) -> list[str]:
    """Return the reasons why a folder is not writable."""
    found: list[str] = []

    def look() -> None:
        try:
            check_writable(folder)
        except ShardlineError as error:
            found.append(str(error).replace("store ", f"{what} ", 1))

    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(_STORE_S)
    if thread.is_alive():
        return [f"{what} {folder} does not answer within {_STORE_S:g} s; check its mount"]
    return found


def _packages(
    project: Project, runs: Mapping[str, RunPlan], env: Mapping[str, str]
) -> Iterator[Finding]:
    for tracker in project.runtime.tracking:
        try:
            check_packages(tracker, env)
        except ShardlineError as error:
            yield Finding(kind="error", sentence=str(error))
    for run in runs.values():
        for key, module, extra in _needed(run):
            if importlib.util.find_spec(module) is None:
                yield Finding(
                    kind="error",
                    runs=run.names,
                    sentence=f"{key} needs the package {module}, which is not installed; pip install "
                    f"'shardline[{extra}]'",
                )


def _needed(run: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield a setting, the module it needs, and the extra that installs the module."""
    data = run.settings.data
    for key, written in (
        ("data.transform", data.transform),
        ("data.eval_transform", data.eval_transform),
    ):
        named = [str(one.get("type")) for one in transforms_of(written)]
        if shipped := [one for one in named if one in _ENCODED]:
            yield f"{key}={shipped[0]}", "simplejpeg", "images"
    for part in run.parts:
        source, where = part.dataset.source, f"datasets.{part.dataset.names[0]}.source"
        if source.get("tokenizer", BYTES) != BYTES:
            yield f"{where}.tokenizer", "tokenizers", "tokenizers"
        for scheme in _schemes(source):
            if scheme in _SCHEMES:
                yield f"{where} names {scheme}://, which", *_SCHEMES[scheme]


def _schemes(source: Mapping[str, Any]) -> Iterator[str]:
    files: Iterable[Any] = source.get("files") or ()
    urls = [one["url"] for one in files if isinstance(one, Mapping)] + [source.get("table", "")]
    yield from dict.fromkeys(str(url).partition("://")[0] for url in urls if "://" in str(url))


def _disk(
    project: Project, runs: Mapping[str, RunPlan], sizes: Mapping[str, ModelResult]
) -> Iterator[Finding]:
    """Yield a warning if the store is probably too small."""
    datasets = {
        part.dataset.id: part.dataset
        for run in runs.values()
        for part in run.parts
        if not part.dataset.manifest.exists()
    }
    shards = sum(map(_bytes_of_shards, datasets.values()))
    saved = sum(
        _bytes_of_checkpoints(project, sizes[key])
        for key, run in runs.items()
        if key in sizes and not run.has_model
    )
    free = shutil.disk_usage(project.store).free
    if shards + saved > free:
        yield Finding(
            kind="warning",
            sentence=f"store {project.store} has {_shown(free)} free, expected about {_shown(shards + saved)} "
            f"({_shown(shards)} of shards, {_shown(saved)} of training checkpoints), as estimated; free some, name "
            "another disk in runtime.store, or lower runtime.checkpoint.keep",
        )


def _bytes_of_shards(dataset: DatasetPlan) -> int:
    """Estimate the size of unwritten shards from the size of their source."""
    source, size = dataset.source, 0
    if source.get("type") == "synthetic":
        values = int(source.get("rows_per_shard", 0)) * int(source.get("features", 0))
        return 4 * values * dataset.num_shards
    for path in dataset.files:
        try:
            found = path.stat().st_size
        except OSError:
            continue
        size += found * (_UNPACKED if path.suffix in (".gz", ".bz2", ".xz", ".zst") else 1)
    if source.get("type") == "image_folder" and isinstance(source.get("size"), list):
        return int(len(dataset.files) * math.prod(source["size"]) * 3)
    return size


def _bytes_of_checkpoints(project: Project, model: ModelResult) -> int:
    kept = project.runtime.checkpoint
    # while a checkpoint is written, there is one more than are kept
    return model.state_bytes * (kept.keep + 1) + model.weights_bytes * (kept.keep_best + 1)


def _shown(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
