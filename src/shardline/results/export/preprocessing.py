"""Description of the steps from raw input to the inputs of an exported model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardline.core.redaction import mask_values
from shardline.data.columns import columns_of
from shardline.records.base import encode
from shardline.records.datasets import DatasetSchema, Manifest
from shardline.records.preprocessing import Preprocessing as Fitted
from shardline.results.export import Array, DescribedStep, Preprocessing
from shardline.results.export.exported_steps import ExportStep, ExportSteps
from shardline_io.column_names import LENGTHS

TEXT_SOURCES = ("text", "jsonl")
_DOES = {
    "decode": "decode the image file, upright by its EXIF orientation, as uint8 [height, width, channels]",
    "resize": "resize by an antialiased bilinear filter, a number being the shorter edge; a JPEG that is at least "
    "twice as large is decoded at a fraction of its size",
    "center_crop": "cut out the middle, with zeros around where the image is smaller",
    "normalize": "(value / 255 - mean) / std, as float32 [channels, height, width]",
}
_READS = {
    "image": "an image file",
    "text": "a text",
    "numbers": "the features' numbers in the order of the source's columns, as the shards store them",
}


_READS_ROWS = (
    "numbers in the order below, NaN for a missing one; category_indices with the place of each category in its "
    "list below, counted from 1, and 0 for an unknown one"
)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokenization of a source.

    Attributes:
        sha256: SHA-256 of tokenizer.json; empty if tokens are UTF-8 bytes.
        special_tokens: Whether the tokenizer adds the special tokens of its template.
        end: Tokens after each text.
    """

    sha256: str = ""
    special_tokens: bool = False
    end: tuple[int, ...] = ()


def tokenizer_digest(manifest: Manifest) -> str:
    """Return the SHA-256 of the tokenizer.json that a dataset was built with, or an empty text."""
    found = {key.partition("/")[2]: of for key, of in manifest.identity["source"].items()}
    type_ = manifest.identity["settings"]["source"].get("type")
    return str(found.get("tokenizer", "")) if type_ in TEXT_SOURCES else ""


def describe(
    manifest: Manifest, steps: ExportSteps, shapes: Mapping[str, Array], *,
    is_table: bool, tokens: Tokens | None, pad_to: Mapping[str, int], context: int | None,
    is_inside: bool = False,
) -> Preprocessing:  # fmt: skip
    """Return the value of `preprocessing` in `config.json`.

    Args:
        manifest: Manifest of the dataset.
        steps: Steps before and inside the model.
        shapes: `dtype` and `shape` of each input, by name.
        is_table: Whether batches are features and labels.
        tokens: Tokenization of the source, or None.
        pad_to: Lengths to which `data.collate` pads rows, by column.
        context: Largest number of values per row that the model accepts, or None.
        is_inside: Whether the preprocessing of the table is inside the model.
    """
    source, columns = manifest.identity["settings"]["source"], manifest.schema.columns
    raw, before = _raw(source, manifest.schema, steps, shapes, is_table, tokens)
    if raw == "text":
        assert tokens is not None
        (name,) = (name for name in shapes if not name.endswith(LENGTHS))
        before = _text_steps(name, tokens, pad_to.get(name), context)
    described: Preprocessing = mask_values(
        {
            "raw_input": raw,
            "reads": _READS.get(raw) or _before_arrays(steps, source),
            "source": {key: value for key, value in source.items() if key != "files"},
            "columns": dict(columns)
            if columns
            else {name: str(one) for name, one in columns_of(manifest.schema).items()},
            "steps": before,
            "inside_the_model": [_described(step) for step in steps.inside],
        }
    )
    if fitted := manifest.preprocessing:
        described["inside_the_model" if is_inside else "steps"].insert(0, _of_table(fitted))
        described["reads"] = _READS_ROWS if is_inside else described["reads"]
    return described


