"""Where environments and images come from, and what Azure ML gets: changes no result."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from shardline.config.settings.base import Settings, Text

VirtualPackage = Annotated[
    str, Meta(pattern="^__", extra={"words": "one of a virtual package, such as __cuda"})
]


class Conda(Settings, frozen=True, kw_only=True):
    """What the conda environments of the stages are written to and solved with; changes no
    result."""

    folder: Text | UnsetType = UNSET
    """Folder of the environment and pin files; left out, Shardline's own `envs`."""
    channels: Annotated[list[Text], Meta(min_length=1)] = field(
        default_factory=lambda: ["conda-forge"]
    )
    """Names or URLs (`file://` too) of conda channels, the first before the others."""
    names: dict[str, Text] = {}
    """Conda's name of a package by its name in the lock, where they differ and Shardline does not
    know it."""
    virtual_packages: dict[VirtualPackage, Text] = field(
        default_factory=lambda: {"__unix": "0", "__linux": "4.18", "__glibc": "2.28"}
    )
    """What the machines have that the pins are for; `__cuda`, the driver's version, asks for CUDA
    builds."""


class AzureML(Settings, frozen=True, kw_only=True):
    """What Azure ML gets besides its jobs; changes no result. Its profile sets it."""

    register_data: bool = False
    """Register each sealed dataset's folder in the store as a data asset of the workspace, its
    version being the identity."""


class Image(Settings, frozen=True, kw_only=True):
    """The container image, built from `envs/Containerfile` and the lock; changes no result. `base`
    belongs into the config, the others into a profile."""

    base: Text = "docker.io/library/python:3.11-slim"
    """Image to build on, with Python 3.11 or 3.12; for the same layers a year later, with its
    digest (`python:3.11-slim@sha256:...`)."""
    tool: Literal["auto", "podman", "docker", "buildah"] = "auto"
    """What builds, pushes and saves the image; `auto` is the first that is here."""
    build_args: list[str] = []
    """The site's own arguments for `build`, such as `--secret=id=pip.conf,src=/etc/pip.conf`."""
    push: str = ""
    """Where the image is pushed to, `registry/name`, after `podman login`; empty keeps it here."""
    push_args: list[str] = []
    """The site's own arguments for `push`, such as `--tls-verify=false`."""
    save: str = ""
    """File that the image is saved to, an OCI archive (Docker's own with `docker`), from which
    Apptainer builds; empty saves nothing."""
    run_with: Literal["auto", "podman", "docker", "apptainer"] = "auto"
    """What the ranks run in with `runtime.environment=image`; `auto` is the first that is here,
    beginning with what built the image."""
    run_args: list[str] = []
    """The site's own arguments for `run`, such as `--device=/dev/infiniband`."""
    container: str = ""
    """What Apptainer is to run, a `.sif` or an address, in the place of the image that was
    pushed."""
