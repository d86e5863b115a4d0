"""Short Python program that predicts with an exported ONNX model, without Shardline and torch."""

from collections.abc import Sequence
from typing import Any

from shardline.results.export import DescribedStep, ExportConfig


def program(config: ExportConfig) -> list[str]:
    """Return the lines of the program.

    The program needs onnxruntime and NumPy, Pillow for images, and tokenizers for texts.

    Args:
        config: Content of the export's `config.json`.
    """
    raw = config["preprocessing"]["raw_input"]
    return {"image": _image, "text": _text, "numbers": _numbers, "arrays": _arrays}[raw](config)


def _run(config: ExportConfig, given: str) -> str:
    of = "" if len(config["outputs"]) > 1 else "[0]"
    return f'outputs = onnxruntime.InferenceSession("{config["file"]}").run(None, {given}){of}'


def _imports(config: ExportConfig, more: Sequence[str]) -> list[str]:
    modules = "json, sys" if _is_classifier(config) else "sys"
    return [f"import {modules}", "import numpy as np, onnxruntime", *more]


def _is_classifier(config: ExportConfig) -> bool:
    return config["outputs"][0]["meaning"].startswith("logits of the classes")


def _shown(config: ExportConfig) -> str:
    """Return the line that prints the prediction."""
    if _is_classifier(config):
        return 'print(json.load(open("config.json", encoding="utf-8"))["classes"][outputs[0].argmax()])'
    if config["outputs"][0]["meaning"].startswith("logits of each pixel"):
        return "print(outputs[0].argmax(axis=0))  # the class of each pixel"
    return "print(outputs)"


def _image(config: ExportConfig) -> list[str]:
    (given,) = config["inputs"]
    lines = _imports(config, ["from PIL import Image, ImageOps"])
    steps, is_file = config["preprocessing"]["steps"], _is_file(config)
    is_first = steps[-1:] and steps[-1]["step"] == "channels_first"
    shape = [n for n in given["shape"] if n != "batch"]
    mode = "L" if (shape[0] if is_first else shape[-1]) == 1 else "RGB"
    lines.append("image = Image.open(sys.argv[1])")
    if is_file and (drafted := _draft(steps, mode)):
        lines.append(drafted)
    lines.append(f'image = ImageOps.exif_transpose(image).convert("{mode}")')
    least: int | None = None  # smallest length of the shorter edge, if known
    for step in steps:
        made, least = _step(step, least)
        lines += made
    array = {
        (False, "RGB"): "np.asarray(image)[None]",
        (False, "L"): "np.asarray(image)[None, :, :, None]",
        (True, "RGB"): "np.asarray(image).transpose(2, 0, 1)[None]",
        (True, "L"): "np.asarray(image)[None, None]",
    }[bool(is_first), mode]
    return [*lines, _run(config, f"{{{given['name']!r}: {array}}}"), _shown(config)]


def _is_file(config: ExportConfig) -> bool:
    """Return whether rows contain image files; large files are decoded at a fraction of their size."""
    steps = config["preprocessing"]["steps"]
    column = config["preprocessing"]["columns"].get(config["inputs"][0]["name"], "")
    return column.startswith("bytes") or any(step["step"] in ("fit", "stretch") for step in steps)


def _draft(steps: Sequence[DescribedStep], mode: str) -> str:
    first = next((step for step in steps if step["step"] != "decode"), {"step": ""})
    if first["step"] in ("fit", "stretch"):
        edge = 2 * max(first["size"])
        return f'image.draft("{mode}", ({edge}, {edge}))'
    if first["step"] == "resize" and steps[0] is first:
        height, width = _pair(first["size"])
        return f'image.draft("{mode}", ({width}, {height}))'
    return 'image.draft("L", image.size)' if mode == "L" else ""


def _step(step: DescribedStep, least: int | None) -> tuple[list[str], int | None]:
    """Return the lines of a step, and the length of the shorter edge after it."""
    kind = step["step"]
    if kind in ("decode", "channels_first"):
        return [], least
    height, width = _pair(step["size"])
    short = min(height, width)
    if kind == "fit":
        return [
            f"image = ImageOps.fit(image, ({width}, {height}), Image.Resampling.BICUBIC)"
        ], short
    if kind == "stretch":
        return [f"image = image.resize(({width}, {height}), Image.Resampling.BICUBIC)"], short
    if kind == "resize":
        size = f"({width}, {height})"
        if isinstance(step["size"], int):
            size = f"[{short} * n // min(image.size) for n in image.size]"
        return [f"image = image.resize({size}, Image.Resampling.BILINEAR)"], short
    place = "round((n - m) / 2)"
    if least is None or least < max(height, width):  # zeros around a smaller image
        place = "(round((n - m) / 2) if n > m else (n - m + 1) // 2)"
    sizes = f"zip(image.size, ({width}, {height}))"
    return [f"image = image.crop([{place} + m * end for end in (0, 1) for n, m in {sizes}])"], short


def _pair(size: Any) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def _text(config: ExportConfig) -> list[str]:
    steps = {step["step"]: step for step in config["preprocessing"]["steps"]}
    name = next(iter(steps.values()))["column"]
    dtypes = {given["name"]: given["dtype"] for given in config["inputs"]}
    is_next = config["outputs"][0]["meaning"].startswith("logits of the token that follows")
    shown = _shown(config)
    if "tokenize" in steps:
        lines = _imports(config, ["from tokenizers import Tokenizer"])
        lines.append('tokenizer = Tokenizer.from_file("tokenizer.json")')
        lines.append("tokenizer.no_truncation(), tokenizer.no_padding()")
        special = steps["tokenize"]["special_tokens"]
        tokens = f"tokenizer.encode(sys.argv[1], add_special_tokens={special}).ids"
        shown = "print(tokenizer.decode([outputs[0, -1].argmax()]))" if is_next else shown
    else:
        lines, tokens = _imports(config, []), "list(sys.argv[1].encode())"
        shown = "print(bytes([outputs[0, -1].argmax()]))" if is_next else shown
    if "append" in steps and not is_next:  # the next token follows the text, not its end token
        tokens = f"{tokens} + {steps['append']['tokens']}"
    if "last" in steps:
        tokens = f"({tokens})[-{steps['last']['length']}:]"
    lines.append(f"tokens = {tokens}")
    row = "tokens"
    if "pad" in steps:
        row = f"tokens + [0] * ({steps['pad']['length']} - len(tokens))"
    given = [f'{name!r}: np.array([{row}], "{dtypes[name]}")']
    given += [
        f'{other!r}: np.array([len(tokens)], "{dtype}")'
        for other, dtype in dtypes.items()
        if other != name
    ]
    return [*lines, _run(config, f"{{{', '.join(given)}}}"), shown]


def _numbers(config: ExportConfig) -> list[str]:
    (given,) = config["inputs"]
    shape = ", ".join(str(1 if n == "batch" else n) for n in given["shape"])
    return [
        *_imports(config, []),
        f'row = np.array(sys.argv[1].split(","), "float64").astype("{given["dtype"]}").reshape({shape})',
        _run(config, f"{{{given['name']!r}: row}}"),
        _shown(config),
    ]


def _arrays(config: ExportConfig) -> list[str]:
    return [
        *_imports(config, []),
        "rows = dict(np.load(sys.argv[1]))  # an .npz file with an array of each input",
        _run(config, "rows"),
        _shown(config),
    ]
