"""Read named weights from files: safetensors, PyTorch, checkpoints of a training, and folders of transformers.

Nothing is unpickled: files of PyTorch are read with `weights_only=True`.
"""

import json
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from shardline.checkpoints.weights import plain_name
from shardline.core.errors import DataError

Tensors = dict[str, torch.Tensor]

_PICKLED = (".pt", ".pth", ".ckpt", ".bin")
_KNOWN = (".safetensors", *_PICKLED)
# the weights in a folder of transformers: a file, or an index that lists several files
_OF_FOLDER = ("model.safetensors", "model.safetensors.index.json")
_AVERAGES = re.compile(r"(^|[._-])(ema|averag\w*|swa|shadow\w*|n_averaged)([._-]|$)", re.IGNORECASE)
_REPLACED = (
    "current_model_state"  # where Lightning's WeightAveraging keeps the weights that are no average
)
STATE_DICTS = ("state_dict", _REPLACED)  # keys of weights in a checkpoint of Lightning
_WRAPPERS = ("module.", "_orig_mod.")
# names that quantised weights have beside them, by the program that writes them
_QUANTISED = {
    "bitsandbytes": re.compile(r"\.(SCB|absmax|quant_map|nested_absmax|quant_state\.\S+)$"),
    "GPTQ or AWQ": re.compile(r"\.(qweight|qzeros|g_idx)$"),
    "FP8": re.compile(r"\.weight_scale(_inv)?$"),
}
# errors of safetensors and torch for damaged files
_DAMAGED = (SafetensorError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError)  # fmt: skip
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """Weights in a file or folder.

    Attributes:
        tensors: Tensors by name, without prefixes of wrappers. They may lie in mapped memory.
        understood: What was read, as parts of a sentence.
    """

    tensors: Tensors
    understood: list[str] = field(default_factory=list)


def read_weights(path: Path, *, part: str = "", where: str = "") -> FoundWeights:
    """Read weights by name.

    Args:
        path: File of weights, or a folder of transformers.
        part: Key of the weights in a file that has several; empty if it has one.
        where: Start of messages.

    Raises:
        DataError: The file is missing, is damaged, contains other objects than tensors and plain values, is quantised,
            or has several parts.
    """
    start = f"{where} " if where else ""
    if path.is_dir():
        return _strip(_of_folder(path, start), [])
    content = _load(path, start)
    return take_part(content, part=part, what=f"{start}{path}")


def take_part(content: Any, *, part: str, what: str) -> FoundWeights:
    """Return the weights in the content of a checkpoint.

    Args:
        content: What was loaded: tensors by name, or a table of which a value is such.
        part: Key of the weights; empty if there is one.
        what: Start of messages, with the file.

    Raises:
        DataError: There are no weights, or several of which `part` names none; or they are quantised.
    """
    understood: list[str] = []
    if not _is_weights(content) or part:
        parts = _parts(content) if isinstance(content, Mapping) else {}
        if not parts and not part:
            raise DataError(
                f"{what} has no tensors by name ({_described(content)}), expected a state_dict; save "
                "model.state_dict(), or a table that contains it"
            )
        if part not in parts and (part or len(parts) > 1):
            listed = ", ".join(_with_kind(key, parts) for key in parts)
            found = f"has no part {part}" if part else "has several sets of weights"
            raise DataError(
                f"{what} {found}, expected one of: {listed or 'none'}; set init.part to the set to load"
            )
        chosen = part or next(iter(parts))
        understood.append(f"its {_with_kind(chosen, parts)}")
        content = parts[chosen]
    tensors = {name: one for name, one in content.items() if isinstance(one, torch.Tensor)}
    if others := [name for name in content if name not in tensors]:
        understood.append(f"without {_few(others)}, which is no tensor")
    check_quantised(tensors, what)
    return _strip(tensors, understood)


def check_quantised(tensors: Mapping[str, torch.Tensor], what: str) -> None:
    """Reject quantised weights, since their values mean something only with their scales.

    Raises:
        DataError: The message names the program and the tensors.
    """
    for program, pattern in _QUANTISED.items():
        if found := [name for name in tensors if pattern.search(name)]:
            raise DataError(
                f"{what} has weights that {program} has quantised ({_few(found)}), expected floating-point numbers; "
                "save the model dequantised, or name the weights that it was quantised from"
            )


def averages_in(names: Iterable[str]) -> list[str]:
    """Return the names that are of averages of weights, such as `model_ema.weight`."""
    return [name for name in names if _AVERAGES.search(name)]


