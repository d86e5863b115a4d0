"""Tokenization of texts: by bytes, or by a tokenizer of the `tokenizers` library."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.core.suggest import did_you_mean
from shardline.data.sources.from_files import FileSource, batches
from shardline.data.sources.lines import TextFiles
from shardline.data.sources.source import Ragged, combine_digests, file_digests

BYTES = "bytes"
_BATCH_CHARS = 2**20  # encoded at a time: the library needs about 100 bytes for each token
_MOST_UINT16 = 2**16


class TokenSource(FileSource):
    """Base class of sources that tokenize texts.

    Args:
        tokenizer: `bytes`, or the path of a tokenizer.json.
        special_tokens: Whether to add the special tokens of the tokenizer's template.
        end: Token to append to each text, as text or number. For `bytes`, any text is allowed.
    """

    def __init__(
        self, *, tokenizer: str = BYTES, special_tokens: bool = False,
        end: str | int | None = None, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self._file = None if tokenizer == BYTES else Path(tokenizer)
        self._special_tokens, self._end = special_tokens, end

    @cached_property
    def tokenizer(self) -> "ByteTokenizer | FileTokenizer":
        """The tokenizer.

        Raises:
            DataError: The tokenizer file cannot be read, or lacks the end token.
        """
        return make_tokenizer(self._file, self._special_tokens, self._end)

    @cached_property
    def texts(self) -> TextFiles:
        """The files, as text split by bytes."""
        return TextFiles(self.files)

    @property
    def content_digest(self) -> str:
        """Digest of the files and the tokenizer file."""
        beside = [self._file] if self._file else []
        return combine_digests(file_digests([*self.files, *beside]))


def make_tokenizer(
    file: Path | None, special_tokens: bool, end: str | int | None
) -> "ByteTokenizer | FileTokenizer":
    """Return the tokenizer of a file, or a byte tokenizer without a file; see `TokenSource`.

    Raises:
        DataError: The file cannot be read, or lacks the end token.
    """
    if file is None:
        return ByteTokenizer(end)
    return FileTokenizer(file, special_tokens, end)


class ByteTokenizer:
    """A tokenizer whose tokens are the bytes of the text.

    Attributes:
        dtype: NumPy name of the smallest type for the tokens that is also allowed in batches.
        end: Tokens to append to each text.
    """

    dtype = "uint8"

    def __init__(self, end: str | int | None) -> None:
        self._end = bytes([end]) if isinstance(end, int) else (end or "").encode()
        self.end = tuple(self._end)

    def encode(self, texts: Sequence[str], where: Callable[[int], str]) -> Ragged:
        """Return the tokens of N texts."""
        pieces = [text.encode() + self._end for text in texts]
        values = np.frombuffer(b"".join(pieces), np.uint8)
        return Ragged(values=values, offsets=_offsets(pieces))


class FileTokenizer:
    """A tokenizer of the `tokenizers` library, with the attributes of `ByteTokenizer`."""

    def __init__(self, file: Path, special_tokens: bool, end: str | int | None) -> None:
        self._file, self._special_tokens = file, special_tokens
        self._tokenizer = _open(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        known: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.dtype = "uint16" if max(known.values(), default=0) < _MOST_UINT16 else "int32"
        if isinstance(end, str):
            end = self._number(end, known)
        elif end is not None and end not in known.values():
            raise DataError(
                f"source.end={end} is not a token of {file}; set source.end to a token or its number"
            )
        self.end = () if end is None else (end,)

    def _number(self, end: str, known: dict[str, int]) -> int:
        if end in known:
            return known[end]
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        listed = f"use one of {', '.join(added[:10])}" if added else "set the token's number"
        raise DataError(
            f"source.end={end} is not a token of {self._file}; {did_you_mean(end, added, otherwise=listed)}"
        )

    def encode(self, texts: Sequence[str], where: Callable[[int], str]) -> Ragged:
        """Return the tokens of N texts.

        Args:
            where: Function that describes the place of text i.

        Raises:
            DataError: A text cannot be encoded. The message names its place.
        """
        rows: list[np.ndarray] = []
        for batch in batches(texts, len, _BATCH_CHARS):
            for encoding in self._encode(batch, len(rows), where):
                rows.append(np.array([*encoding.ids, *self.end], dtype=self.dtype))
        values = np.concatenate([np.zeros(0, self.dtype), *rows])
        return Ragged(values=values, offsets=_offsets(rows))

    def _encode(
        self, batch: Sequence[str], first: int, where: Callable[[int], str]
    ) -> Sequence[Any]:
        special = self._special_tokens
        try:
            encoded: Sequence[Any] = self._tokenizer.encode_batch_fast(
                batch, add_special_tokens=special
            )
        except Exception as error:  # the library raises no more specific class
            if len(batch) > 1:
                return [self._encode([text], first + i, where)[0] for i, text in enumerate(batch)]
            raise DataError(
                f"{where(first)}: cannot be encoded by {self._file} ({error}), expected tokens for any text; "
                "add an unknown token to the tokenizer, or remove the text"
            ) from None
        return encoded


def _open(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise DataError(
            f"source.tokenizer={file} needs the package tokenizers, which is not installed; "
            "run pip install 'shardline[tokenizers]', or set source.tokenizer: bytes"
        ) from None
    try:
        return Library.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:
        raise DataError(
            f"source.tokenizer={file} cannot be read ({' '.join(str(error).split())[:200]}), expected a tokenizer.json "
            "of the tokenizers library; save it with Tokenizer.save, or with save_pretrained of a fast tokenizer"
        ) from None


def _offsets(rows: Iterable[Any]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)
