"""What all tables of settings are, and kinds of values that many keys take."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

_WORDS = "made of letters, digits and . _ + - after a first letter or digit"

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
# What a file may be called: runs, datasets, studies.
# Letters and digits are those of any script; a pattern that all readers of JSON schema know cannot
# say it more exactly than that anything beyond ASCII will do.
RowName = Annotated[
    str,
    Meta(
        min_length=1,
        pattern="^[A-Za-z0-9\u00aa-\U0010ffff][A-Za-z0-9._+\u00aa-\U0010ffff-]*$",
        extra={"words": _WORDS, "letters": True},
    ),
]
Name = Annotated[RowName, Meta(max_length=150)]
Mix = Annotated[dict[Name, Positive], Meta(min_length=1)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of keys.

    Attributes:
        others: keys that make it a table of another kind.
    """

    others: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether a table is of this kind; asked where a key takes several, the first that fits."""
        return True
