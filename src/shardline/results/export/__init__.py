"""Sealed models for others to use: in a format of theirs, with a card, checked against the original."""

# format to the file of the model
FORMATS = {
    "onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors",
    "huggingface": "model.safetensors",
}  # fmt: skip
DESCRIPTION = {"huggingface": "shardline.json"}  # whose config.json is that of transformers
