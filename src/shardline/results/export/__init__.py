"""Export of sealed models to other formats, with a model card and a check against the original."""

from typing import Any, Literal, NotRequired, TypedDict

# file of the model, by format
FORMATS = {
    "onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors",
    "huggingface": "model.safetensors",
}  # fmt: skip
DESCRIPTION = {"huggingface": "shardline.json"}  # there, config.json is that of transformers


class Array(TypedDict):
    """An input or an output in `config.json`; a dimension of the shape is a number or a name."""

    name: str
    dtype: str
    shape: list[int | str]


class Output(Array):
    """An output with the meaning of its numbers."""

    meaning: str


# a step before the model: its name (`step`), its effect (`does`) and its arguments
DescribedStep = dict[str, Any]


class Preprocessing(TypedDict):
    """Steps from raw input to the inputs of the model; see `preprocessing.describe`."""

    raw_input: Literal["image", "text", "numbers", "arrays"]
    reads: str
    source: dict[str, object]
    columns: dict[str, str]
    steps: list[DescribedStep]
    inside_the_model: list[DescribedStep]


class ExportConfig(TypedDict):
    """Content of `config.json` of an exported model; see `description.describe`."""

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
