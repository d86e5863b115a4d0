"""Models of Hugging Face's transformers in a run table: their names, and the folders that they are made from."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from shardline.config.checks import SHIPPED_MODELS
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest

_PREFIX = "hf:AutoModelFor"
_NAMES = sorted(name for name in SHIPPED_MODELS if name.startswith(_PREFIX))
_CLASSES = {SHIPPED_MODELS[name]: name for name in _NAMES}
# what `from_pretrained` reads of a folder; tokenizers and texts beside it decide no weight
_READ = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
_FOLDERS = ("config", "pretrained")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SAVED = "expected a folder of the project as save_pretrained writes one"
_REFUSED = {
    "auto_map": "code of the model's own, which is never run; name a model_type that transformers has, and leave "
    "auto_map out",
    "quantization_config": "quantised weights, which are not trained; save the model without them",
    "transformers_weights": f"a name for its weights, which are read from {_WEIGHTS}; save the model there again",
}


def check_hub_model(model: str, where: str) -> None:
    """Refuse a head of transformers that Shardline has no training for.

    Args:
        model: the cell of the column `model`.

    Raises:
        ConfigError: it names such a head.
    """
    if model.startswith(_PREFIX) and model not in _NAMES:
        raise ConfigError(
            f"{where}={model} is a head that Shardline does not train, expected one of {', '.join(_NAMES)}; "
            f"{suggest(model, _NAMES)}, or write a LightningModule or a script around it"
        )


def keys_of_folders(model_class: str) -> tuple[str, ...]:
    """Return the keys of `model_args` whose folders `hub_files` looks into; none of another model."""
    return _FOLDERS if model_class in _CLASSES else ()


def hub_files(
    model_class: str, model_args: Mapping[str, Any], root: Path, where: str
) -> list[Path]:
    """Return the files of the folder that a model of transformers is made from; none of another model.

    Args:
        model_class: the resolved model.
        root: the project's folder.
        where: file and row, as messages begin.

    Raises:
        ConfigError: the value is a text and no folder that `check_folder` takes, such as a name on the Hub.
    """
    found: list[Path] = []
    for key in keys_of_folders(model_class):
        named = model_args.get(key)
        if not isinstance(named, str):
            continue
        folder, has_weights = root / named, key == "pretrained"
        check_folder(folder, f"{where}: model_args.{key}={named}", has_weights=has_weights)
        read = _READ if has_weights else _READ[:1]
        found += [path for pattern in read for path in sorted(folder.glob(pattern))]
    return found


def check_folder(folder: Path, where: str, *, has_weights: bool) -> None:
    """Refuse a folder whose model needs code, pickles or files that are not in it.

    Args:
        where: the key and its value, as messages begin.
        has_weights: whether the weights are read, and not `config.json` alone.

    Raises:
        ConfigError: a file is missing or damaged, or the weights are an adapter, quantised or pickled.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{where} has no config.json, {_SAVED}; nothing is downloaded, so save the model there first"
        )
    config = _read(folder / "config.json", where)
    for key, why in _REFUSED.items():
        if config.get(key):
            raise ConfigError(f"{where} has {key} in its config.json, {why}")
    if not has_weights:
        return
    if (folder / "adapter_config.json").exists():
        raise ConfigError(
            f"{where} has an adapter_config.json, {_SAVED} of a whole model; merge the adapter into its model, and "
            "save that"
        )
    if (folder / _WEIGHTS).is_file():
        return
    if not (folder / _INDEX).is_file():
        pickled = next((one.name for one in sorted(folder.glob("*.bin"))), "")
        why = "nothing is downloaded, so save the model there first"
        if pickled:
            why = f"nothing is unpickled, so save the model of {pickled} there again by a present transformers"
        raise ConfigError(f"{where} has no {_WEIGHTS}, {_SAVED}; {why}")
    _check_index(folder, where)


def _check_index(folder: Path, where: str) -> None:
    """Refuse an index of weights in other files than safetensors of the folder, which alone count in identities."""
    named = _read(folder / _INDEX, where).get("weight_map")
    files = sorted({str(one) for one in named.values()}) if isinstance(named, dict) else []
    for file in files or [""]:
        is_here = PurePath(file).name == file and file.endswith(".safetensors")
        if not is_here or not (folder / file).is_file():
            raise ConfigError(
                f"{where} has a {_INDEX} that names {file or 'no file'}, expected *.safetensors of the same folder; "
                "save the model there again"
            )


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{where} has a {path.name} that is no JSON object, {_SAVED}; save the model there again"
        )
    return found
