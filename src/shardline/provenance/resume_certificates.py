"""Resume certificates: whether resumed trainings of this code and environment were bit-identical.

`shardline drill resume` writes them to `results/certificates/`. Their names contain their seals, so no certificate
is overwritten. The provenance of a training names the newest fitting certificate.
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
from shardline.records.environments import Installed
from shardline.records.trainings import Certificate, TrainingProvenance

FOLDER = ResultsLayout(root=Path()).certificates  # relative, as in sealed files


def identify(provenance: TrainingProvenance) -> Certified:
    """Return code, environment and machine of a certificate from the provenance of a training."""
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
    """Return the code digest and environment that must be equal in a certificate and a fitting training."""
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
    """Return the newest certificate of this code and environment with any verdict.

    Args:
        environment: Observed environment of a training.

    Returns:
        Certificate; None if no certificate fits or the folder is not visible.
    """
    paths = list(FOLDER.glob("resume-*.json"))
    if not paths:
        return None  # without parsing the code
    wanted, found = _fitting(environment), []
    for path in paths:
        try:
            document = read_object(path, remedy="run `shardline drill` again")
            one = decode(
                document, ResumeCertificate, where=path, remedy="run `shardline drill` again"
            )
        except DataError:
            continue
        is_whole = check_seal(path, document) is None
        if is_whole and wanted == (one.identity.code, one.identity.environment):
            found.append((one.action.ended, str(path), one.verdict))
    if not found:
        return None
    _, newest, verdict = max(found)
    return Certificate(path=newest, sha256=file_sha256(Path(newest)), verdict=verdict)
