"""IDX files and folders of images: every image once, as it was stored, and bad ones by name."""

import gzip
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardline.data.sources.source import combine_digests
from shardline.errors import ShardlineError
from tests.support.source_cases import load_dataset, make, read


def message(folder: Path, source: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(ShardlineError) as error:
        read(make(folder, source, **settings))
    text = str(error.value)
    assert "\n" not in text
    return text.replace(f"{folder}/", "")


# --- IDX ------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    """Write an array as http://yann.lecun.com/exdb/mnist describes it."""
    kinds = {"uint8": 0x08, "int16": 0x0B, "float32": 0x0D}
    head = struct.pack(">HBB", 0, kinds[array.dtype.name], array.ndim)
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return head + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def digits(rows: int, seed: int, dtype: str = "uint8") -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 255, (rows, 4, 3)).astype(dtype)
    return images, (np.arange(rows) % 10).astype(np.uint8)


def write_mnist(folder: Path, *, compress: bool = False, dtype: str = "uint8") -> dict[str, Any]:
    """Write 40 + 20 images in four files, named as MNIST's are."""
    (folder / "mnist").mkdir(exist_ok=True)
    for part, rows in (("train", 40), ("t10k", 20)):
        images, labels = digits(rows, rows, dtype)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / "mnist" / f"{part}-{name}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(idx(array)) if compress else idx(array))
    return {"type": "idx", "files": ["mnist/*"]}


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("dtype", "stored"), [("uint8", "uint8"), ("int16", "int32"), ("float32", "float32")]
)
@pytest.mark.parametrize("shards", [1, 7])
def test_idx_rows(compress: bool, dtype: str, stored: str, shards: int, tmp_path: Path) -> None:
    source = make(tmp_path, write_mnist(tmp_path, compress=compress, dtype=dtype), shards=shards)
    assert source.schema.feature_shape == (4, 3)
    assert source.schema.feature_dtype == stored
    assert source.schema.classes == tuple("0123456789")
    rows = read(source)
    expected = {
        image.tobytes(): label
        for n in (40, 20)
        for image, label in zip(*digits(n, n, dtype), strict=True)
    }
    found = dict(zip((f.astype(dtype).tobytes() for f in rows.features), rows.labels, strict=True))
    assert found == expected


def test_idx_split_by_file_with_a_share_of_train_to_validate(tmp_path: Path) -> None:
    splits = {"files": {"train": ["train-*"], "validation": 0.25, "test": ["t10k-*"]}}
    rows = read(make(tmp_path, write_mnist(tmp_path), splits=splits))
    assert rows.splits is not None
    assert rows.splits.count("test") == 20
    assert 3 < rows.splits.count("validation") < 20
    splits["files"] = {"train": ["train-*", "t10k-l*"], "validation": 0.25, "test": ["t10k-i*"]}
    assert re.fullmatch(
        "mnist/t10k-labels-idx1-ubyte: splits.files assigns it to train and its images to test; "
        "assign both files to the same split",
        message(tmp_path, write_mnist(tmp_path), splits=splits),
    )


def test_idx_pair_of_any_names_and_named_classes(tmp_path: Path) -> None:
    images, labels = digits(12, 0)
    (tmp_path / "pictures").write_bytes(idx(images))
    (tmp_path / "answers").write_bytes(idx(labels))
    classes = [f"class {n}" for n in range(10)]
    source = make(tmp_path, {"type": "idx", "files": ["answers", "pictures"], "classes": classes})
    assert source.schema.classes == tuple(classes)
    assert len(read(source).ids) == 12


TRAIN = "mnist/train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data + b"x", f"{TRAIN}: 481 bytes or more after its header, expected 480 for .*"),
        (lambda data: gzip.compress(data[:-1]), f"{TRAIN}: 479 bytes only after its header, expected 480 for .*"),
        (lambda data: idx(digits(40, 0)[0][:, :2]), f"{TRAIN}: images of [2, 3] u1, but t10k.* has [4, 3] u1; make .*"),
    ],
)  # fmt: skip
def test_bad_idx(change: Any, expected: str, tmp_path: Path) -> None:
    source = write_mnist(tmp_path)
    path = tmp_path / TRAIN
    path.write_bytes(change(path.read_bytes()))
    pattern = re.escape(expected).replace(r"\.\*", ".*")
    found = message(tmp_path, source)
    assert re.fullmatch(pattern, found), found


# --- folders of images ----------------------------------------------------------------------

COLOURS = {"daisy": (200, 20, 20), "rose": (20, 200, 20), "tulip": (20, 20, 200)}


