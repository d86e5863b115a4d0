"""The JSON schema that is made from the types of settings, for editors."""

import json
import subprocess
import sys
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from shardline.config.reference import json_schema
from shardline.config.settings import schema_of
from shardline.config.settings.config import Config
from shardline.config.validate import problems_of
from tests.support.small_config import CONFIG
from tests.unit.config.test_config_messages import REPOSITORY, bad_configs, structures

VALIDATOR = Draft202012Validator(json_schema())


def test_what_editors_accept_is_what_is_accepted() -> None:
    """But for a source's type, which editors know and which is looked up later here."""
    for what, changed in (*bad_configs(), *structures()):
        config: dict[str, Any] = {**CONFIG, **changed}
        problems = list(problems_of(config, schema_of(Config)))
        if VALIDATOR.is_valid(config) != (not problems):
            assert what.partition("=")[0] in ("datasets.d.source.type", "datasets.d.source"), (
                problems
            )


def test_it_is_valid_and_accepts_every_shipped_config() -> None:
    Draft202012Validator.check_schema(json_schema())
    paths = [REPOSITORY / "config" / folder / "config.yaml" for folder in ("", "test")]
    for path in paths:
        VALIDATOR.validate(yaml.safe_load(path.read_text()))


def test_it_is_printed_and_tells_what_keys_mean() -> None:
    command = (sys.executable, "-m", "shardline.config.reference", "--schema")
    printed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    lr = printed["properties"]["defaults"]["properties"]["optim"]["properties"]["lr"]
    assert lr == {
        "type": "number",
        "exclusiveMinimum": 0,
        "default": 0.001,
        "description": "Learning rate, before any scaling.",
    }


def test_every_key_has_a_text() -> None:
    def untold(schema: dict[str, Any], path: str) -> list[str]:
        found = []
        for key, part in schema.get("properties", {}).items():
            dotted = f"{path}.{key}"
            below = [part, *part.get("anyOf", ()), part.get("additionalProperties")]
            found += [
                name for one in below if isinstance(one, dict) for name in untold(one, dotted)
            ]
            found += [] if part.get("description") else [dotted]
        return found

    assert untold(json_schema(), "") == []
