"""Documents that commands print with `--json`, held to the schemas of the reference."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from shardline.cli.json_schemas import file_of
from tests.support.workspace import REPOSITORY

SCHEMAS = REPOSITORY / "docs/reference/schemas"


def checked(name: str, text: str) -> Any:
    """Return a printed document; it must fit the schema of a command, and have no other fields.

    Args:
        name: Words of the command, as in `OUTPUTS`.
        text: What the command printed.
    """
    document = json.loads(text, parse_constant=lambda one: _fail(f"{one} is no JSON"))
    _validator(name).validate(document)
    return document


def _fail(reason: str) -> None:
    """Fail a test."""
    raise AssertionError(reason)


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / file_of(name)).read_text(encoding="utf-8"))
    for definition in schema.get("$defs", {}).values():
        definition["additionalProperties"] = False
    return Draft202012Validator(schema)
