"""Jobs of datasets whose rows come from a torch dataset or a LightningDataModule."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from shardline.config.job_plan import recheck_dataset
from shardline.config.project import Project
from shardline.core.files import write_json
from shardline.identity import watch_reads
from shardline.pipeline.job_frame import check_environment, only
from shardline.provenance.actions import Action
from shardline.records.base import sealed
from shardline.records.datasets import Part, Prepared

if TYPE_CHECKING:
    from shardline.data.sources import Source

Files = Callable[[], dict[str, str]]


def prepare_data(project: Project, prepared_json: str) -> None:
    """Call `prepare_data` of a data module, and write a file that says so.

    Args:
        project: the dataset's part of the project.
    """
    from shardline.data.python.prepare import prepare
    from shardline.data.sources.remote_files import fetch

    dataset = only(project.built)
    recheck_dataset(project, dataset)
    action = Action(id=f"prepare_data/{dataset.id}")
    check_environment(project, dataset.document)
    fetch(dataset.source.get("files", ()), project.layout.downloads)
    if given := dataset.python:
        prepare(given)
    record = Prepared(dataset=dataset.id, module=dataset.source_class, action=action.record())
    write_json(Path(prepared_json), sealed(record))


@contextmanager
def reading(
    source: "Source", job: str, shards: Sequence[int], folder: Path, threads: int
) -> Iterator[Files]:
    """Read the shards of a job by the processes that Python data need; other sources need none.

    Args:
        job: name of the job.
        folder: folder of the shards.
        threads: threads of the job.

    Yields:
        Function that returns the files that the processes read and that count in no identity.
    """
    from shardline.data.python.source import PythonSource

    if not isinstance(source, PythonSource):
        yield dict
        return
    with source.job(job, shards, folder, watch_reads.current(), threads=threads) as files:
        yield files


def with_rows_of(part: Part, source: "Source") -> Part:
    """Return the description of a part with the digests of the rows that its job found."""
    from shardline.data.python.source import PythonSource

    if not isinstance(source, PythonSource):
        return part
    return structs.replace(part, rows_of=source.rows_of)


def check_rows_of(source: "Source", parts: Sequence[Part]) -> None:
    """Reject Python data whose jobs found different rows, see `PythonSource.check_parts`."""
    from shardline.data.python.source import PythonSource

    if isinstance(source, PythonSource):
        source.check_parts(parts)
