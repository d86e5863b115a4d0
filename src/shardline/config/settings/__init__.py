"""Settings as types: a class for each table of the config, a field for each key.

A field's annotation lists what values it takes, its default what is taken where nothing is set, and
the text below it explains it. Validation, messages, defaults, `config/README.md` and the JSON
schema are made from these classes (`KeySchema`).

A setting that is newer than the first release has `legacy_value` in its `Meta(extra=...)`: see
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


# As JSON schema calls them.
_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
_LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


class KeySchema(Struct, frozen=True, kw_only=True):
    """What values a key takes.

    Attributes:
        kinds: JSON schema's names of types; empty where any value will do.
        choices: the texts that are valid, where they are listed; beside numbers, kinds name those alone.
        limits: by name, those of `msgspec.Meta` and what stands in its `extra`: `words` for a
            pattern, `letters` where but for . _ + - it has only those and digits, `unique` for a
            list, and `legacy_value`.
        item: of a list.
        name: of the keys of a free table, as is `value` of what they stand for.
        tables: kinds of tables; the first that fits a value is meant.
        description: of the type, for keys without a text of their own.
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
        """Whether every value is a table, so that its keys may be named one by one."""
        return self.kinds == ("object",)

    def table_of(self, value: Any) -> type[Settings] | None:
        """Return the kind of table that a value is; None where keys are free."""
        if len(self.tables) == 1:
            return self.tables[0]
        found = value if isinstance(value, Mapping) else {}
        return next((table for table in self.tables if table.fits(found)), None)

    def key(self, key: str, value: Any = None) -> "KeySchema":
        """Return the schema of a key of a table, or of a free one."""
        table = self.table_of(value)
        known = keys_of(table).get(key) if table else None
        return known.schema if known else self.value or ANYTHING


class Key(Struct, frozen=True, kw_only=True):
    """A key of a table.

    Attributes:
        field: of the type, in code: that of a key that is a word of Python has another name.
        schema: what values it takes.
        default: UNSET where nothing stands for a key that is left out.
        is_required: whether it must be given.
    """

    field: str
    schema: KeySchema
    default: Any
    is_required: bool

    @property
    def below(self) -> dict[str, "Key"]:
        """The keys below it, where it is always one table of the same keys."""
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
    """Return the form that an annotation describes."""
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
    return structs.replace(
        schema,
        limits={**schema.limits, **given, **(meta.extra or {})},
        description=meta.description or schema.description,
    )


def _any_of(schemas: list[KeySchema]) -> KeySchema:
    # texts that are listed are no kind of text, which would take any
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
    """Return the dotted keys of a table, those of the tables below it in their place."""
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
    """Return the defaults of a table's keys, of its own for each call."""
    return {
        key: to_builtins(one.default)
        for key, one in keys_of(table).items()
        if one.default is not UNSET
    }


@cache
def schema_at(table: type[Settings], dotted: str) -> KeySchema:
    """Return what a dotted key takes; anything below a free table.

    Raises:
        KeyError: there is no such key; holds the unknown part.
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
    """Return settings with what is left out at its default."""
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
        else:  # a free table adds to the default's
            base = known.default if isinstance(known.default, Mapping) else {}
            filled[key] = {**base, **fill(value[key], known.schema)}
    return {**filled, **{key: item for key, item in value.items() if key not in filled}}


def matches(text: str, limits: Mapping[str, Any]) -> bool:
    """Return whether a text has the form that its limits ask for."""
    if not re.search(limits.get("pattern", ""), text):
        return False
    if not limits.get("letters") or text.isascii():
        return True
    return text[0].isalnum() and all(map(_is_of_name, text))


def _is_of_name(char: str) -> bool:
    # marks are parts of letters, as in Hindi
    return char.isalnum() or char in "._+-" or unicodedata.category(char).startswith("M")
