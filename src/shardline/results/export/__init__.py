"""Sealed models for others to use: in a format of theirs, with a card, checked against the original."""

from typing import Any, Literal, NotRequired, TypedDict

# format to the file of the model
FORMATS = {
    "onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors",
    "huggingface": "model.safetensors",
}  # fmt: skip
DESCRIPTION = {"huggingface": "shardline.json"}  # whose config.json is that of transformers


class Array(TypedDict):
    """An input or an output in `config.json`; a dimension of the shape is a number or a name."""

    name: str
    dtype: str
    shape: list[int | str]


class Output(Array):
    """An output, and what its numbers are."""

    meaning: str


# one step before the model: `step`, what it `does`, and its own arguments
DescribedStep = dict[str, Any]


class Preprocessing(TypedDict):
    """What leads from raw input to what the model takes; see `preprocessing.describe`."""

    raw_input: Literal["image", "text", "numbers", "arrays"]
    reads: str
    source: dict[str, object]
    columns: dict[str, str]
    steps: list[DescribedStep]
    inside_the_model: list[DescribedStep]


class ExportConfig(TypedDict):
    """What `config.json` has of an exported model; see `description.describe`."""

    format: str
    file: str
    model_class: str
    model_args: dict[str, object]
    call: Literal["one dict", "positional"]
    inputs: list[Array]
    outputs: list[Output]
    fixed_length: list[str]
    task: str
    classes: list[Any] | None
    normalization: dict[Literal["mode", "where"], str]
    preprocessing: Preprocessing
    identity: NotRequired[str]
    dataset: NotRequired[str]
    check: NotRequired[dict[str, object]]
    sha256: NotRequired[dict[str, str]]
    run: NotRequired[str]