def write_flowers(folder: Path, number: int = 4) -> dict[str, Any]:
    """Write JPEG and PNG images of one colour per class."""
    for name, colour in COLOURS.items():
        (folder / "flowers" / name).mkdir(parents=True, exist_ok=True)
        for i in range(number):
            suffix = ("jpg", "png", "JPEG")[i % 3]
            Image.new("RGB", (20 + i, 12), colour).save(folder / "flowers" / name / f"{i}.{suffix}")
    return {"type": "image_folder", "files": ["flowers"], "size": [8, 10]}


def test_image_folder_rows(tmp_path: Path) -> None:
    source = make(tmp_path, write_flowers(tmp_path), shards=3)
    assert source.schema.classes == ("daisy", "rose", "tulip")
    assert source.schema.feature_shape == (3, 8, 10)
    rows = read(source)
    assert sorted(rows.labels) == [0] * 4 + [1] * 4 + [2] * 4
    colours = np.array(list(COLOURS.values()))[rows.labels]
    assert np.abs(rows.features.mean(axis=(2, 3)) - colours).max() < 6
    assert len({tuple(t.labels) for s in range(3) for t in source.iter_tables(s)}) > 1
    grey = read(make(tmp_path, write_flowers(tmp_path) | {"mode": "L", "fit": "stretch"}))
    assert grey.features.shape == (12, 1, 8, 10)


def test_images_of_a_shard_are_the_same_whoever_decodes_them(tmp_path: Path) -> None:
    source = write_flowers(tmp_path)
    one = read(make(tmp_path, source | {"decode_threads": 1}, shards=1))
    many = read(make(tmp_path, source | {"decode_threads": 5}, shards=4))
    assert (one.ids == many.ids).all()
    assert (one.features == many.features).all()
    identities = {load_dataset(tmp_path, source | {"decode_threads": n}).id for n in (1, 5)}
    assert len(identities) == 1


def test_ids_of_images_stay_the_same_when_others_are_added(tmp_path: Path) -> None:
    before = read(make(tmp_path, write_flowers(tmp_path, 2)))
    after = read(make(tmp_path, write_flowers(tmp_path, 5), shards=2))
    assert set(before.ids) < set(after.ids)


def test_crop_keeps_proportions_and_stretch_does_not(tmp_path: Path) -> None:
    source = write_flowers(tmp_path)
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = 255  # what a centre crop of 10 x 10 holds
    for path in (tmp_path / "flowers").rglob("*.*"):
        path.unlink()
    (tmp_path / "flowers" / "tulip").rmdir()
    Image.fromarray(wide).save(tmp_path / "flowers" / "rose" / "wide.png")
    Image.fromarray(wide).save(tmp_path / "flowers" / "daisy" / "wide.png")
    source["size"] = [10, 10]
    assert read(make(tmp_path, source, shards=1)).features.min() > 250
    assert read(make(tmp_path, source | {"fit": "stretch"}, shards=1)).features.min() == 0


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    source = write_flowers(tmp_path, 1)
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:32] = 255  # the upper half is white
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 3  # turned by 180 degrees
    image.save(tmp_path / "flowers" / "rose" / "turned.jpg", exif=exif)
    source |= {"size": [64, 64], "files": ["flowers/*/turned.jpg", "flowers/daisy/0.jpg"]}
    (row,) = [f for f, y in zip(*_features_and_labels(tmp_path, source), strict=True) if y == 1]
    assert row[:, :24].max() < 30
    assert row[:, 40:].min() > 225


