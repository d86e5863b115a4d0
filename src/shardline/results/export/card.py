"""The card of an exported model, in the form of Hugging Face's model cards, from the provenance."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shardline.config.names import names_that_have_been
from shardline.core.nested import flatten
from shardline.core.package import workflow_folder
from shardline.core.redaction import mask_values
from shardline.core.visible import visible
from shardline.results.recorded import Recorded

_LIBRARIES = {"onnx": "onnx", "torchscript": "pytorch", "safetensors": "pytorch"}
_SHOWN_FILES = 20


def make_card(
    recorded: Recorded, manifest: Mapping[str, Any], config: Mapping[str, Any],
    changes: Sequence[str], num_parameters: int,
) -> str:  # fmt: skip
    """Return the text of `README.md`.

    Args:
        manifest: the dataset's.
        config: the export's `config.json`.
        changes: how the code differs from that of the evaluation.
        num_parameters: the number of the model's weights.
    """
    environment = Environment(
        loader=FileSystemLoader(workflow_folder() / "report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; what a user wrote goes through `text`
    )
    environment.filters["text"] = _text
    template = environment.get_template("model_card.md.j2")
    source = manifest["identity"]["source"]
    card = template.render(
        front_matter=yaml.safe_dump(
            _front_matter(recorded, config), sort_keys=False, allow_unicode=True
        ),
        run=recorded,
        spec=mask_values(recorded.spec),
        settings=mask_values(flatten(recorded.spec["settings"])),
        provenance=mask_values(recorded.provenance),
        evaluation=recorded.evaluation,
        evaluation_id=recorded.evaluation_file.stem if recorded.evaluation_file else "",
        manifest=manifest,
        source_files=dict(list(source.items())[:_SHOWN_FILES]),
        num_source_files=len(source),
        config=config,
        changes=changes,
        num_parameters=num_parameters,
    )
    return visible(card)


def _front_matter(recorded: Recorded, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the Hub reads; the licence is left to the author."""
    evaluation, ids = recorded.evaluation, list(recorded.run_spec.datasets)
    known = names_that_have_been(recorded.layout, "dataset")
    names = ", ".join(known.get(one, [one])[-1] for one in ids)
    result = {
        "task": {"type": config["task"]},
        "dataset": {"name": names, "type": ", ".join(ids), "split": evaluation["split"]},
        "metrics": [
            {"type": name, "name": name, "value": value}
            for name, value in evaluation["metrics"].items()
        ],
    }
    is_table = len(config["input"]["shape"]) == 1
    return {
        "library_name": _LIBRARIES[config["format"]],
        "tags": ["shardline", config["format"], config["task"]],
        **({"pipeline_tag": f"tabular-{config['task']}"} if is_table else {}),
        "metrics": list(evaluation["metrics"]),
        "model-index": [{"name": recorded.title, "results": [result]}],
    }


def _text(value: object) -> str:
    """Return a value that neither HTML nor a table's cell nor Markdown reads as its own."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    escaped = html.escape(" ".join(shown.split()), quote=False)
    for mark in "\\`*_[]|":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped
