"""A tokenizer.json, read without the library `tokenizers`: how many tokens it has, and what they spell.

Reading a config must not import the library, and an evaluation's environment need not have it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from shardline.core.errors import DataError

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
    """The tokens of a tokenizer.json.

    Args:
        path: the file.

    Attributes:
        num_tokens: one more than the largest token.

    Raises:
        DataError: the file cannot be read, or has another form.
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
        """Return what tokens spell, for a reader; bytes that are no UTF-8 as U+FFFD, unknown tokens by number."""
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
    """Return a file's tokens, parsed once while it stays as it is."""
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
    """Return the byte that each character of a byte-level token stands for (openai/gpt-2, `bytes_to_unicode`)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    found = {chr(byte): bytes([byte]) for byte in shown}
    return found | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(hidden)}
