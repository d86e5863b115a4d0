"""What a run's settings are where nobody chose them."""

from functools import cache

from msgspec import to_builtins

from shardline.config.settings.run_settings import RunSettings
from shardline.core.nested import flatten


@cache
def default_settings() -> dict[str, object]:
    """Return the defaults of a run's settings by dotted key."""
    return flatten(to_builtins(RunSettings()))
