"""What environments are: `environment.json` of each, and `image.json` of the container image."""

from shardline.records.base import Record


class CondaPackage(Record, frozen=True, kw_only=True):
    """A package of a conda environment."""

    name: str
    version: str
    build: str
    subdir: str
    sha256: str
    url: str


class CondaEnvironment(Record, frozen=True, kw_only=True):
    """environment.json of a conda environment.

    Attributes:
        environment: its name.
        prefix: its folder.
        digest: of its pins.
        made_by: versions of the programs that made it.
    """

    environment: str
    prefix: str
    python: str
    platform: str
    digest: str
    made_by: dict[str, str]
    packages: list[CondaPackage]


class VirtualEnvironment(Record, frozen=True, kw_only=True):
    """environment.json of the virtual environment of training scripts; packages are versions by name."""

    kind: str
    prefix: str
    python: str
    packages: dict[str, str]
    made_by: dict[str, str]


class ImageEnvironment(Record, frozen=True, kw_only=True):
    """environment.json of an image that training scripts run in; `python` is None where it could not be asked."""

    environment: str = "image"
    image: str
    python: str | None


class NamedImage(Record, frozen=True, kw_only=True):
    """A container image as tools find it.

    Attributes:
        id: in the storage of what built it.
        digest: the registry's, if it was pushed, else the id.
        reference: its name in the registry, with the digest.
    """

    id: str = ""
    digest: str
    reference: str | None = None


class BuiltImage(NamedImage, frozen=True, kw_only=True):
    """image.json.

    Attributes:
        archive: the file that it was saved to.
        base: the image that it was built on.
        tool: that built it.
        commit: of Shardline's checkout.
        version: of Shardline.
        lock: SHA-256 of the lock.
        code: digest of Shardline's code.
    """

    archive: str | None
    base: str
    tool: str
    commit: str
    version: str
    lock: str
    code: str
