"""Requests of the v2 interface are held to Azure's description of it.

`definitions.json` is derived from the models that azure-ai-ml ships, which Microsoft generates
from that description (package azure-ai-ml, module azure.ai.ml._restclient.arm_ml_service, MIT
licence). It is kept as a file, so that a newer SDK is held to what an older one knew:

    python -m tests.azureml.emulator.definitions     # writes the file anew; read the difference
"""

import datetime
import enum
import functools
import inspect
import json
import types
from pathlib import Path
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tests.azureml.emulator.workspace import ServiceError

FILE = Path(__file__).with_name("definitions.json")
# Bodies of the requests that the emulator takes.
ROOTS = (
    "JobBase",
    "EnvironmentVersion",
    "CodeVersion",
    "DataVersionBase",
    "PendingUploadRequestDto",
)
# Of the kinds of a family, those that the emulator takes.
KINDS = {
    "JobBaseProperties": ("CommandJob",),
    "DataVersionBaseProperties": ("UriFileDataVersion", "UriFolderDataVersion"),
    "NodesProperties": ("AllNodes",),
    "WebhookProperties": (),
}
# What the models leave out: a field that the SDK sends though they have lost it, and forms that
# Azure's description of 2025-06-01 demands (mfe.json in github.com/Azure/azure-rest-api-specs).
WORD = {"pattern": "[a-zA-Z0-9_]"}
BESIDE: dict[str, dict[str, dict[str, Any]]] = {
    "QueueSettings": {"priority": {"type": "integer"}},
    "CommandJob": {"command": WORD, "environmentId": WORD},
    "JobResourceConfiguration": {"shmSize": {"pattern": r"\d+[bBkKmMgG]"}},
    "ManagedIdentity": {
        "clientId": {"pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}
    },
    "UriFolderDataVersion": {"dataUri": WORD},
}
SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
    object: {},
    datetime.datetime: {"type": "string"},
    datetime.timedelta: {"type": "string", "pattern": "^P"},
}


def check(name: str, body: Any) -> dict[str, Any]:
    """Return a request's body.

    Raises:
        ServiceError: 400, it is not as the description says; the message names the place.
    """
    error = best_match(_validator(name).iter_errors(body))
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "the body"
        words = f"The request is invalid: {place}: {error.message}"
        raise ServiceError(400, words, "ValidationError")
    result: dict[str, Any] = body
    return result


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    definitions = json.loads(FILE.read_text())["$defs"]
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def derive() -> str:
    """Return the text of `definitions.json` as the installed SDK has it."""
    from azure.ai.ml import VERSION
    from azure.ai.ml._restclient.arm_ml_service import models

    done: dict[str, dict[str, Any]] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in done:
            derivation = _Deriver(models)
            done[name] = derivation.model(getattr(models, name))
            waiting += derivation.named
    source = f"azure-ai-ml {VERSION}, azure.ai.ml._restclient.arm_ml_service, MIT, Microsoft"
    document = {"$comment": f"Derived from {source}", "$defs": dict(sorted(done.items()))}
    return json.dumps(document, indent=1) + "\n"


class _Deriver:
    """Derives the schema of one model, and remembers which others it names."""

    def __init__(self, models: types.ModuleType) -> None:
        self._models = models
        self.named: list[str] = []

    def model(self, model: Any) -> dict[str, Any]:
        """Return the schema of a model: of its own fields, or of its kinds if it has several."""
        fields = _fields(model)
        kinds = self._kinds(model)
        # The way back to a kind's own definition must not lead to its family again.
        if kinds is not None:
            return {"oneOf": [self._refer(kind) for kind in kinds]}
        properties: dict[str, Any] = {}
        required: list[str] = []
        for name, (annotation, is_read_only) in sorted(fields.items()):
            if is_read_only:
                properties[name] = {}  # sent back by clients that got it, and ignored
                continue
            arguments = get_args(annotation) if _is_union(annotation) else ()
            if type(None) not in arguments:
                required.append(name)
            properties[name] = self.annotation(annotation)
        for name, form in BESIDE.get(model.__name__, {}).items():
            properties[name] = properties.get(name, {}) | form
        shape = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**shape, "required": required} if required else shape

    def annotation(self, annotation: Any) -> dict[str, Any]:
        """Return the schema of a field's type."""
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        if isinstance(annotation, str):
            annotation = getattr(self._models, annotation.rpartition(".")[2], str)
        if annotation in SIMPLE:
            return dict(SIMPLE[annotation])
        origin, arguments = get_origin(annotation), get_args(annotation)
        if _is_union(annotation):
            return self._union([part for part in arguments if part is not type(None)], arguments)
        if origin is Literal:
            return {"const": str(arguments[0].value)}
        if origin is list:
            return {"type": "array", "items": self.annotation(arguments[0])}
        if origin is dict:
            # The SDK itself sends a number where the description has a text: the service reads it.
            values = {"type": ["string", "integer"]} if arguments[1] is str else None
            return {
                "type": "object",
                "additionalProperties": values or self.annotation(arguments[1]),
            }
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return {"enum": [member.value for member in annotation]}
        return self._refer(annotation)

    def _union(self, parts: list[Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
        schemas = [self.annotation(part) for part in parts]
        # `Union[str, SomeEnum]`: the values known today.
        known = [schema for schema in schemas if "enum" in schema] or schemas
        schema = known[0] if len(known) == 1 else {"anyOf": known}
        return {"anyOf": [schema, {"type": "null"}]} if type(None) in arguments else schema

    def _refer(self, model: Any) -> dict[str, Any]:
        self.named.append(model.__name__)
        return {"$ref": f"#/$defs/{model.__name__}"}

    def _kinds(self, model: Any) -> list[Any] | None:
        """Return the kinds of a family of models; None for a model that is no family."""
        discriminators = [f for f in model.__dict__.values() if getattr(f, "_is_discriminator", 0)]
        if not discriminators or "__mapping__" not in model.__dict__:
            return None
        if model.__name__ in KINDS:
            return [getattr(self._models, name) for name in KINDS[model.__name__]]
        return list(dict.fromkeys(model.__mapping__.values()))


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _fields(model: Any) -> dict[str, tuple[Any, bool]]:
    """Return name in a request -> (type, whether only the service writes it)."""
    found: dict[str, tuple[Any, bool]] = {}
    for base in reversed(model.__mro__):
        for attribute, annotation in inspect.get_annotations(base).items():
            field = base.__dict__.get(attribute)
            if hasattr(field, "_visibility"):
                name = field._rest_name_input or attribute
                found[name] = (annotation, field._visibility == ["read"])
    return found


if __name__ == "__main__":
    FILE.write_text(derive())
