"""JSON schemas of what commands print with `--json`, from the types and their docstrings."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, get_args, get_type_hints

from msgspec import json

from shardline.cli.json_types import OUTPUTS

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each command's output, by the words of `OUTPUTS`."""
    return {name: schema_of(name, kind) for name, kind in OUTPUTS.items()}


def schema_of(name: str, kind: Any) -> dict[str, Any]:
    """Return the schema of a command's output; a later version of Shardline may add fields.

    Args:
        name: Words of the command.
        kind: Type of the output.
    """
    found = json.schema(kind, schema_hook=_of_path)
    classes = {one.__name__: one for one in classes_in(kind)}
    for title, definition in found.get("$defs", {}).items():
        text, meanings = documented(classes[title])
        definition["description"] = text
        for key, field in definition.get("properties", {}).items():
            field.pop("default", None)  # every field is printed
            field["description"] = meanings[key]
        if definition.get("type") == "object":
            definition["required"] = _required(classes[title], definition)
    return {"$schema": DRAFT, "title": f"shardline {name} --json", **found}


def _required(kind: type, definition: dict[str, Any]) -> list[str]:
    """Return the fields that are always printed: all, but for those that a type may leave out."""
    left_out: frozenset[str] = getattr(kind, "__optional_keys__", frozenset())
    return [key for key in definition["properties"] if key not in left_out]


def _of_path(kind: type) -> dict[str, Any]:
    if issubclass(kind, Path):
        return {"type": "string"}
    raise NotImplementedError


def classes_in(kind: Any) -> Iterator[type]:
    """Yield the documented types in a type, with those of their fields."""
    if isinstance(kind, GenericAlias | UnionType) or get_args(kind):
        for one in get_args(kind):
            yield from classes_in(one)
    elif isinstance(kind, type) and kind.__module__.startswith("shardline"):
        yield kind
        for one in get_type_hints(kind).values():
            yield from classes_in(one)


def documented(kind: type) -> tuple[str, dict[str, str]]:
    """Return the first part of a docstring, and the meaning of each field, also of the bases."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        part = (base.__dict__.get("__doc__") or "").partition("Attributes:\n")[2]
        for entry in re.split(r"^ {8}(?=\S)", part, flags=re.MULTILINE)[1:]:
            names, _, meaning = entry.partition(":")
            text = " ".join(meaning.split())
            text = f"{text[:1].upper()}{text[1:]}"
            meanings |= {name.strip(): text for name in names.split(",")}
    return " ".join(str(kind.__doc__).partition("\n\n")[0].split()), meanings


def page(head: str) -> str:
    """Return the page of the reference on the output of each command.

    Args:
        head: First line after the title.
    """
    found = schemas()
    lines = [
        "# JSON of commands",
        "",
        head,
        "",
        "This page lists what each command prints with `--json`. A field that does not apply is null or empty, so",
        "every field is there. A number that is NaN or infinite is null. A later version may add fields.",
        "",
        "```console",
        "$ shardline ls --json | jq -r '.[] | select(.state == \"failed\") | .id'",
        "```",
        "",
        "| command | prints | schema |",
        "| --- | --- | --- |",
    ]
    types: dict[str, dict[str, Any]] = {}
    for name, schema in found.items():
        types |= schema.get("$defs", {})
        lines.append(
            f"| `{name}` | {_words(schema)} | [{file_of(name)}](schemas/{file_of(name)}) |"
        )
    for title, definition in types.items():
        lines += ["", f"## {title} {{ #{title.lower()} }}", "", definition["description"], ""]
        lines += ["| field | type | meaning |", "| --- | --- | --- |"]
        required = definition["required"]
        for key, field in definition["properties"].items():
            absent = "" if key in required else " May be absent."
            text = field["description"].replace("|", "\\|")
            lines.append(f"| `{key}` | {_words(field)} | {text}{absent} |")
    return "\n".join(lines) + "\n"


def file_of(name: str) -> str:
    """Return the name of the file with a command's schema."""
    return re.sub(r"[ -]+", "-", name) + ".json"


def _words(schema: dict[str, Any]) -> str:
    """Return the form of a value in words."""
    if "$ref" in schema:
        title = schema["$ref"].rpartition("/")[2]
        return f"[{title}](#{title.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_words, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join("null" if one is None else f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        each = schema.get("items")
        each = each or next(iter(schema.get("prefixItems", [])), {})
        return f"list of {_words(each)}"
    if kind == "object" and isinstance(of := schema.get("additionalProperties"), dict) and of:
        return f"object of {_words(of)}"
    names = {"string": "text", "boolean": "true, false"}
    kinds: list[str] = kind if isinstance(kind, list) else [kind]
    return " or ".join(names.get(one, one) for one in kinds)
