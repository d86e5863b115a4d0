"""The requests of an SDK as text, without what differs from run to run."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from tests.azureml.emulator.constants import WORKSPACE_ID, is_blob_host
from tests.azureml.emulator.web import Request

CHANGING = {
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "<uuid>",
    r"\b[0-9a-f]{32,}\b": "<digest>",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?": "<time>",
}
# Who asks, from which computer and from which checkout.
DROPPED = ("TelemetryValues", "azureml.git", "mlflow.source.git")


UNORDERED = ("FileNames",)  # the files of a folder, in no order


def describe(requests: Iterable[Request]) -> str:
    """Return a line for each request, and its body below it; a question repeated stands once."""
    entries: list[str] = []
    for request in _in_order(requests):
        query = f"?{request.query}" if request.query else ""
        path = re.sub(re.escape(WORKSPACE_ID), "<WORKSPACE>", request.path, flags=re.IGNORECASE)
        entry = f"{request.method} {request.host} {path}{query} {request.status}"
        if request.body:
            entry += f"\n{_body(request)}"
        for pattern, word in CHANGING.items():
            entry = re.sub(pattern, word, entry)
        if request.method != "GET" or entry not in entries:  # how often one asks is chance
            entries.append(entry)
    return "\n".join(entries) + "\n"


def _in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield requests with neighbours to the storage account sorted: several threads sent them."""
    for to_blobs, group in groupby(requests, key=lambda request: is_blob_host(request.host)):
        neighbours = list(group)
        if to_blobs:
            neighbours.sort(key=lambda request: request.path)
        yield from neighbours


def _body(request: Request) -> str:
    document = request.json()
    if is_blob_host(request.host) or document is None:
        return "    <file>"
    text = json.dumps(_kept(document), indent=1, sort_keys=True)
    return "\n".join(
        f"    {line}" for line in text.replace(WORKSPACE_ID, "<WORKSPACE>").splitlines()
    )


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if not key.startswith(DROPPED)}
        return {
            key: sorted(_kept(item), key=json.dumps) if key in UNORDERED else _kept(item)
            for key, item in kept.items()
        }
    return [_kept(item) for item in value] if isinstance(value, list) else value
