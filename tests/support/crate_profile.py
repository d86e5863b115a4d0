"""Holding a crate against its profile with roc-validator, without a network."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import responses
import rocrate
from rocrate_validator import services
from rocrate_validator.models import Severity, ValidationSettings
from rocrate_validator.utils.http import HttpRequester

WFRUN = "https://w3id.org/ro/terms/workflow-run"
# What RO-Crate 1.1's context has otherwise than that of 1.3, which rocrate brings (its changelog).
_OF_1_1 = {
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
}
_NOT_IN_1_1 = (
    "https://codemeta.github.io/",
    "http://www.w3.org/ns/dx/",
    "https://w3id.org/ro/terms#",
)
_OF_WFRUN = (
    "ParameterConnection", "ContainerImage", "DockerImage", "SIFImage", "connection", "sourceParameter",
    "targetParameter", "md5", "sha1", "sha256", "sha512", "environment", "registry", "tag",
    "containerImage", "resourceUsage",
)  # fmt: skip


def contexts() -> dict[str, dict[str, Any]]:
    """Return the JSON-LD contexts that a crate of ours names, by URL."""
    bundled = Path(rocrate.__file__).with_name("data") / "ro-crate.jsonld"
    terms = {
        key: url
        for key, url in json.loads(bundled.read_text())["@context"].items()
        if not str(url).startswith(_NOT_IN_1_1) and key not in ("sha256",)
    }
    return {
        "https://w3id.org/ro/crate/1.1/context": terms | _OF_1_1,
        f"{WFRUN}/context": {name: f"{WFRUN}#{name}" for name in _OF_WFRUN},
    }


@contextmanager
def offline() -> Iterator[None]:
    """Answer for the two contexts alone; every other request fails."""
    with responses.RequestsMock(assert_all_requests_are_fired=False) as web:
        for url, terms in contexts().items():
            web.get(url, json={"@context": terms}, content_type="application/ld+json")
        yield


def issues(crate: Path, severity: str, *, metadata_only: bool = False) -> list[str]:
    """Return what the validator finds at a severity or above it, a line each."""
    settings = ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier="provenance-run-crate-0.5",
        requirement_severity=Severity[severity],
        metadata_only=metadata_only,
        no_cache=True,
    )
    HttpRequester._instance = None  # one of an earlier test keeps its session
    with offline():
        result = services.validate(settings)
    return sorted(
        f"{issue.severity.name} {issue.check.identifier} {issue.violatingEntity or ''}: {issue.message}"
        for issue in result.get_issues()
    )
