"""Settings as types: a class for each table of the config, and a field for each key.

A field has an annotation with the valid values, a default, and a docstring below it. Validation,
messages, defaults, `config/README.md` and the JSON schema are derived from these classes, by
`KeySchema`.

A setting that is newer than the first release has a `legacy_value` in its `Meta(extra=...)`; see
`shardline.config.resolved`.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType, structs, to_builtins

_WORDS = "made of letters, digits and . _ + - after a first letter or digit"

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
# Valid names of files: runs, datasets, studies. Letters and digits of any script are valid. A
# pattern that all readers of JSON schema support can only allow everything beyond ASCII.
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
# Settings, or a table of them, as nested dictionaries: written by a user, or resolved.
Plain = Mapping[str, Any]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the config.

    Attributes:
        others: Keys that belong to a table of another kind.
        excluded: Of keys of another kind that a user may expect here, why they are none, and the remedy.
    """

    others: ClassVar[frozenset[str]] = frozenset()
    excluded: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether a table is of this kind. If a key has several kinds, the first that fits is used."""
        return True


# Names of types in JSON schema.
_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
_LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


class KeySchema(Struct, frozen=True, kw_only=True):
    """The valid values of a key.

    Attributes:
        kinds: JSON schema names of the valid types; empty if any value is valid.
        choices: Valid texts, if they are listed. `kinds` then contains only the other types. With a `pattern`
            among the limits, other texts of this pattern are valid too.
        limits: Limits of `msgspec.Meta` by name, and its `extra`: `words` (a pattern in words),
            `letters` (only letters, digits and . _ + -), `unique` (for a list) and
            `legacy_value`.
        item: Schema of the items of a list.
        name: Schema of the keys of a free table; `value` is the schema of its values.
        tables: Possible kinds of a table; the first that fits a value is used. With `value`, other tables are free,
            and all of them stay tables in code.
        description: Description of the type, for keys without a docstring.
    """

    kinds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    limits: dict[str, Any] = {}
    item: "KeySchema | None" = None
    name: "KeySchema | None" = None
    value: "KeySchema | None" = None
    tables: tuple[type[Settings], ...] = ()
    description: str = ""

    @property
    def is_table(self) -> bool:
        """Whether every value is a table, so that its keys can be listed."""
        return self.kinds == ("object",)

    def table_of(self, value: Any) -> type[Settings] | None:
        """Return the kind of table of a value, or None if its keys are free."""
        if len(self.tables) == 1 and self.value is None:
            return self.tables[0]
        found = value if isinstance(value, Mapping) else {}
        return next((table for table in self.tables if table.fits(found)), None)

    def key(self, key: str, value: Any = None) -> "KeySchema":
        """Return the schema of a key of a table."""
        table = self.table_of(value)
        known = keys_of(table).get(key) if table else None
        return known.schema if known else self.value or ANYTHING


class Key(Struct, frozen=True, kw_only=True):
    """A key of a table.

    Attributes:
        field: Name of the field in code; differs if the key is a keyword of Python.
        schema: Valid values.
        default: Default value, or UNSET without a default.
        is_required: Whether the key must be given.
    """

    field: str
    schema: KeySchema
    default: Any
    is_required: bool

    @property
    def below(self) -> dict[str, "Key"]:
        """The keys below this key, if its value is always a table of the same kind."""
        return (
            keys_of(self.schema.tables[0])
            if self.schema.is_table and len(self.schema.tables) == 1
            else {}
        )


ANYTHING = KeySchema()


@cache
def keys_of(table: type[Settings]) -> dict[str, Key]:
    """Return the keys of a table."""
    found = {}
    for field in structs.fields(table):
        default = field.default
        if field.default_factory is not NODEFAULT:
            default = field.default_factory()
        found[field.encode_name] = Key(
            field=field.name,
            schema=schema_of(field.type),
            default=UNSET if default in (NODEFAULT, UNSET) else to_builtins(default),
            is_required=field.required,
        )
    return found


def schema_of(hint: Any) -> KeySchema:
    """Return the schema of an annotation."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = schema_of(args[0])
        for meta in args[1:]:
            schema = _limited(schema, meta)
        return schema
    if origin in (Union, UnionType):
        return _any_of([schema_of(one) for one in args if one is not UnsetType])
    if origin is Literal:
        return KeySchema(kinds=("string",), choices=args)
    if origin is list:
        return KeySchema(kinds=("array",), item=schema_of(args[0]))
    if origin is dict:
        return KeySchema(kinds=("object",), name=schema_of(args[0]), value=schema_of(args[1]))
    if isinstance(hint, type) and issubclass(hint, Settings):
        return KeySchema(kinds=("object",), tables=(hint,))
    return ANYTHING if hint is Any else KeySchema(kinds=(_KINDS[hint],))


