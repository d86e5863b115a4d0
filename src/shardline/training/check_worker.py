"""The program that checks models: `python -m shardline.training.check_worker REQUEST.json`."""

import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from msgspec import structs

from shardline.config.run_spec import DatasetPlace
from shardline.core.error_texts import short_traceback
from shardline.core.errors import DataError, ShardlineError
from shardline.core.files import read_json
from shardline.core.masked_output import masked_output
from shardline.core.process import die_with_parent
from shardline.core.urls import is_url
from shardline.training.check_errors import sort_error
from shardline.training.check_spec import (
    CheckedDataset,
    CheckedModel,
    CheckRequest,
    ModelResult,
    encode,
    read_request,
)

if TYPE_CHECKING:
    from shardline.data.first_rows import Row
    from shardline.data.sources import Schema

_Known = dict[tuple[str, int], "_Read"]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """First rows of a dataset.

    Attributes:
        num_rows: of the whole, all splits together; None where counting takes long.
        inferred: see `data.inferred`.
    """

    rows: "list[Row]"
    schema: "Schema"
    num_rows: int | None
    inferred: dict[str, Any]


class NotReadableError(Exception):
    """The rows of a dataset are not on this machine yet."""


def main() -> int:
    """Check each model, and write a line for it as soon as it is checked."""
    die_with_parent()
    request = read_request(Path(sys.argv[1]))
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    with masked_output(), request.output.open("ab") as output:
        _check(request, output)
    return 0


def _check(request: CheckRequest, output: IO[bytes]) -> None:
    import shardline.training.model_check  # noqa: F401  # of what libraries map, little is used: limited is what follows

    _limit_memory(request.memory_bytes)
    known: _Known = {}
    with TemporaryDirectory(dir=request.folder) as folder:
        for number, model in enumerate(request.models):
            result = check_one(
                model, Path(folder) / str(number), known, is_elsewhere=request.is_elsewhere
            )
            result.identity = model.identity
            output.write(encode(result))
            output.flush()


def check_one(
    model: CheckedModel, folder: Path, known: "_Known | None" = None, *, is_elsewhere: bool = False
) -> ModelResult:
    """Check a model on the first rows of its datasets.

    Args:
        folder: for what is written meanwhile; it is made.
        known: rows that were read for other models, by dataset and number; more are added.
        is_elsewhere: as in `CheckRequest`.
    """
    from shardline.training.model_check import check_model

    found, inferred = ModelResult(), dict[str, dict[str, Any]]()
    try:
        known = {} if known is None else known
        read = {one.id: _read_once(one, model, known) for one in model.datasets}
        inferred = {one.name: read[one.id].inferred for one in model.datasets}
        places = [
            _first_rows(one, read[one.id], model, folder / str(number))
            for number, one in enumerate(model.datasets)
        ]
        found = check_model(
            model.spec,
            places,
            folder,
            set_by_row=model.set_by_row,
            has_test_step=model.has_test_step,
            is_elsewhere=is_elsewhere,
        )
        found.num_rows = read[model.datasets[0].id].num_rows if len(places) == 1 else None
    except NotReadableError as error:
        name = model.spec.model or model.spec.model_class
        found.not_checked.append(f"model={name} was not checked: {error}")
    except (ShardlineError, MemoryError) as error:
        sort_error(error, model.spec, "is given its first rows", found, is_elsewhere=is_elsewhere)
    found.inferred = inferred
    return found


def _read_once(dataset: CheckedDataset, model: CheckedModel, known: _Known) -> _Read:
    from shardline.data.first_rows import rows_needed

    key = (dataset.id, rows_needed(model.spec.settings.data.pack))
    if key not in known:
        known[key] = _read(dataset, key[1])
    return known[key]


def _first_rows(
    dataset: CheckedDataset, read: _Read, model: CheckedModel, folder: Path
) -> DatasetPlace:
    """Return a dataset of the first rows."""
    from shardline.data.first_rows import build_first_rows

    place = build_first_rows(
        read.rows,
        read.schema,
        folder,
        name=f"{dataset.name}-{dataset.id}",
        source=dataset.source_class.rpartition(":")[2],
        pack=model.spec.settings.data.pack,
    )
    return structs.replace(place, weight=dataset.weight)


def _read(dataset: CheckedDataset, number: int) -> _Read:
    """Return rows of a dataset's shards, or of its source where these are not written yet.

    Raises:
        NotReadableError: the source lies elsewhere, and was not fetched.
        DataError: the source is wrong; the message names it.
    """
    from shardline.data.build import make_source
    from shardline.data.first_rows import count_rows, rows_of_dataset, rows_of_source, schema_of
    from shardline.data.inferred import describe

    with suppress(ShardlineError):
        manifest = read_json(dataset.manifest, remedy="")
        if rows := rows_of_dataset(dataset.manifest, dataset.shards, number):
            return _Read(
                rows=rows,
                schema=schema_of(manifest),
                num_rows=sum(shard["rows"]["train"] for shard in manifest["shards"]),
                inferred=_recorded(dataset.manifest),
            )
    if missing := [path for path in dataset.files if not path.exists()]:
        raise NotReadableError(f"{missing[0].name} of dataset {dataset.name} is not fetched yet")
    if is_url(str(dataset.source.get("table", ""))):
        raise NotReadableError(f"dataset {dataset.name} is a remote table")
    try:
        source = make_source(
            dataset.source_class, dataset.source, num_shards=dataset.num_shards, files=dataset.files
        )
        return _Read(
            rows=rows_of_source(source, number),
            schema=source.schema,
            num_rows=count_rows(source),
            inferred=describe(source),
        )
    except (ShardlineError, MemoryError):
        raise
    except Exception as error:
        raise DataError(
            f"dataset {dataset.name}: source {dataset.source_class} fails where its rows are read; correct the "
            f"source, or the files that it reads: {short_traceback(error)}"
        ) from error


def _recorded(manifest: Path) -> dict[str, Any]:
    """Return what was inferred when a dataset was sealed."""
    return dict(read_json(manifest.with_name("provenance.json"), remedy="").get("inferred", {}))


def _limit_memory(free_bytes: int) -> None:
    """Let an allocation fail before the machine has no memory left."""
    with suppress(OSError, ValueError):
        used = _data_bytes(Path("/proc/self/status").read_text())
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + free_bytes, hard))


def _data_bytes(status: str) -> int:
    found: Mapping[str, str] = dict(
        line.split(":", 1) for line in status.splitlines() if ":" in line
    )
    return int(found["VmData"].split()[0]) << 10


if __name__ == "__main__":
    sys.exit(main())
