"""Types of settings with more settings, as a later version may have them."""

from typing import Annotated, Any

from msgspec import Meta, defstruct, field

from shardline.config.settings import Settings, keys_of

Added = dict[str, tuple[Any, Any]]


def newer(hint: Any, before: Any) -> tuple[Any, Any]:
    """Return annotation and default of a setting that reproduces what was before by its default."""
    return Annotated[hint, Meta(extra={"legacy_value": before})], before


def extended(table: type[Settings], added: Added) -> type[Settings]:
    """Return a table with more settings, by dotted key; tables that are not there are added."""
    here: Added = {}
    below: dict[str, Added] = {}
    for dotted, one in added.items():
        first, _, rest = dotted.partition(".")
        (below.setdefault(first, {}) if rest else here)[rest or first] = one
    fields = [
        (key, hint, field(default_factory=lambda value=value: value))
        for key, (hint, value) in here.items()
    ]
    for key, more in below.items():
        known = keys_of(table).get(key)
        inner = extended(known.schema.tables[0] if known else Settings, more)
        fields.append((key, inner, field(default_factory=inner)))
    return defstruct(
        table.__name__,
        fields,
        bases=(table,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
