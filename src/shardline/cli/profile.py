"""The store that a Snakemake profile names."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from shardline.config.layout import ResultsLayout
from shardline.core.errors import ConfigError

_VARIABLE = "SHARDLINE_STORE"
_PROFILES = Path("profiles")


@contextmanager
def profile_store(name: str) -> Iterator[None]:
    """Use the store of a profile inside the context, unless SHARDLINE_STORE is set.

    Sets SHARDLINE_STORE for this process and its child processes.

    Args:
        name: Folder or name of the profile, as `snakemake --profile` accepts it.

    Raises:
        ConfigError: The profile does not exist, or its file cannot be read.
    """
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(name)
    if found is None:
        raise ConfigError(
            f"--profile {name} does not exist; name a folder that contains a profile.yaml"
        )
    store = _store_of(Path(found[1]))
    if store is None or os.environ.get(_VARIABLE):
        yield
        return
    os.environ[_VARIABLE] = store
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def configured_store(layout: ResultsLayout, config: Path) -> Path:
    """Return the store that the config file names, or the default if the file cannot be read."""
    try:
        store = _store_of(config, ("runtime", "store")) if config.exists() else None
    except ConfigError:
        store = None  # the command itself reports it
    return Path(store) if store else layout.named_store


def describe_other_stores(store: Path) -> Iterator[str]:
    """Yield a sentence for each profile in `profiles/` that names another existing store.

    Args:
        store: Store that the command reads.
    """
    if os.environ.get(_VARIABLE):  # it overrides all profiles
        return
    for file in sorted(_PROFILES.glob("*/*.yaml")):
        try:
            named = _store_of(file)
        except ConfigError:
            continue  # Snakemake reports it when the profile is used
        if named and Path(named).is_dir() and Path(named).resolve() != store.resolve():
            yield (
                f"{file} sets runtime.store to {named}, but this command reads {store}; to see the runs of that "
                f"profile, use shardline --profile {file.parent} ..."
            )


def _store_of(file: Path, keys: Sequence[str] = ("config", "runtime", "store")) -> str | None:
    """Return the store that a YAML file names under nested keys, or None."""
    try:
        part: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{file} cannot be read ({reason}); write it as YAML") from None
    for key in keys:
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, str) and part else None
