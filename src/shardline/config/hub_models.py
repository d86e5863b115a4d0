"""Models of Hugging Face's transformers in a run table: their names, and the folders that they are made from."""

from collections.abc import Mapping
from pathlib import Path
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


def hub_files(
    model_class: str, model_args: Mapping[str, Any], root: Path, where: str
) -> list[Path]:
    """Return the files of the folder that a model of transformers is made from; none of another model.

    Args:
        model_class: the resolved model.
        root: the project's folder.
        where: file and row, as messages begin.

    Raises:
        ConfigError: the value is a text and no folder with a `config.json`, such as a name on the Hub.
    """
    if model_class not in _CLASSES:
        return []
    found: list[Path] = []
    for key in _FOLDERS:
        named = model_args.get(key)
        if not isinstance(named, str):
            continue
        folder = root / named
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{where}: model_args.{key}={named} has no config.json, expected a folder of the project as "
                "save_pretrained writes one; nothing is downloaded, so save the model there first"
            )
        read = _READ if key == "pretrained" else _READ[:1]
        found += [path for pattern in read for path in sorted(folder.glob(pattern))]
    return found
