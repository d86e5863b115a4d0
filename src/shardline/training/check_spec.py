"""What the check of models is given, and what it finds: one JSON document each way."""

from pathlib import Path
from typing import Any

import msgspec

from shardline.config.run_spec import RunSpec
from shardline.core.errors import DataError


class CheckedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of a run, sealed or not.

    Attributes:
        id: of its identity.
        name: as people read it.
        manifest: where its manifest is, once it is sealed.
        shards: folder of its shards.
        source_class: import path of the source.
        source: its settings.
        num_shards: files that it is cut into.
        files: what the source reads.
        weight: its share of a mix, as in `DatasetPlace`.
    """

    id: str
    name: str
    manifest: Path
    shards: Path
    source_class: str
    source: dict[str, Any]
    num_shards: int
    files: list[Path]
    weight: str = "1"


class CheckedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model to be checked: that of one run, or of several that differ in nothing that concerns the check.

    Attributes:
        identity: of all that the check depends on.
        spec: the first of these runs.
        datasets: those of the run.
        has_test_step: whether its evaluation is by `test_step`.
        set_by_row: settings that the run's own row sets.
    """

    identity: str
    spec: RunSpec
    datasets: list[CheckedDataset]
    has_test_step: bool = False
    set_by_row: list[str] = []


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the program of the check is given.

    Attributes:
        models: in the order in which they are checked.
        output: file that gets a line of JSON, a `ModelResult`, for each.
        folder: for files that are needed meanwhile.
        memory_bytes: what the program may allocate; a model that needs more is not checked.
        is_elsewhere: whether jobs have packages of their own, so that one missing here tells nothing.
    """

    models: list[CheckedModel]
    output: Path
    folder: Path
    memory_bytes: int
    is_elsewhere: bool = False


class ModelResult(msgspec.Struct, kw_only=True):
    """What was found of a model.

    Attributes:
        identity: as it was given.
        problems: a sentence for each mistake.
        not_checked: a sentence for each thing that could not be checked here, and why.
        weights_bytes: size of the sealed model; 0 where it is not known.
        state_bytes: size of a training checkpoint; 0 where it is not known.
        inferred: what the files of each dataset say, by its name, see `data.inferred`.
        num_rows: of the one dataset, all splits together; None of several, and where counting would take long.
    """

    identity: str = ""
    problems: list[str] = []
    not_checked: list[str] = []
    weights_bytes: int = 0
    state_bytes: int = 0
    inferred: dict[str, dict[str, Any]] = {}
    num_rows: int | None = None


def encode(document: msgspec.Struct) -> bytes:
    """Return a document as a line of JSON."""
    return msgspec.json.encode(document, enc_hook=str) + b"\n"


def read_request(path: Path) -> CheckRequest:
    """Read what the program is given.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=CheckRequest, dec_hook=_to_path)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); run `shardline check` again") from None


def read_result(content: bytes) -> ModelResult | None:
    """Read what was found of a model; None where that was not written to its end."""
    try:
        return msgspec.json.decode(content, type=ModelResult)
    except msgspec.DecodeError:
        return None


def _to_path(kind: type, value: Any) -> Any:
    return kind(value)
