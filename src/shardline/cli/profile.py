"""The store that a profile names: the only setting of a profile that the `shardline` command has to know."""

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
    """Look into the store that a profile names, unless SHARDLINE_STORE names another.

    The variable is set for this process and those that it starts.

    Args:
        name: the profile, as Snakemake takes it.

    Raises:
        ConfigError: there is no such profile, or its file cannot be read.
    """
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(name)
    if found is None:
        raise ConfigError(f"--profile {name} is not there; give a folder that holds a profile.yaml")
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
    """Return the store that the config file names, or the default; a file that cannot be read names none."""
    try:
        store = _store_of(config, ("runtime", "store")) if config.exists() else None
    except ConfigError:
        store = None  # the command itself reports it
    return Path(store) if store else layout.named_store


def describe_other_stores(store: Path) -> Iterator[str]:
    """Yield a sentence for each profile of the present folder that names another store, if that is here.

    Args:
        store: the store that the config names, whose data the command looks at.
    """
    if os.environ.get(_VARIABLE):  # which goes before the profiles
        return
    for file in sorted(_PROFILES.glob("*/*.yaml")):
        try:
            named = _store_of(file)
        except ConfigError:
            continue  # Snakemake reports it where it is used
        if named and Path(named).is_dir() and Path(named).resolve() != store.resolve():
            yield (
                f"{file} names the store {named}, and this command looks into {store}; for the runs of that "
                f"profile, pass it: shardline --profile {file.parent} ..."
            )


def _store_of(file: Path, keys: Sequence[str] = ("config", "runtime", "store")) -> str | None:
    """Return what a YAML file sets under some keys, which are a profile's by default."""
    try:
        part: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{file} cannot be read ({reason}); write it as YAML") from None
    for key in keys:
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, str) and part else None
