"""The keys of a profile that a fault-injection test needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardline.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of Snakemake.

    Attributes:
        name: as the user wrote it.
        word: the value of `--profile` in another folder.
        executor: `local`, `slurm`, ...
        runtime: what it sets under `config: runtime:`.
    """

    name: str
    word: str
    executor: str
    runtime: dict[str, Any]


def read_profile(name: str) -> Profile:
    """Read a profile from where Snakemake would find it.

    Raises:
        ConfigError: no profile has this name, or its jobs see no file of this folder.
    """
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(name)
    if found is None:
        raise ConfigError(f"--profile {name} is not there; give a folder that holds a profile.yaml")
    document = yaml.safe_load(found[1].read_text()) or {}
    if provider := document.get("default-storage-provider"):
        raise ConfigError(
            f"--profile {name} has default-storage-provider={provider}, so that its jobs share no folder with "
            "this machine and no fault can be injected from here; use a profile without this key"
        )
    config = document.get("config") or {}
    return Profile(
        name=name,
        word=str(Path(name).resolve()) if Path(name).exists() else name,
        executor=str(document.get("executor", "local")),
        runtime=config.get("runtime") or {} if isinstance(config, dict) else {},
    )
