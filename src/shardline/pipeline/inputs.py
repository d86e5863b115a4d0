"""The files that a run's jobs read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardline.config.plans import RunPlan
from shardline.config.run_spec import DatasetPlace

# by name, what Snakemake gives: a file, or several
Inputs = Mapping[str, str | Sequence[str]]


def files_of(run: RunPlan, inputs: Inputs) -> dict[str, Path]:
    """Return the files that a run's jobs read, where Snakemake named none the project's own."""
    layout = run.layout.declared
    own = {
        "spec": layout.run(run.id) / "run.json",
        "model": layout.model(run.id),
        "provenance": layout.run(run.id) / "provenance.json",
    }
    return {name: Path(str(inputs.get(name) or path)) for name, path in own.items()}


def places_of(run: RunPlan, inputs: Inputs) -> tuple[DatasetPlace, ...]:
    """Return where the datasets of a run are, likewise."""
    layout, given = run.layout.declared, inputs.get("manifest")
    manifests = [given] if isinstance(given, str) else given
    manifests = manifests or [str(layout.manifest(part.dataset.id)) for part in run.parts]
    return tuple(
        DatasetPlace(
            manifest=Path(manifest),
            shards=layout.shards(part.dataset.id),
            weight=str(part.weight),
            tokenizer=part.dataset.tokenizer,
        )
        for part, manifest in zip(run.parts, manifests, strict=True)
    )
