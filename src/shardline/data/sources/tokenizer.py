"""Texts as tokens: their bytes, or those of a tokenizer of the `tokenizers` library."""

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
_BATCH_CHARS = 2**20  # of texts encoded at a time: the library needs some 100 bytes for each token
_MOST_UINT16 = 2**16


class TokenSource(FileSource):
    """A source that makes tokens of texts.

    Args:
        tokenizer: `bytes`, or the path of a tokenizer.json.
        special_tokens: whether the tokenizer adds those of its template, such as a begin token.
        end: token behind each text: a text that is one token, or for bytes any text; or a number.
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
        """What makes the tokens.

        Raises:
            DataError: the tokenizer's file cannot be read, or has no such end token.
        """
        return make_tokenizer(self._file, self._special_tokens, self._end)

    @cached_property
    def texts(self) -> TextFiles:
        """The files, cut by their bytes."""
        return TextFiles(self.files)

    @property
    def content_digest(self) -> str:
        """One digest of the files and, behind them, the tokenizer's."""
        beside = [self._file] if self._file else []
        return combine_digests(file_digests([*self.files, *beside]))


def make_tokenizer(
    file: Path | None, special_tokens: bool, end: str | int | None
) -> "ByteTokenizer | FileTokenizer":
    """Return what makes tokens: bytes without a file; see `TokenSource`.

    Raises:
        DataError: the file cannot be read, or has no such end token.
    """
    if file is None:
        return ByteTokenizer(end)
    return FileTokenizer(file, special_tokens, end)


class ByteTokenizer:
    """The bytes of texts, as tokens.

    Attributes:
        dtype: NumPy name of the smallest type that holds all tokens and that batches have.
        end: tokens behind each text.
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
    """A tokenizer of the `tokenizers` library; attributes as of `ByteTokenizer`."""

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
                f"source.end={end} is no token of {file}; give a token of it, or its number"
            )
        self.end = () if end is None else (end,)

    def _number(self, end: str, known: dict[str, int]) -> int:
        if end in known:
            return known[end]
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        listed = f"its special tokens are {', '.join(added[:10])}" if added else "give its number"
        raise DataError(
            f"source.end={end} is no token of {self._file}; {did_you_mean(end, added, otherwise=listed)}"
        )

    def encode(self, texts: Sequence[str], where: Callable[[int], str]) -> Ragged:
        """Return the tokens of N texts.

        Args:
            where: describes the place of text i.

        Raises:
            DataError: a text cannot be encoded; names where it stands.
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
        except Exception as error:  # the library has no class of its own for them
            if len(batch) > 1:
                return [self._encode([text], first + i, where)[0] for i, text in enumerate(batch)]
            raise DataError(
                f"{where(first)}: cannot be encoded by {self._file} ({error}), expected tokens for any text; "
                "give the tokenizer an unknown token, or take the text out"
            ) from None
        return encoded


def _open(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise DataError(
            f"source.tokenizer={file} needs the package tokenizers, which is not installed; "
            "pip install 'shardline[tokenizers]', or use tokenizer: bytes"
        ) from None
    try:
        return Library.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:
        raise DataError(
            f"source.tokenizer={file} cannot be read ({' '.join(str(error).split())[:200]}), expected a tokenizer.json "
            "of the tokenizers library; save it with Tokenizer.save, or save_pretrained of a fast tokenizer"
        ) from None


def _offsets(rows: Iterable[Any]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)
