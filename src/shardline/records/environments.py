"""Environments: `environment.json` of each, `image.json` of the container image, and what a training observed."""

from msgspec import UNSET, UnsetType

from shardline.records.base import Record


class CondaPackage(Record, frozen=True, kw_only=True):
    """A package of a conda environment.

    Attributes:
        build: Build string of the package.
        subdir: Platform of the package, such as `linux-64`.
    """

    name: str
    version: str
    build: str
    subdir: str
    sha256: str
    url: str


class CondaEnvironment(Record, frozen=True, kw_only=True):
    """environment.json of a conda environment.

    Attributes:
        environment: Name of the environment.
        prefix: Folder of the environment.
        python: Version of Python.
        platform: Platform of the packages, such as `linux-64`.
        digest: Digest of the pinned packages.
        made_by: Versions of the programs that created the environment.
        packages: Installed packages.
    """

    environment: str
    prefix: str
    python: str
    platform: str
    digest: str
    made_by: dict[str, str]
    packages: list[CondaPackage]


class VirtualEnvironment(Record, frozen=True, kw_only=True):
    """environment.json of a virtual environment for training scripts.

    Attributes:
        prefix: Folder of the environment.
        python: Version of Python.
        packages: Versions of the installed packages, by name.
        made_by: Versions of the programs that created the environment.
    """

    kind: str
    prefix: str
    python: str
    packages: dict[str, str]
    made_by: dict[str, str]


class ImageEnvironment(Record, frozen=True, kw_only=True):
    """environment.json of an image for training scripts.

    Attributes:
        image: Name of the image.
        python: Version of Python in the image; null if unknown.
    """

    environment: str = "image"
    image: str
    python: str | None


class NamedImage(Record, frozen=True, kw_only=True):
    """Names of a container image.

    Attributes:
        id: Id in the storage of the tool that built the image.
        digest: Digest in the registry; the id if the image was not pushed.
        reference: Name in the registry, with the digest.
    """

    id: str = ""
    digest: str
    reference: str | None = None


class BuiltImage(NamedImage, frozen=True, kw_only=True):
    """image.json.

    Attributes:
        archive: File that the image was saved to.
        base: Base image.
        tool: Tool that built the image.
        commit: Commit of Shardline's checkout.
        version: Version of Shardline.
        lock: SHA-256 of the lock file.
        code: Digest of Shardline's code.
    """

    archive: str | None
    base: str
    tool: str
    commit: str
    version: str
    lock: str
    code: str


class Installed(Record, frozen=True, kw_only=True):
    """Packages installed during a training, see `environments.installed.observe`.

    Attributes:
        python: Version of Python.
        packages: Versions of the Python packages, by name.
        conda: Packages of the conda environment.
        image: Digest of the container image.
    """

    python: str | None = None
    packages: dict[str, str] | UnsetType = UNSET
    conda: list[str] | None = None
    image: str | None = None


class ScriptInstalled(Record, frozen=True, kw_only=True):
    """Environment of a training script.

    Attributes:
        kind: Kind of the environment.
        image: Name of the image, for an image.
        python: Version of Python.
        packages: Versions of the installed packages, by name.
    """

    kind: str
    image: str | UnsetType = UNSET
    python: str | UnsetType = UNSET
    packages: dict[str, str] | UnsetType = UNSET
