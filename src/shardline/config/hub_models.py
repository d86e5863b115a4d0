"""Models of the Hugging Face hub by name, and sizes that a tokenizer decides."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import msgspec

from shardline.config.code_paths import SHIPPED_MODELS
from shardline.config.settings import Plain
from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import suggest

_PREFIX = "hf:AutoModelFor"
_NAMES = sorted(name for name in SHIPPED_MODELS if name.startswith(_PREFIX))
_CLASSES = {SHIPPED_MODELS[name]: name for name in _NAMES}
# files that `from_pretrained` reads; tokenizers and texts do not affect weights
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
    """Reject a head of transformers that Shardline cannot train.

    Args:
        model: Cell of the column `model`.

    Raises:
        ConfigError: The model is such a head.
    """
    if model.startswith(_PREFIX) and model not in _NAMES:
        raise ConfigError(
            f"{where}={model} is a head that Shardline does not train, expected one of {', '.join(_NAMES)}; "
            f"{suggest(model, _NAMES)}, or write a LightningModule or a script around it"
        )


def keys_of_folders(model_class: str) -> tuple[str, ...]:
    """Return the keys of `model_args` with folders for `hub_files`; empty for other models."""
    return _FOLDERS if model_class in _CLASSES else ()


def hub_files(model_class: str, model_args: Plain, root: Path, where: str) -> list[Path]:
    """Return the files of the folder of a model of transformers; empty for other models.

    Args:
        model_class: Resolved model.
        root: Folder of the project.
        where: File and row, the start of messages.

    Raises:
        ConfigError: The value is not a valid folder, such as a name on the Hub.
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
    """Reject a folder whose model needs code, pickles or missing files.

    Args:
        where: Key and value, the start of messages.
        has_weights: Whether weights are read, not only `config.json`.

    Raises:
        ConfigError: A file is missing or damaged, or the weights are an adapter, quantised or pickled.
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
    """Reject an index with other files than safetensors in the folder, since no others count."""
    named = _read(folder / _INDEX, where).get("weight_map")
    files = sorted({str(one) for one in named.values()}) if isinstance(named, dict) else []
    for file in files or [""]:
        is_here = PurePath(file).name == file and file.endswith(".safetensors")
        if not is_here or not (folder / file).is_file():
            raise ConfigError(
                f"{where} has a {_INDEX} that names {file or 'no file'}, expected *.safetensors of the same folder; "
                "save the model there again"
            )


def _read(path: Path, where: str) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{where} has a {path.name} that is not a JSON object, {_SAVED}; save the model there again"
        )
    return found


_SPACE = "▁"  # U+2581: what SentencePiece writes for a space


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Form(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []
    decoder: dict[str, Any] | None = None


class TokenizerFile:
    """The tokens of a `tokenizer.json`.

    Args:
        path: Path of the file.

    Attributes:
        num_tokens: Largest token plus one.

    Raises:
        DataError: The file cannot be read, or has another form.
    """

    def __init__(self, path: Path) -> None:
        try:
            schema = msgspec.json.decode(path.read_bytes(), type=_Form)
        except (OSError, msgspec.MsgspecError) as error:
            raise DataError(
                f"source.tokenizer={path} cannot be read ({error}), expected a tokenizer.json of the tokenizers "
                "library; save it with Tokenizer.save, or save_pretrained of a fast tokenizer"
            ) from None
        vocab = schema.model.vocab
        listed = (
            vocab.items() if isinstance(vocab, dict) else ((n, i) for i, (n, _) in enumerate(vocab))
        )
        self._tokens = {number: name for name, number in listed}
        self._added = {one.id: one.content for one in schema.added_tokens}
        self._decoders = {one["type"]: one for one in _decoders(schema.decoder)}
        self.num_tokens = max((*self._tokens, *self._added), default=-1) + 1

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens for people: invalid UTF-8 as U+FFFD, unknown tokens by number."""
        parts = [self._spelled(number) for number in tokens]
        joiner = b"" if self._decoders else b" "
        return joiner.join(parts).decode(errors="replace")

    def _spelled(self, number: int) -> bytes:
        if number in self._added or number not in self._tokens:
            return self._added.get(number, f"<{number}>").encode()
        token, kinds = self._tokens[number], self._decoders
        if "ByteLevel" in kinds:
            known = _bytes_of_characters()
            return b"".join(known.get(one, one.encode(errors="replace")) for one in token)
        if "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x"):
            return bytes.fromhex(token[3:5])
        if "WordPiece" in kinds:
            prefix = kinds["WordPiece"].get("prefix", "##")
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        if "BPEDecoder" in kinds:
            token = token.replace(kinds["BPEDecoder"].get("suffix", "</w>"), " ")
        if {"Metaspace", "Replace"} & kinds.keys():
            token = token.replace(_SPACE, " ")
        return token.encode(errors="replace")


def open_tokenizer(path: Path) -> TokenizerFile:
    """Return the tokens of a file, parsed again only after a change of the file."""
    found = path.stat()
    return _opened(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _opened(path: Path, *_: int) -> TokenizerFile:
    return TokenizerFile(path)


def _decoders(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder:
        yield decoder
        for one in decoder.get("decoders", ()):
            yield from _decoders(one)


@lru_cache(maxsize=1)
def _bytes_of_characters() -> dict[str, bytes]:
    """Return the byte of each character of byte-level tokens (openai/gpt-2, `bytes_to_unicode`)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    found = {chr(byte): bytes([byte]) for byte in shown}
    return found | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(hidden)}
