"""Resume certificates: whether trainings of this code, in this environment, resumed bit for bit.

`shardline drill resume` writes them to `results/certificates/`, named by their seal, so that none
is ever overwritten; a training's provenance names the newest that fits it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.config.layout import ResultsLayout
from shardline.core.canonical import DIGEST_LENGTH, digest
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import read_json, write_json
from shardline.core.seals import check_seal, seal
from shardline.identity import CodeIndex
from shardline.identity.shipped_code import meaning
from shardline.records.base import encode
from shardline.records.runs import Installed, TrainingProvenance

FOLDER = ResultsLayout(root=Path()).certificates  # from the project's folder, as it is sealed


def identify(provenance: TrainingProvenance) -> dict[str, Any]:
    """Return what a certificate holds for, as a training's provenance tells it.

    Returns:
        `code` (digest of the training code), `environment` (`python`, `torch` and the digest of all
        `packages`), `machine` (models of the devices), `launcher`, `world_sizes`.
    """
    world = provenance.world
    return {
        **_fitting(provenance.environment),
        "machine": sorted({rank["device_name"] for rank in world.ranks or []}),
        "launcher": world.launcher,
        "world_sizes": [world.world_size],
    }


def _fitting(found: Installed) -> dict[str, Any]:
    """Return the part that must be the same in a certificate and in a training that it fits."""
    index = CodeIndex(())
    files = {name: index.find(name) for name in index.closure("shardline.training.fit")[0]}
    return {
        "code": digest({name: meaning(file.read_bytes()) for name, file in files.items() if file}),
        "environment": {
            "python": found.python,
            "torch": (found.packages or {}).get("torch"),
            "packages": digest(encode(found)),
        },
    }


def write_certificate(document: Mapping[str, Any]) -> Path:
    """Seal a certificate, and return its path."""
    sealed = seal(document)
    path = FOLDER / f"resume-{sealed['sha256'][:DIGEST_LENGTH]}.json"
    write_json(path, sealed)
    return path


def find_certificate(sources: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the newest certificate of this code and environment, whatever its verdict.

    Args:
        sources: `environment` as a training observes it.

    Returns:
        `path`, `sha256` of the file, and `verdict`; None where none fits, or none is seen from here.
    """
    paths = list(FOLDER.glob("resume-*.json"))
    if not paths:
        return None  # the code is parsed only where it is asked for
    wanted, found = _fitting(Installed(**sources["environment"])), []
    for path in paths:
        try:
            document = read_json(path, remedy="drill again")
        except DataError:
            continue
        # only a sealed one has all its keys
        is_whole = "action" in document and check_seal(path, document) is None
        if is_whole and wanted.items() <= document["identity"].items():
            found.append((document["action"]["ended"], str(path), document["verdict"]))
    if not found:
        return None
    _, newest, verdict = max(found)
    return {"path": newest, "sha256": file_sha256(Path(newest)), "verdict": verdict}
