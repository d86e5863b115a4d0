"""A folder per class with JPEG or PNG images in it, brought to one shape."""

import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from shardline.core.errors import DataError
from shardline.data.sources.base import Schema, Table, shard_range
from shardline.data.sources.from_files import FileSource, text_id

_BLOCK_BYTES = 64 * 2**20  # features of one table
_NO_IMAGE = (
    OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error, Image.DecompressionBombError,
)  # fmt: skip
_DEEP = ("I", "F")  # 16 or 32 bits a channel, which a conversion to 8 bits would clip


class ImageFolder(FileSource):
    """Images whose folder's name is their class.

    Features are uint8, [3, H, W] for `RGB` and [1, H, W] for `L`. Files are taken
    in the order of their names' hashes, so each shard is a random sample of the
    classes. A photograph is turned upright by its EXIF orientation.

    Args:
        size: (height, width) in pixels.
        mode: `RGB`, or `L` for grey.
        fit: `crop` scales the image until it covers the shape and cuts off what
            stands over, equally on both sides; `stretch` changes its proportions.
        classes: names of the folders in label order; left out, all in alphabetical order.
        decode_threads: images decoded at a time; 0 takes one thread per core.
    """

    def __init__(
        self, *, size: Sequence[int], mode: Literal["RGB", "L"] = "RGB",
        fit: Literal["crop", "stretch"] = "crop", classes: Sequence[str | int] = (),
        decode_threads: int = 0, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.height, self.width = size
        self.mode, self.fit = mode, fit
        self._classes = tuple(map(str, classes))
        self.decode_threads = decode_threads or len(os.sched_getaffinity(0))

    @cached_property
    def schema(self) -> Schema:
        """Images [channels, height, width] uint8."""
        folders = {path.parent.name for path in self.files}
        if not self._classes and len(folders) < 2:
            raise DataError(
                f"{self.files[0]}: all images lie in one folder, {self.files[0].parent.name}, expected a folder "
                "per class; list those in source.files"
            )
        return Schema(
            feature_shape=(len(self.mode), self.height, self.width),
            feature_dtype="uint8",
            classes=self._classes or tuple(sorted(folders)),
        )

    @cached_property
    def _order(self) -> list[tuple[int, int]]:
        """Id and place in `files` of every image, in the order of the ids."""
        return sorted((text_id(name), place) for place, name in enumerate(self.names))

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's images in blocks of at most 64 MiB."""
        self.skipped.pop(shard, None)
        rows = shard_range(len(self._order), shard, self.num_shards)
        step = max(1, _BLOCK_BYTES // (len(self.mode) * self.height * self.width))
        with ThreadPoolExecutor(self.decode_threads) as pool:
            for first in range(rows.start, rows.stop, step):
                block = self._order[first : min(first + step, rows.stop)]
                images = pool.map(self._decode, (self.files[place] for _, place in block))
                if table := self._table(shard, block, list(images)):
                    yield table

    def _table(
        self, shard: int, block: Sequence[tuple[int, int]], images: Sequence[np.ndarray | str]
    ) -> Table | None:
        kept = []
        for (row_id, place), image in zip(block, images, strict=True):
            if isinstance(image, str):
                self.leave_out(shard, f"{self.files[place]}: {image}")
            else:
                kept.append((row_id, self._label(place), place, image))
        if not kept:
            return None
        ids = np.array([row[0] for row in kept], dtype=np.int64)
        splits = [self.splits_of_file(row[2], ids[i : i + 1]) for i, row in enumerate(kept)]
        return Table(
            ids=ids,
            features=np.stack([row[3] for row in kept]),
            labels=np.array([row[1] for row in kept], dtype=np.int64),
            splits=None
            if splits[0] is None
            else np.concatenate([s for s in splits if s is not None]),
        )

    def _label(self, place: int) -> int:
        folder = self.files[place].parent.name
        if folder not in self.schema.classes:
            raise DataError(
                f"{self.files[place]}: its folder {folder} is not among source.classes "
                f"({', '.join(self.schema.classes)}); add it there, or leave its files out"
            )
        return self.schema.classes.index(folder)

    def _decode(self, path: Path) -> np.ndarray | str:
        """Return an image [C, H, W] uint8, or in words why there is none."""
        try:
            with Image.open(path) as image:
                if image.mode.startswith(_DEEP):
                    return f"has more than 8 bits a channel (mode {image.mode}), expected 8; convert it"
                # a JPEG is decoded at a fraction of its size, where that is still twice ours
                image.draft(self.mode, (2 * max(self.height, self.width),) * 2)
                pixels = np.asarray(self._shape(ImageOps.exif_transpose(image).convert(self.mode)))
        except _NO_IMAGE as error:
            reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
            if path.exists() and not path.stat().st_size:
                reason = "empty file"
            return f"does not decode ({reason}), expected a JPEG or PNG image"
        return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _shape(self, image: Image.Image) -> Image.Image:
        size = (self.width, self.height)
        if self.fit == "crop":
            return ImageOps.fit(image, size, Image.Resampling.BICUBIC)
        return image.resize(size, Image.Resampling.BICUBIC)