def _features_and_labels(folder: Path, source: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    rows = read(make(folder, source, shards=1))
    return rows.features, rows.labels


BAD = {
    "text": (b"not an image at all", r"does not decode \(not an image\), expected a JPEG or PNG image"),
    "empty": (b"", r"does not decode \(empty file\), expected a JPEG or PNG image"),
    "cut": (None, r"does not decode \(image file is truncated.*\), expected a JPEG or PNG image"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_image_that_does_not_decode(kind: str, tmp_path: Path) -> None:
    source = write_flowers(tmp_path)
    path = tmp_path / "flowers" / "rose" / "0.jpg"
    content, expected = BAD[kind]
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    assert re.fullmatch(
        f"flowers/rose/0.jpg: {expected}; fix it, or leave it out with source.on_bad: skip",
        message(tmp_path, source),
    )
    left = make(tmp_path, source | {"on_bad": "skip"})
    assert len(read(left).ids) == 11
    (skipped,) = [text for texts in left.skipped.values() for text in texts]
    assert re.fullmatch(f".*/flowers/rose/0.jpg: {expected}", skipped)


@pytest.mark.parametrize("kind", BAD)
def test_bytes_that_do_not_decode_are_kept_by_no_dataset(kind: str, tmp_path: Path) -> None:
    source = keep(write_flowers(tmp_path))
    path = tmp_path / "flowers" / "rose" / "0.jpg"
    content, expected = BAD[kind]
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path, progressive=True)
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    expected = expected.replace("not an image", "not a JPEG or PNG image")
    assert re.fullmatch(
        f"flowers/rose/0.jpg: {expected}; fix it, or leave it out with source.on_bad: skip",
        message(tmp_path, source),
    )
    left = make(tmp_path, source | {"on_bad": "skip"})
    assert sum(len(table.ids) for shard in range(3) for table in left.iter_tables(shard)) == 11
    assert sum(map(len, left.skipped.values())) == 1


def test_bytes_of_a_bomb_and_of_other_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = keep(write_flowers(tmp_path))
    bad = tmp_path / "flowers" / "rose" / "bad.png"
    Image.new("RGB", (40, 40)).save(bad, format="GIF")
    assert "bad.png: does not decode (not a JPEG or PNG image), expected a" in message(
        tmp_path, source
    )
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(bad)
    assert "bad.png: has more than 8 bits a channel" in message(tmp_path, source)
    Image.new("L", (900, 900)).save(bad)  # a few hundred bytes
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300_000)
    assert re.search(r"bad.png: does not decode \(.*bomb.*\), expected", message(tmp_path, source))


def keep(source: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key != "size"} | {"decode": "at_read"}


@pytest.mark.parametrize("block", [1, 2000, 10**9])
def test_bytes_of_files(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardline.data.sources.image_folder._BLOCK_BYTES", block)
    source = make(tmp_path, keep(write_flowers(tmp_path)))
    assert source.schema.record().columns == {"image": "bytes", "labels": "int64"}
    assert source.schema.classes == ("daisy", "rose", "tulip")
    rows = [row for shard in range(3) for row in source.iter_rows(shard)]
    files = {path.read_bytes(): path.parent.name for path in source.files}
    assert {row["image"]: source.schema.classes[row["labels"]] for row in rows} == files
    pixels = read(make(tmp_path, write_flowers(tmp_path), shards=1))
    assert sorted(row["ids"] for row in rows) == list(pixels.ids), "splits stay the same"


def test_image_of_16_bits_is_not_clipped(tmp_path: Path) -> None:
    source = write_flowers(tmp_path)
    deep = Image.fromarray(np.full((20, 20), 40_000, np.uint16))
    deep.save(tmp_path / "flowers" / "rose" / "deep.png")
    assert message(tmp_path, source).startswith(
        "flowers/rose/deep.png: has more than 8 bits a channel (mode I;16), expected 8; convert it"
    )


def test_classes_of_folders(tmp_path: Path) -> None:
    source = write_flowers(tmp_path)
    rows = read(make(tmp_path, source | {"classes": ["tulip", "rose", "daisy"]}))
    colours = np.array(list(COLOURS.values()))[::-1][rows.labels]
    assert np.abs(rows.features.mean(axis=(2, 3)) - colours).max() < 6
    assert re.fullmatch(
        r"flowers/tulip/\d.\w+: its folder tulip is not in source.classes \(daisy, rose\); add the folder there, "
        "or remove it from source.files",
        message(tmp_path, source | {"classes": ["daisy", "rose"]}),
    )
    assert message(tmp_path, source | {"files": ["flowers/rose/*"]}) == (
        "flowers/rose/0.jpg: all images are in one folder, rose, expected a folder per class; list the folders of "
        "all classes in source.files"
    )


def test_images_split_by_folder(tmp_path: Path) -> None:
    source = write_flowers(tmp_path)
    (tmp_path / "flowers").rename(tmp_path / "training")
    write_flowers(tmp_path, 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "flowers").rename(tmp_path / "data" / "test")
    (tmp_path / "training").rename(tmp_path / "data" / "train")
    source["files"] = ["data"]
    splits = {"files": {"train": ["train/*"], "validation": 0.5, "test": ["data/test/**/*"]}}
    rows = read(make(tmp_path, source, splits=splits))
    assert rows.splits is not None
    assert rows.splits.count("test") == 3
    assert 2 < rows.splits.count("validation") < 10


@pytest.mark.parametrize("write", [write_flowers, write_mnist])
def test_content_digest_is_that_of_the_identity_until_a_byte_changes(
    write: Any, tmp_path: Path
) -> None:
    source = write(tmp_path)
    dataset, made = load_dataset(tmp_path, source), make(tmp_path, source)
    expected = combine_digests(dataset.document["source"].values())
    assert made.content_digest == expected
    path = made.files[0]
    path.write_bytes(path.read_bytes() + b"x")
    assert made.content_digest != expected
