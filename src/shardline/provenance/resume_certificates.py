"""Resume certificates: whether trainings of this code, in this environment, resumed bit for bit.

`shardline drill resume` writes them to `results/certificates/`, named by their seal, so that none
is ever overwritten; a training's provenance names the newest that fits it.
"""

from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.core.canonical import DIGEST_LENGTH, digest
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import read_object, write_json
from shardline.core.seals import check_seal
from shardline.identity import CodeIndex
from shardline.identity.shipped_code import meaning
from shardline.records.base import decode, encode, sealed
from shardline.records.certificates import Certified, CertifiedEnvironment, ResumeCertificate
from shardline.records.runs import Certificate, Installed, TrainingProvenance

FOLDER = ResultsLayout(root=Path()).certificates  # from the project's folder, as it is sealed


def identify(provenance: TrainingProvenance) -> Certified:
    """Return what a certificate holds for, as a training's provenance tells it."""
    world = provenance.world
    code, environment = _fitting(provenance.environment)
    return Certified(
        code=code,
        environment=environment,
        machine=sorted({rank.device_name for rank in world.ranks or []}),
        launcher=world.launcher,
        world_sizes=[world.world_size],
    )


def _fitting(found: Installed) -> tuple[str, CertifiedEnvironment]:
    """Return the part that must be the same in a certificate and in a training that it fits."""
    index = CodeIndex(())
    files = {name: index.find(name) for name in index.closure("shardline.training.fit")[0]}
    code = digest({name: meaning(file.read_bytes()) for name, file in files.items() if file})
    torch, packages = (found.packages or {}).get("torch"), digest(encode(found))
    return code, CertifiedEnvironment(python=found.python, torch=torch, packages=packages)


def write_certificate(certificate: ResumeCertificate) -> Path:
    """Seal a certificate, and return its path."""
    document = sealed(certificate)
    path = FOLDER / f"resume-{document['sha256'][:DIGEST_LENGTH]}.json"
    write_json(path, document)
    return path


def find_certificate(environment: Installed) -> Certificate | None:
    """Return the newest certificate of this code and environment, whatever its verdict.

    Args:
        environment: as a training observes it.

    Returns:
        None where none fits, or none is seen from here.
    """
    paths = list(FOLDER.glob("resume-*.json"))
    if not paths:
        return None  # the code is parsed only where it is asked for
    wanted, found = _fitting(environment), []
    for path in paths:
        try:
            document = read_object(path, remedy="drill again")
            one = decode(document, ResumeCertificate, where=path, remedy="drill again")
        except DataError:
            continue
        is_whole = check_seal(path, document) is None
        if is_whole and wanted == (one.identity.code, one.identity.environment):
            found.append((one.action.ended, str(path), one.verdict))
    if not found:
        return None
    _, newest, verdict = max(found)
    return Certificate(path=newest, sha256=file_sha256(Path(newest)), verdict=verdict)
