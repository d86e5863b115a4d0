"""Source of JPEG and PNG images in one folder per class. Images are resized, or kept as files."""

import io
import json
import os
import struct
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from shardline.core.errors import DataError
from shardline.core.found_files import BARREN, content_of
from shardline.data.sources.from_files import FileSource, text_id
from shardline.data.sources.source import Schema, Table, shard_range

_BLOCK_BYTES = 64 * 2**20  # features of one table
_NO_IMAGE = (
    OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error, Image.DecompressionBombError,
)  # fmt: skip
_KEPT = ("JPEG", "PNG")  # formats that are decoded at read time
_DEEP = ("I", "F")  # 16 or 32 bits a channel, which a conversion to 8 bits would clip
_SPLITS = {
    "train", "training", "val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing",
}  # fmt: skip
_SHOWN = 5

Found = TypeVar("Found")


class ImageFolder(FileSource):
    """Images with the name of their folder as class.

    Features are uint8, [3, H, W] for `RGB` and [1, H, W] for `L`. Files are ordered by the
    hashes of their names, so each shard is a random sample of the classes. Images are
    turned upright by their EXIF orientation.

    With `decode="at_read"`, the column `image` has the bytes of the file, which are decoded
    when the dataset is read. The build decodes each image once to find damaged files.

    Args:
        size: (height, width) in pixels of images that are decoded when the dataset is built.
        mode: `RGB`, or `L` for grey.
        fit: `crop` scales the image until it covers the size and cuts off the rest equally on
            both sides. `stretch` changes its proportions.
        classes: Folder names in label order. The nearest of these folders above an image is its class. Default:
            all folders with images, in alphabetical order.
        decode: `at_build`, or `at_read` to keep the bytes of the files.
        decode_threads: Number of images to decode at a time; 0 for one thread per core.
    """

    def __init__(
        self, *, size: Sequence[int] = (), mode: Literal["RGB", "L"] = "RGB",
        fit: Literal["crop", "stretch"] = "crop", classes: Sequence[str | int] = (),
        decode: Literal["at_build", "at_read"] = "at_build", decode_threads: int = 0, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.decode = decode
        self.height, self.width = size or (0, 0)
        self.mode, self.fit = mode, fit
        self._classes = tuple(map(str, classes))
        self.decode_threads = decode_threads or len(os.sched_getaffinity(0))

    @cached_property
    def schema(self) -> Schema:
        """Schema: images [channels, height, width] uint8, or columns `image` and `labels` for `at_read`."""
        classes = self._classes or self._inferred_classes()
        if self.decode == "at_read":
            return Schema(columns={"image": "bytes", "labels": "int64"}, classes=classes)
        shape = (len(self.mode), self.height, self.width)
        return Schema(feature_shape=shape, feature_dtype="uint8", classes=classes)

    def _inferred_classes(self) -> tuple[str, ...]:
        folders = {path.parent for path in self.files}
        classes = tuple(sorted({folder.name for folder in folders}))
        if not self.labels_optional:
            _check_folders(folders, has_splits="files" in self.splits)
        if len(classes) < 2:
            raise DataError(
                f"{self.files[0]}: all images are in one folder, {self.files[0].parent.name}, expected a folder "
                "per class; list the folders of all classes in source.files"
            )
        if not self.labels_optional and (barren := self.not_read.get(BARREN)):
            more = f" (like {barren['count'] - 1} more)" if barren["count"] > 1 else ""
            raise DataError(
                f"{barren['first'][0]}: the folder has no JPEG or PNG image{more}, expected images in the folder "
                "of each class; convert its files, move the folder elsewhere, or list the folders to use in "
                "source.classes"
            )
        return classes

    @property
    def inferred(self) -> dict[str, Any]:
        """Classes inferred from folders, and their numbers of images."""
        if self._classes:
            return {}
        counts = Counter(path.parent.name for path in self.files)
        return {"classes, by folders": {name: f"{counts[name]:,}" for name in self.schema.classes}}

    @cached_property
    def _order(self) -> list[tuple[int, int]]:
        """Id and index in `files` of every image, sorted by id."""
        return sorted((text_id(name), place) for place, name in enumerate(self.names))

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the images of a shard in blocks of at most 64 MiB."""
        self.skipped.pop(shard, None)
        read = self._checked_bytes if self.decode == "at_read" else self._decode
        with ThreadPoolExecutor(self.decode_threads) as pool:
            for block in self._blocks(shard):
                images = pool.map(read, (self.files[place] for _, place in block))
                if table := self._table(shard, block, list(images)):
                    yield table

    def _blocks(self, shard: int) -> Iterator[list[tuple[int, int]]]:
        """Yield blocks of a shard's images as (id, index), of up to 64 MiB or one larger image."""
        rows = shard_range(len(self._order), shard, self.num_shards)
        block: list[tuple[int, int]] = []
        filled = 0
        for row in self._order[rows.start : rows.stop]:
            size = self._num_bytes(self.files[row[1]])
            if block and filled + size > _BLOCK_BYTES:
                yield block
                block, filled = [], 0
            block.append(row)
            filled += size
        if block:
            yield block

    def _num_bytes(self, file: Path) -> int:
        if self.decode == "at_read":
            return file.stat().st_size
        return len(self.mode) * self.height * self.width

    def _table(
        self,
        shard: int,
        block: Sequence[tuple[int, int]],
        images: Sequence[np.ndarray | bytes | str],
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
        found = [self.splits_of_file(row[2], ids[i : i + 1]) for i, row in enumerate(kept)]
        splits = [split for split in found if split is not None]
        labels = np.array([row[1] for row in kept], dtype=np.int64)
        content = [row[3] for row in kept]
        given: dict[str, Any] = {"columns": {"image": content, "labels": labels}}
        if self.decode == "at_build":
            given = {"features": np.stack(content), "labels": labels}
        return Table(ids=ids, splits=np.concatenate(splits) if splits else None, **given)

    @property
    def has_labels(self) -> bool:
        """Whether each image is in the folder of a class."""
        return {path.parent.name for path in self.files} <= {*self.schema.classes}

    def _label(self, place: int) -> int:
        folder = self.files[place].parent.name
        if folder not in self.schema.classes and not self.labels_optional:
            above = reversed(PurePath(self.names[place]).parts[:-1])
            folder = next((name for name in above if name in self.schema.classes), folder)
        if folder not in self.schema.classes:
            if self.labels_optional:
                return 0
            raise DataError(
                f"{self.files[place]}: its folder {folder} is not in source.classes "
                f"({', '.join(self.schema.classes)}); add the folder there, or remove it from source.files"
            )
        return self.schema.classes.index(folder)

    def _decode(self, path: Path) -> np.ndarray | str:
        """Return an image [C, H, W] uint8, or a text with the error."""

        def pixels(image: Image.Image) -> np.ndarray:
            # a JPEG is decoded at a fraction of its size that is at least twice the target size
            image.draft(self.mode, (2 * max(self.height, self.width),) * 2)
            return np.asarray(self._shape(ImageOps.exif_transpose(image).convert(self.mode)))

        found = _try_image(path, path, pixels)
        if isinstance(found, str):
            return found
        return found[None] if found.ndim == 2 else np.ascontiguousarray(found.transpose(2, 0, 1))

    def _checked_bytes(self, path: Path) -> bytes | str:
        """Return the bytes of a JPEG or PNG file that can be decoded, or a text with the error."""
        try:
            content = path.read_bytes()
        except OSError as error:
            return f"cannot be read ({error.strerror}), expected a JPEG or PNG image"

        def load(image: Image.Image) -> bytes:
            image.draft("L", (1, 1))  # reads the whole JPEG, but decodes at an eighth of its size
            image.load()
            return content

        return _try_image(path, io.BytesIO(content), load, formats=_KEPT)

    def _shape(self, image: Image.Image) -> Image.Image:
        size = (self.width, self.height)
        if self.fit == "crop":
            return ImageOps.fit(image, size, Image.Resampling.BICUBIC)
        return image.resize(size, Image.Resampling.BICUBIC)


def _try_image(
    path: Path, file: Path | io.BytesIO, use: Callable[[Image.Image], Found], **options: Any
) -> Found | str:
    """Open an image and return the result of `use`, or a text with the error."""
    try:
        with Image.open(file, **options) as image:
            if image.mode.startswith(_DEEP):
                return f"has more than 8 bits a channel (mode {image.mode}), expected 8; convert it"
            return use(image)
    except _NO_IMAGE as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        if isinstance(error, UnidentifiedImageError) and options:
            reason = "not a JPEG or PNG image"
        if path.exists():
            with path.open("rb") as opened:
                head = opened.read(64)
            reason = (content_of(head) or reason) if head else "empty file"
        return f"does not decode ({reason}), expected a JPEG or PNG image"


def _check_folders(folders: Set[Path], *, has_splits: bool) -> None:
    """Reject nested folders for which the class of an image is ambiguous.

    Args:
        folders: Folders with images.
        has_splits: Whether the folders above are splits.

    Raises:
        DataError: A folder is in another one, or two have the same name. The message names both.
    """
    by_name: dict[str, Path] = {}
    outermost = [folder for folder in folders if not folders & {*folder.parents}]
    for folder in sorted(folders):
        if folder not in outermost:
            outer = next(above for above in folder.parents if above in folders)
            raise DataError(
                f"{folder}: images are in this folder and in {outer.name} above it, expected one folder per class; "
                f"list the classes in source.classes, such as [{_listed(outermost)}] or [{_listed(folders)}]"
            )
        twin = by_name.setdefault(folder.name, folder)
        of_splits = has_splits or {twin.parent.name.lower(), folder.parent.name.lower()} <= _SPLITS
        if twin is not folder and not of_splits:
            inner = f" or [{_listed(folders)}]" if by_name.keys() - {folder.name} else ""
            raise DataError(
                f"{folder}: a folder {folder.name} is in {twin.parent.name} as well, so either of the two folders "
                "above an image may be its class; list the classes in source.classes, such as "
                f"[{_listed(one.parent for one in folders)}]{inner}"
            )
    _check_names(by_name)


def _check_names(names: Iterable[str]) -> None:
    """Reject two names of classes that look alike.

    Raises:
        DataError: Names differ in spaces at an end or in their Unicode form only, as archives of macOS write it.
    """
    seen: dict[str, str] = {}
    for name in sorted(names):
        twin = seen.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if twin != name:
            raise DataError(
                f"folders {json.dumps(twin)} and {json.dumps(name)}: their names differ in spaces at an end or in "
                "their Unicode form only, expected one name per class; rename one of them"
            )


def _listed(folders: Iterable[Path]) -> str:
    names = sorted({folder.name for folder in folders})
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
