"""What forked ranks used, added to the benchmark of their job: Snakemake measures descendants of a job alone."""

import functools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shardline.core.errors import DataError
from shardline.core.files import make_folder, write_bytes
from shardline.supervision.warm.messages import WarmAnswer

_FOLDER = Path(".snakemake/shardline-used")  # Snakemake's own folder, which is disposable
_MIB = 1 << 20


def note_usage(log: Path, used: WarmAnswer | None) -> None:
    """Record for Snakemake's process what the forked ranks of this job used.

    Args:
        log: log of the job; its benchmark has the same folder and name.
    """
    if used is not None:
        path = _file(log)
        with suppress(DataError, OSError):  # not worth failing the job
            make_folder(path.parent)
            write_bytes(path, msgspec.json.encode(used))


def add_to_benchmarks() -> None:
    """Let this Snakemake process add what forked ranks used to the benchmarks that it writes."""
    from snakemake import benchmark

    write = getattr(benchmark, "write_benchmark_records", None)  # private, so it may be removed
    if write and not hasattr(write, "__wrapped__"):

        @functools.wraps(write)
        def write_all(records: Sequence[Any], path: str, *args: Any) -> Any:
            add_usage(records, Path(path))
            return write(records, path, *args)

        benchmark.write_benchmark_records = write_all


def add_usage(records: Sequence[Any], benchmark: Path) -> None:
    """Add what forked ranks used to a job's benchmark records, and forget it.

    Args:
        records: Snakemake's `BenchmarkRecord`s.
        benchmark: file of the benchmark.
    """
    path = _file(benchmark)
    try:
        used = msgspec.json.decode(path.read_bytes(), type=WarmAnswer)
        path.unlink()
    except (OSError, msgspec.MsgspecError):
        return
    for record in records:
        if getattr(record, "data_collected", False):
            record.cpu_time += used.cpu_s
            record.cpu_usage += 100 * used.cpu_s  # per cent times seconds
            # the job waits while its ranks run, so both are in memory at the same time
            record.max_rss = (record.max_rss or 0.0) + used.peak_rss_bytes / _MIB
            record.io_in = (record.io_in or 0.0) + used.read_bytes / _MIB
            record.io_out = (record.io_out or 0.0) + used.written_bytes / _MIB


def _file(log: Path) -> Path:
    return _FOLDER / log.parent.name / f"{log.stem}.json"
