"""What the types of settings say, in the words that validation, defaults and the reference need."""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType, structs, to_builtins

from shardline.config.settings.base import Settings

# As JSON schema calls them.
_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
_LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


class Form(Struct, frozen=True, kw_only=True):
    """What values a key takes.

    Attributes:
        kinds: JSON schema's names of types; empty where any value will do.
        choices: the texts that are valid, where they are listed; beside numbers, kinds name those alone.
        limits: by name, those of `msgspec.Meta` and what stands in its `extra`: `words` for a
            pattern, `letters` where but for . _ + - it has only those and digits, `unique` for a
            list, and `before`.
        item: of a list.
        name: of the keys of a free table, as is `value` of what they stand for.
        tables: kinds of tables; the first that fits a value is meant.
        description: of the type, for keys without a text of their own.
    """

    kinds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    limits: dict[str, Any] = {}
    item: "Form | None" = None
    name: "Form | None" = None
    value: "Form | None" = None
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

    def key(self, key: str, value: Any = None) -> "Form":
        """Return the form of a key of a table, or of a free one."""
        table = self.table_of(value)
        known = keys_of(table).get(key) if table else None
        return known.form if known else self.value or ANYTHING


class Key(Struct, frozen=True, kw_only=True):
    """A key of a table.

    Attributes:
        field: of the type, in code: that of a key that is a word of Python has another name.
        form: what values it takes.
        default: UNSET where nothing stands for a key that is left out.
        is_required: whether it must be given.
    """

    field: str
    form: Form
    default: Any
    is_required: bool

    @property
    def below(self) -> dict[str, "Key"]:
        """The keys below it, where it is always one table of the same keys."""
        return (
            keys_of(self.form.tables[0])
            if self.form.is_table and len(self.form.tables) == 1
            else {}
        )


ANYTHING = Form()


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
            form=form_of(field.type),
            default=UNSET if default in (NODEFAULT, UNSET) else to_builtins(default),
            is_required=field.required,
        )
    return found


def form_of(hint: Any) -> Form:
    """Return the form that an annotation describes."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        form = form_of(args[0])
        for meta in args[1:]:
            form = _limited(form, meta)
        return form
    if origin in (Union, UnionType):
        return _any_of([form_of(one) for one in args if one is not UnsetType])
    if origin is Literal:
        return Form(kinds=("string",), choices=args)
    if origin is list:
        return Form(kinds=("array",), item=form_of(args[0]))
    if origin is dict:
        return Form(kinds=("object",), name=form_of(args[0]), value=form_of(args[1]))
    if isinstance(hint, type) and issubclass(hint, Settings):
        return Form(kinds=("object",), tables=(hint,))
    return ANYTHING if hint is Any else Form(kinds=(_KINDS[hint],))


def _limited(form: Form, meta: Meta) -> Form:
    given = {name: value for name in _LIMITS if (value := getattr(meta, name)) is not None}
    return structs.replace(
        form,
        limits={**form.limits, **given, **(meta.extra or {})},
        description=meta.description or form.description,
    )


def _any_of(forms: list[Form]) -> Form:
    # texts that are listed are no kind of text, which would take any
    forms = [structs.replace(form, kinds=()) if form.choices else form for form in forms]
    merged = forms[0]
    for form in forms[1:]:
        merged = structs.replace(
            merged,
            kinds=tuple(dict.fromkeys((*merged.kinds, *form.kinds))),
            choices=(*merged.choices, *form.choices),
            limits={**merged.limits, **form.limits},
            item=merged.item or form.item,
            name=merged.name or form.name,
            value=merged.value or form.value,
            tables=(*merged.tables, *form.tables),
        )
    return merged


@cache
def dotted_keys(table: type[Settings], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted keys of a table, those of the tables below it in their place."""
    return tuple(
        name
        for key, one in keys_of(table).items()
        for name in (
            dotted_keys(one.form.tables[0], f"{prefix}{key}.") if one.below else (f"{prefix}{key}",)
        )
    )


def defaults_of(table: type[Settings]) -> dict[str, Any]:
    """Return the defaults of a table's keys, of its own for each call."""
    return {
        key: to_builtins(one.default)
        for key, one in keys_of(table).items()
        if one.default is not UNSET
    }


@cache
def form_at(table: type[Settings], dotted: str) -> Form:
    """Return what a dotted key takes; anything below a free table.

    Raises:
        KeyError: there is no such key; holds the unknown part.
    """
    form = Form(kinds=("object",), tables=(table,))
    for key in dotted.split("."):
        if not form.is_table:
            raise KeyError(key)
        known = keys_of(form.tables[0]) if form.tables else {}
        if form.value is not None and not form.tables:
            return ANYTHING
        if key not in known:
            raise KeyError(key)
        form = known[key].form
    return form


def fill(value: Any, form: Form) -> Any:
    """Return settings with what is left out at its default."""
    if not isinstance(value, Mapping):
        return value
    table = form.table_of(value)
    if table is None:
        return {key: fill(item, form.value or ANYTHING) for key, item in value.items()}
    filled: dict[str, Any] = {}
    for key, known in keys_of(table).items():
        if key not in value:
            if known.default is not UNSET:
                filled[key] = to_builtins(known.default)
        elif known.form.tables or not isinstance(value[key], Mapping):
            filled[key] = fill(value[key], known.form)
        else:  # a free table adds to the default's
            base = known.default if isinstance(known.default, Mapping) else {}
            filled[key] = {**base, **fill(value[key], known.form)}
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