def _raw(
    source: Mapping[str, Any], schema: DatasetSchema, steps: ExportSteps,
    shapes: Mapping[str, Array], is_table: bool, tokens: Tokens | None,
) -> tuple[str, list[DescribedStep]]:  # fmt: skip
    """Return the kind of raw input, and the steps from there to the inputs of the model."""
    described = [_described(step) for step in steps.before]
    names = [name for name in shapes if not name.endswith(LENGTHS)]
    if steps.collate or len(names) != 1 or any(not step.kind for step in steps.before):
        return "arrays", described
    name, kind = names[0], source.get("type")
    is_changed = any(step.column == name for step in steps.before)
    if tokens and name in _columns_of_tokens(source) and not is_changed:
        return "text", described
    if len(shapes) > 1:
        return "arrays", described
    column = columns_of(schema).get(name)
    if is_table and kind == "image_folder" and not steps.before:
        return "image", _folder_steps(source)
    is_pixels = shapes[name]["dtype"] == "uint8" and len(shapes[name]["shape"]) == 4
    if column and is_pixels and shapes[name]["shape"][-1] in (1, 3):
        is_array = column.kind == "array" and column.dtype == "uint8"
        if column.kind == "bytes" or (
            is_array and column.shape[-1:] == (shapes[name]["shape"][-1],)
        ):
            return "image", described
    return ("numbers" if is_table and not steps.before else "arrays"), described


def _columns_of_tokens(source: Mapping[str, Any]) -> list[str]:
    if source.get("type") == "text":
        return ["tokens"]
    return [*source.get("tokenize", {})]


def _described(step: ExportStep) -> DescribedStep:
    if not step.kind:
        return {"step": "own code", "class": step.type, "arguments": dict(step.arguments)}
    return {"step": step.kind, **step.arguments, "does": _DOES.get(step.kind, "")}


def _folder_steps(source: Mapping[str, Any]) -> list[DescribedStep]:
    does = {
        "crop": "scale by Pillow's bicubic filter until the image covers the size, and crop the rest",
        "stretch": "resize by Pillow's bicubic filter",
    }
    fit = source.get("fit", "crop")
    size, mode = [*source["size"]], source.get("mode", "RGB")
    return [
        {"step": "decode", "column": "features", "mode": mode, "does": _DOES["decode"]},
        {"step": "fit" if fit == "crop" else "stretch", "size": size, "does": does[fit]},
        {"step": "channels_first", "does": "as uint8 [channels, height, width]"},
    ]


def _text_steps(
    name: str, tokens: Tokens, pad_to: int | None, context: int | None
) -> list[DescribedStep]:
    if tokens.sha256:
        first: DescribedStep = {
            "step": "tokenize",
            "column": name,
            "file": "tokenizer.json",
            "sha256": tokens.sha256,
            "special_tokens": tokens.special_tokens,
            "does": "encode by the library tokenizers, without truncation and padding",
        }
    else:
        first = {"step": "bytes", "column": name, "does": "the text's UTF-8 bytes"}
    found = [first]
    if tokens.end:
        found.append({"step": "append", "tokens": [*tokens.end], "does": "the end of each text"})
    if context:
        found.append({"step": "last", "length": context, "does": "the model accepts no more"})
    if pad_to:
        found.append({"step": "pad", "length": pad_to, "does": "fill up with zeros"})
    return found


def _before_arrays(steps: ExportSteps, source: Mapping[str, Any]) -> str:
    """Return a text about the origin of the model's input arrays."""
    if steps.collate:
        return f"arrays as {steps.collate} (data.collate) gives them"
    own = [step.type for step in steps.before if not step.kind]
    if own:
        return f"arrays as {own[-1]} (data.eval_transform) and the steps behind it give them"
    return f"arrays as the columns of the source ({source.get('type', 'own class')}) have them, after the steps below"


def _of_table(fitted: Fitted) -> dict[str, Any]:
    """Return the step of a table's preprocessing."""
    return {
        "step": "preprocess",
        "numbers": [one.name for one in fitted.numbers],
        "categories": {one.column: one.values for one in fitted.categories},
        "fitted": encode(fitted),
        "does": "clip, fill, scale and encode as fitted on the train split",
    }
