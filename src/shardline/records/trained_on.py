"""Which datasets a run was trained on, as its files and its identity document hold them: one, or a mix."""

from collections.abc import Mapping
from typing import Any


def weights_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the weights of a run's datasets by id, from its `run.json` or provenance."""
    mixed = document.get("datasets")
    if mixed is None:
        return {document["dataset"]["id"]: "1"}
    return {part["id"]: part["weight"] for part in mixed}


def manifests_of(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums of the manifests that a training read, by dataset, from its provenance."""
    if mixed := provenance.get("datasets"):
        return {part["id"]: part["manifest_sha256"] for part in mixed}
    if "dataset" not in provenance or "manifest_sha256" not in provenance:
        return {}
    return {provenance["dataset"]["id"]: provenance["manifest_sha256"]}


def weights_of_inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the weight of each dataset by id, from `inputs` of a training's identity document."""
    if "dataset" in inputs:
        return {str(inputs["dataset"]): "1"}
    return {str(key): str(weight) for key, weight in inputs.get("datasets", ())}
