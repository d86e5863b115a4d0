"""Description of an exported model for `config.json`: inputs, outputs and preprocessing."""

from collections.abc import Mapping
from pathlib import Path

import torch

from shardline.config.settings.run_settings import Pad
from shardline.core.redaction import mask_values
from shardline.data.columns import features_of
from shardline.data.sources.tokenizer import make_tokenizer
from shardline.records.datasets import Manifest
from shardline.results.export import FORMATS, Array, ExportConfig, Output, preprocessing
from shardline.results.export.original import Original
from shardline.training.model import arguments_of
from shardline.training.models.language import LanguageModel
from shardline.training.models.unet import UNet


def describe(
    original: Original, manifest: Manifest, to: str, *, is_free: bool, tokenizer: Path | None
) -> ExportConfig:  # fmt: skip
    """Return the content of `config.json`.

    Args:
        original: The sealed model with compared rows.
        manifest: Manifest of the dataset.
        to: Format of the export.
        is_free: Whether the length of rows may differ from call to call.
        tokenizer: Tokenizer of the dataset, or None.
    """
    spec, schema = original.spec, original.schema
    inputs, mode = _inputs(original, is_free=is_free), spec.settings.data.normalize
    where = {"safetensors": "normalization.safetensors"}.get(to, "the model's first step")
    collate = spec.settings.data.collate
    return {
        "format": to,
        "file": FORMATS[to],
        "model_class": spec.model_class,
        "model_args": mask_values(arguments_of(spec, schema)),
        "call": "one dict" if original.call.is_batch else "positional",
        "inputs": inputs,
        "outputs": _outputs(original, is_free=is_free),
        "fixed_length": [] if is_free else sorted(original.varying),
        "task": schema.task,
        "classes": schema.classes,
        "normalization": {
            "mode": mode if original.constants else "none",
            "where": where if original.constants else "none",
        },
        "preprocessing": preprocessing.describe(
            manifest,
            original.steps,
            {one["name"]: one for one in inputs},
            is_table=original.call.is_table
            or (bool(features_of(schema)) and original.call.names == ("features",)),
            tokens=_tokens(manifest, tokenizer),
            pad_to=collate.get("lengths", {})
            if isinstance(collate, dict) and Pad.fits(collate)
            else {},
            context=_context(original),
            is_inside=original.prepare is not None,
        ),
    }


def _inputs(original: Original, *, is_free: bool) -> list[Array]:
    lengths = original.lengths if is_free else {}
    return [
        _array(name, tensor, {0: "batch", **({1: lengths[name]} if name in lengths else {})})
        for name, tensor in original.batches[0].items()
    ]


def _outputs(original: Original, *, is_free: bool) -> list[Output]:
    """Return the outputs; a dimension as long as a varying input gets the name of that length."""
    found: list[Output] = []
    for name, tensor in original.outputs[0].items():
        names: dict[int, str] = {0: "batch"}
        for of, length in original.lengths.items() if is_free else ():
            is_that = [
                tensor.ndim > 1 and outputs[name].shape[1] == inputs[of].shape[1]
                for inputs, outputs in zip(original.batches, original.outputs, strict=True)
            ]
            names |= {1: length} if all(is_that) else {}
        found.append({**_array(name, tensor, names), "meaning": _meaning(original, tensor)})
    return found


def _array(name: str, tensor: torch.Tensor, names: Mapping[int, str]) -> Array:
    shape = [names.get(place, size) for place, size in enumerate(tensor.shape)]
    return {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}


def _meaning(original: Original, output: torch.Tensor) -> str:
    classes, task = original.schema.classes, original.schema.task
    is_one = len(original.outputs[0]) == 1
    if is_one and task == "classification" and list(output.shape[1:]) == [len(classes)]:
        return "logits of the classes below"
    if isinstance(original.model, LanguageModel):
        return "logits of the token that follows each token"
    if isinstance(original.model, UNet):
        return "logits of each pixel's class"
    if is_one and task == "regression" and output.shape[1:].numel() == 1:
        return "the predicted value"
    size = len(original.schema.targets or ())
    if is_one and size and list(output.shape[1:]) == [size]:
        what = "the predicted values" if task == "regression" else "logits of the flags"
        return f"{what} {', '.join(original.schema.targets or ())}"
    return f"what forward of {original.spec.model_class} returns"


def _context(original: Original) -> int | None:
    context = getattr(original.model, "context", None)
    return context if isinstance(context, int) and not isinstance(context, bool) else None


def _tokens(manifest: Manifest, tokenizer: Path | None) -> preprocessing.Tokens | None:
    source = manifest.identity["settings"]["source"]
    if source.get("type") not in preprocessing.TEXT_SOURCES:
        return None
    special = bool(source.get("special_tokens", False))
    made = make_tokenizer(tokenizer, special, source.get("end"))
    digest = preprocessing.tokenizer_digest(manifest)
    return preprocessing.Tokens(sha256=digest, special_tokens=special, end=made.end)