def _limited(schema: KeySchema, meta: Meta) -> KeySchema:
    given = {name: value for name in _LIMITS if (value := getattr(meta, name)) is not None}
    extra = dict(meta.extra or {})
    return structs.replace(
        schema,
        choices=extra.pop("choices", schema.choices),
        tables=extra.pop("tables", schema.tables),
        limits={**schema.limits, **given, **extra},
        description=meta.description or schema.description,
    )


def _any_of(schemas: list[KeySchema]) -> KeySchema:
    # the kind "string" would allow any text, not only the choices
    schemas = [
        structs.replace(schema, kinds=()) if schema.choices else schema for schema in schemas
    ]
    merged = schemas[0]
    for schema in schemas[1:]:
        merged = structs.replace(
            merged,
            kinds=tuple(dict.fromkeys((*merged.kinds, *schema.kinds))),
            choices=(*merged.choices, *schema.choices),
            limits={**merged.limits, **schema.limits},
            item=merged.item or schema.item,
            name=merged.name or schema.name,
            value=merged.value or schema.value,
            tables=(*merged.tables, *schema.tables),
        )
    return merged


@cache
def dotted_keys(table: type[Settings], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted keys of a table and of the tables below it."""
    return tuple(
        name
        for key, one in keys_of(table).items()
        for name in (
            dotted_keys(one.schema.tables[0], f"{prefix}{key}.")
            if one.below
            else (f"{prefix}{key}",)
        )
    )


def defaults_of(table: type[Settings]) -> dict[str, object]:
    """Return the defaults of the keys of a table, as a new dictionary."""
    return {
        key: to_builtins(one.default)
        for key, one in keys_of(table).items()
        if one.default is not UNSET
    }


@cache
def schema_at(table: type[Settings], dotted: str) -> KeySchema:
    """Return the schema of a dotted key; below a free table any value is valid.

    Raises:
        KeyError: The key is unknown; the argument is its unknown part.
    """
    schema = KeySchema(kinds=("object",), tables=(table,))
    for key in dotted.split("."):
        if not schema.is_table:
            raise KeyError(key)
        known = keys_of(schema.tables[0]) if schema.tables else {}
        if schema.value is not None and not schema.tables:
            return ANYTHING
        if key not in known:
            raise KeyError(key)
        schema = known[key].schema
    return schema


def fill(value: Any, schema: KeySchema) -> Any:
    """Return settings with defaults for all keys that are not set."""
    if not isinstance(value, Mapping):
        return value
    table = schema.table_of(value)
    if table is None:
        return {key: fill(item, schema.value or ANYTHING) for key, item in value.items()}
    filled: dict[str, object] = {}
    for key, known in keys_of(table).items():
        if key not in value:
            if known.default is not UNSET:
                filled[key] = to_builtins(known.default)
        elif known.schema.tables or not isinstance(value[key], Mapping):
            filled[key] = fill(value[key], known.schema)
        else:  # a free table is merged into its default
            base = known.default if isinstance(known.default, Mapping) else {}
            filled[key] = {**base, **fill(value[key], known.schema)}
    return {**filled, **{key: item for key, item in value.items() if key not in filled}}


def matches(text: str, limits: Mapping[str, Any]) -> bool:
    """Return whether a text matches the pattern and letters of its limits."""
    if not re.search(limits.get("pattern", ""), text):
        return False
    if not limits.get("letters") or text.isascii():
        return True
    return text[0].isalnum() and all(map(_is_of_name, text))


def _is_of_name(char: str) -> bool:
    # combining marks are parts of letters, as in Hindi
    return char.isalnum() or char in "._+-" or unicodedata.category(char).startswith("M")