def _strip(tensors: Tensors, understood: list[str]) -> FoundWeights:
    """Remove the prefixes of DataParallel, DDP, averages and compiled modules."""
    prefixes: list[str] = []
    if tensors.pop("n_averaged", None) is not None:
        understood.append("averages of torch's AveragedModel")
    while tensors and (
        found := [one for one in _WRAPPERS if all(name.startswith(one) for name in tensors)]
    ):
        prefixes += found
        tensors = {name.removeprefix(found[0]): one for name, one in tensors.items()}
    plain = {plain_name(name): one for name, one in tensors.items()}
    if plain.keys() != tensors.keys() and "_orig_mod." not in prefixes:
        prefixes.append("_orig_mod.")
    if prefixes:
        understood.append(f"names without {' and '.join(prefixes)}")
    return FoundWeights(tensors=plain, understood=understood)


def _load(path: Path, start: str) -> Any:
    """Return the content of a file of weights."""
    if path.suffix not in _KNOWN:
        raise DataError(
            f"{start}{path} is no file of weights that is known by its ending, expected {', '.join(_KNOWN)}; save the "
            "weights as safetensors"
        )
    if path.suffix == ".safetensors":
        return _guarded(lambda: dict(sorted(load_file(path).items())), path, start)
    return _guarded(lambda: _unpickled(path), path, start)


def _unpickled(path: Path) -> Any:
    # only the newer format can be mapped
    is_mapped = zipfile.is_zipfile(path)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)


def _guarded(load: Callable[[], Any], path: Path, start: str) -> Any:
    """Load a file, and report each error as one sentence."""
    try:
        return load()
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        named = f" ({found[1]})" if found else ""
        raise DataError(
            f"{start}{path} contains Python objects{named}, which could run code when loaded, expected tensors and "
            "plain values; load the file where you trust it, and save its state_dict as safetensors"
        ) from None
    except OSError as error:
        raise DataError(
            f"{start}{path} cannot be read ({error.strerror or error}); correct the path, or the file's permissions"
        ) from None
    except _DAMAGED as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(
            f"{start}{path} is no complete file of weights ({line.rstrip('.')}); copy or save the file again"
        ) from None


def _of_folder(folder: Path, start: str) -> Tensors:
    """Return the weights of a folder of transformers."""
    what = f"{start}{folder}"
    name = next((one for one in _OF_FOLDER if (folder / one).is_file()), None)
    if name is None:
        raise DataError(
            f"{what} has none of {', '.join(_OF_FOLDER)}; write the folder with save_pretrained"
        )
    _check_config(folder / "config.json", what)
    names = _indexed(folder / name, start) if name.endswith(".json") else [name]
    tensors: Tensors = {}
    for one in names:
        content = _load(folder / one, start)
        if not _is_weights(content):
            raise DataError(
                f"{what}/{one} has no tensors by name ({_described(content)}); save the folder again"
            )
        tensors |= content
    check_quantised(tensors, what)
    return tensors


def _indexed(index: Path, start: str) -> list[str]:
    try:
        files = {str(file) for file in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{start}{index} is no index of weights, expected a weight_map; save the folder again"
        ) from None
    if outside := sorted(one for one in files if Path(one).name != one):
        raise DataError(
            f"{start}{index} names {outside[0]}, which is outside of its folder; save the folder again"
        )
    return sorted(files)


def _check_config(path: Path, what: str) -> None:
    """Reject a folder whose config says that its weights are quantised."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return  # the weights are enough
    quantised = config.get("quantization_config") if isinstance(config, dict) else None
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else ""
        raise DataError(
            f"{what} has quantised weights (quant_method={method} in config.json), expected floating-point numbers; "
            "name the folder that it was quantised from"
        )


def _is_weights(content: Any) -> bool:
    """Return whether the content is tensors by name, beside which a module may keep other state."""
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        return False
    tensors = [name for name, one in content.items() if isinstance(one, torch.Tensor)]
    others = [name for name in content if name not in tensors]
    return bool(tensors) and all(name.rpartition(".")[2] == "_extra_state" for name in others)


def _parts(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the sets of weights in a checkpoint, by key."""
    found = {str(key): one for key, one in content.items() if _is_weights(one)}
    if "pytorch-lightning_version" not in content:
        return found
    # callbacks and Shardline keep tensors under other keys
    return {key: one for key, one in found.items() if key in STATE_DICTS or _AVERAGES.search(key)}


def _with_kind(key: str, parts: Mapping[str, Any]) -> str:
    is_average = key == "state_dict" if _REPLACED in parts else bool(_AVERAGES.search(key))
    return f"{key} (averages of weights)" if is_average else key


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"keys {_few(map(str, content))}" if content else "no keys"
    return f"a {type(content).__name__}"


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def is_lazy(value: object) -> bool:
    """Return whether a parameter of a lazy module has no shape yet."""
    return isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer)
