"""Model card of an exported model, in the form of Hugging Face's model cards."""

import html
import json
from collections.abc import Sequence

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shardline.config.layout import names_that_have_been
from shardline.core.nested import flatten
from shardline.core.package import workflow_folder
from shardline.core.redaction import mask_values
from shardline.core.visible import visible
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline.records.trainings import TrainingProvenance
from shardline.results.export import DESCRIPTION, DescribedStep, ExportConfig
from shardline.results.export.onnx_program import program
from shardline.results.sealed_run import SealedRun

_LIBRARIES = {
    "onnx": "onnx", "torchscript": "pytorch", "safetensors": "pytorch", "huggingface": "transformers",
}  # fmt: skip
_SHOWN_FILES = 20


def make_card(
    recorded: SealedRun, manifest: Manifest, config: ExportConfig,
    changes: Sequence[str], num_parameters: int,
) -> str:  # fmt: skip
    """Return the text of `README.md`.

    Args:
        recorded: The sealed run.
        manifest: Manifest of the dataset.
        config: Content of the export's `config.json`.
        changes: Differences between the present code and that of the evaluation.
        num_parameters: Number of the model's weights.
    """
    environment = Environment(
        loader=FileSystemLoader(workflow_folder() / "report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; texts of users go through the filter `text`
    )
    environment.filters |= {"text": _text, "step": _step, "sizes": _sizes, "literal": repr}
    template = environment.get_template("model_card.md.j2")
    source = manifest.identity["source"]
    card = template.render(
        front_matter=yaml.safe_dump(
            _front_matter(recorded, config), sort_keys=False, allow_unicode=True
        ),
        run=recorded,
        spec=mask_values(encode(recorded.spec)),
        settings=mask_values(flatten(recorded.spec.settings)),
        provenance=mask_values(encode(recorded.provenance or TrainingProvenance())),
        evaluation=recorded.evaluation,
        evaluation_id=recorded.evaluation_file.stem if recorded.evaluation_file else "",
        manifest=manifest,
        source_files=dict(list(source.items())[:_SHOWN_FILES]),
        num_source_files=len(source),
        config=config,
        program=program(config) if config["format"] == "onnx" else [],
        has_features=config["inputs"][0]["name"] == "features",
        description=DESCRIPTION.get(config["format"], "config.json"),
        head=recorded.spec.model.removeprefix("hf:"),
        changes=changes,
        num_parameters=num_parameters,
    )
    return visible(card)


def _front_matter(recorded: SealedRun, config: ExportConfig) -> dict[str, object]:
    """Return the metadata that the Hub reads; the author adds the licence."""
    evaluation, ids = recorded.evaluation, list(recorded.run_spec.datasets)
    assert evaluation is not None
    tag = _pipeline_tag(config)
    known = names_that_have_been(recorded.layout, "dataset")
    names = ", ".join(known.get(one, [one])[-1] for one in ids)
    result = {
        "task": {"type": tag or config["task"]},
        "dataset": {"name": names, "type": ", ".join(ids), "split": evaluation.split},
        "metrics": [
            {"type": name, "name": name, "value": value}
            for name, value in evaluation.metrics.items()
        ],
    }
    return {
        "library_name": _LIBRARIES[config["format"]],
        "tags": [one for one in ("shardline", config["format"], config["task"]) if one != "none"],
        **({"pipeline_tag": tag} if tag else {}),
        "metrics": list(evaluation.metrics),
        "model-index": [{"name": recorded.title, "results": [result]}],
    }


def _pipeline_tag(config: ExportConfig) -> str:
    """Return the Hub's name of the model's task, or an empty text."""
    raw, meaning = config["preprocessing"]["raw_input"], config["outputs"][0]["meaning"]
    if raw == "numbers" and len(config["inputs"][0]["shape"]) == 2:
        return f"tabular-{config['task']}"
    if raw == "text" and meaning.startswith("logits of the token that follows"):
        return "text-generation"
    if raw == "image" and meaning.startswith("logits of each pixel"):
        return "image-segmentation"
    kinds = {"image": "image-classification", "text": "text-classification"}
    return kinds.get(raw, "") if meaning.startswith("logits of the classes") else ""


def _step(step: DescribedStep) -> str:
    """Return a step of the preprocessing as a cell of a table."""
    known = {k: v for k, v in step.items() if k not in ("step", "does") and v is not None}
    arguments = ", ".join(f"{key}={value}" for key, value in known.items())
    return _text(
        f"{step['step']}({arguments}){': ' if step.get('does') else ''}{step.get('does', '')}"
    )


def _sizes(shape: Sequence[int | str]) -> str:
    """Return the shape of an example with one row."""
    sizes = {"batch": 1}
    return ", ".join(str(sizes.get(n, 8) if isinstance(n, str) else n) for n in shape)


def _text(value: object) -> str:
    """Return a value as text, escaped for HTML, tables and Markdown."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    escaped = html.escape(" ".join(shown.split()), quote=False)
    for mark in "\\`*_[]|":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped
