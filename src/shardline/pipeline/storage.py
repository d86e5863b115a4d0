"""Declared files in Snakemake's default storage provider: which files exist, and local copies of them."""

import os
import traceback
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.config.plans import pointer
from shardline.config.project import Project
from shardline.core.errors import DataError
from shardline.core.files import make_folder, renamed_when_complete, write_bytes
from shardline.pipeline.stored_trials import SEALED, files_of_study

_REQUESTS = 16  # at a time; a storage answers in some 10 ms, independent of its load
_STREAMS = 2  # files at a time, since most storage plugins hold a file in memory
_SMALL_BYTES = 8_000_000
_HUGE_BYTES = 1_000_000_000  # larger files are not copied


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file in the storage.

    Attributes:
        mtime: last modification, seconds since the epoch.
    """

    mtime: float
    bytes: int


class Storage:
    """The default storage provider of a Snakemake workflow, queried with few, parallel requests.

    It uses Snakemake's own storage objects, so any provider works. A provider whose
    objects can list a prefix (as Azure Blob's can) gets one request for the list. For
    other providers, each file is one request, several at a time.

    Args:
        provider: `workflow.storage_registry.default_storage_provider`.
        prefix: `--default-storage-prefix`.
        root: the project's folder, absolute.
    """

    def __init__(self, provider: Any, prefix: str | None, root: Path) -> None:
        self._provider, self._root = provider, root
        self._prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        self._known: dict[Path, Stored | None] = {}
        self._has_lists = hasattr(provider.get_storage_object_cls(), "get_prefix_blobs")

    def look(self, paths: Iterable[Path]) -> dict[Path, Stored]:
        """Return the given files that exist now, and remember which exist.

        Args:
            paths: declared files, by their place in the project's folder.

        Raises:
            DataError: the storage does not answer, or rejects the request.
        """
        paths = list(dict.fromkeys(paths))
        with self._reporting_errors():
            tops = {self._declared(path).parts[0] for path in paths}
            if self._has_lists:
                listed = {k: v for top in sorted(tops) for k, v in self._list(top)}
                self._known |= {path: listed.get(path) for path in paths}
            else:
                with ThreadPoolExecutor(_REQUESTS) as pool:
                    self._known |= zip(paths, pool.map(self._ask, paths), strict=True)
        return {path: found for path in paths if (found := self._known[path])}

    def exists(self, path: Path) -> bool:
        """Return whether a declared file existed when it was first looked for."""
        if path not in self._known:
            self.look([path])
        return self._known[path] is not None

    def share(self, cache: Any, paths: Iterable[Path]) -> None:
        """Pass the known files to Snakemake, so that it does not query them one by one.

        Args:
            cache: `workflow.iocache`, which Snakemake drops before it runs the first job.
            paths: declared files that Snakemake will query.

        Raises:
            DataError: the storage does not answer, or rejects the request.
        """
        from snakemake.io import Mtime

        if self._has_lists:
            self.look(paths)
        for path, stored in self._known.items():
            key = self._object(path).cache_key()
            cache.exists_in_storage[key] = stored is not None
            if stored:
                cache.mtime[key] = Mtime(storage=stored.mtime)
                cache.size[key] = stored.bytes

    def fetch(self, found: Mapping[Path, Stored]) -> None:
        """Copy files to the same paths in the project's folder, unless the local copies are as new.

        A file of more than 1 GB is not copied; its address is written to `{file}.url`.

        Args:
            found: result of `look`.

        Raises:
            DataError: a file cannot be read, or cannot be written here.
        """
        wanted = {path: stored for path, stored in found.items() if _is_older(path, stored)}
        for path in [path for path, stored in wanted.items() if stored.bytes > _HUGE_BYTES]:
            write_bytes(pointer(path), f"{self._query(path)}\n".encode())
            del wanted[path]
        small = [path for path, stored in wanted.items() if stored.bytes < _SMALL_BYTES]
        for some, number in ((small, _REQUESTS), (wanted.keys() - set(small), _STREAMS)):
            with self._reporting_errors(), ThreadPoolExecutor(number) as pool:
                for _ in pool.map(lambda path: self._fetch(path, wanted[path]), sorted(some)):
                    pass

    def _declared(self, path: Path) -> Path:
        return path.relative_to(self._root) if path.is_absolute() else path

    def _query(self, path: Path) -> str:
        return f"{self._prefix}{self._declared(path)}"

    def _object(self, path: Path) -> Any:
        return self._provider.object(self._query(path))

    def _list(self, top: str) -> Iterator[tuple[Path, Stored]]:
        """Yield all files below a folder."""
        folder = self._object(Path(top))
        if not folder.container_client().exists():  # Snakemake creates it later
            return
        start = len(folder.blob_path) - len(top)
        for blob in folder.get_prefix_blobs():
            stored = Stored(mtime=blob.last_modified.timestamp(), bytes=blob.size)
            yield self._root / blob.name[start:], stored

    def _ask(self, path: Path) -> Stored | None:
        item = self._object(path)
        return Stored(mtime=item.mtime(), bytes=item.size()) if item.exists() else None

    def _fetch(self, path: Path, stored: Stored) -> None:
        make_folder(path.parent)
        item = self._object(path)
        with renamed_when_complete(path) as scratch:
            item.set_local_path(scratch)
            item.retrieve_object()
            os.utime(scratch, (stored.mtime, stored.mtime))
        pointer(path).unlink(missing_ok=True)

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        # providers raise errors of their own, without a common class
        except Exception as error:
            if _is_raised_here(error):  # a bug of this module, not an error of the provider
                raise
            reason = _cause(error)
            raise DataError(
                f"storage {self._prefix or self._provider} does not answer as expected ({reason}); "
                "check --default-storage-prefix, the credentials and the network"
            ) from None


def results_of(project: Project) -> Iterator[Path]:
    """Yield every sealed file of the project, whether it exists or not."""
    for dataset in project.datasets.values():
        yield dataset.manifest
        yield dataset.provenance
        if project.azureml.register_data:
            yield dataset.asset
    for one in project.predictions.values():
        yield from (one.rows.manifest, one.rows.provenance, one.file, one.record)
    for run in project.runs.values():
        yield from (run.folder / name for name in SEALED)
        yield run.evaluation
        yield project.layout.preflight(run.id)
    for plan in project.sweeps.values():
        yield from files_of_study(plan, project.layout)
    yield from (
        project.report.with_name(name) for name in ("index.html", "report.json", "runs.csv")
    )
    yield project.crate


def storage_of(workflow: Any) -> Storage | None:
    """Return the default storage of a Snakemake workflow; None if declared files are on this disk."""
    provider = workflow.storage_registry.default_storage_provider
    prefix = workflow.storage_settings.default_storage_prefix
    return Storage(provider, prefix, Path.cwd()) if provider else None


def logs_of(project: Project) -> Iterator[Path]:
    """Yield the log and the benchmark of every job that the project may need."""
    jobs = [("render_report", project.report.parent.name)]
    for dataset in project.built.values():
        jobs += [("build_shards", f"{dataset.id}/{part}") for part in dataset.parts]
        rules = ["seal_dataset", "register_data"]
        rules += ["prepare_data"] if dataset.prepared else []
        rules += ["plan_splits"] if dataset.has_plan else []
        jobs += [(rule, dataset.id) for rule in rules]
    for run in project.runs.values():
        jobs += [(rule, run.id) for rule in ("resolve_run", "train", "run_preflight")]
        jobs.append(("evaluate", f"{run.id}-{run.evaluation_id}"))
    for one in project.predictions.values():
        jobs += [(rule, f"{one.spec.run}-{one.id}") for rule in ("predict", "write_predictions")]
    for plan in project.sweeps.values():
        jobs += plan.jobs
    for rule, key in jobs:
        yield project.layout.log(rule, key)
        yield project.layout.benchmark(rule, key)


def _is_older(path: Path, stored: Stored) -> bool:
    try:
        # file systems store times with less precision than some storages
        return path.stat().st_mtime < stored.mtime - 1e-3
    except OSError:
        return True


def _is_raised_here(error: Exception) -> bool:
    """Return whether an error was raised by this module itself."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__") == __name__


def _cause(error: Exception) -> str:
    """Return the first line of a provider's error, which retries may have wrapped."""
    attempt = getattr(error, "last_attempt", None)
    inner = attempt.exception() if attempt is not None else None
    lines = str(inner or error).strip().splitlines()
    return lines[0] if lines else type(inner or error).__name__
