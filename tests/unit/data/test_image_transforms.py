"""Transforms of images: what they compute, what chance decides, and images that are none."""

import io
import math

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from shardline.config.code_paths import SHIPPED_TRANSFORMS
from shardline.core.errors import ConfigError, DataError
from shardline.data.transforms import decoding
from shardline.data.transforms.decoding import Encoded
from shardline.data.transforms.repeat_check import check_samples
from shardline.data.transforms.resizing import resize_crop
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    Decode,
    Flip,
    Normalize,
    RandomResizedCrop,
    Resize,
)
from shardline_io.order.chance import generator_of

SIZES = st.integers(1, 40)
ROWS = st.integers(-(2**63), 2**63 - 1)


def photo(height: int = 60, width: int = 80, channels: int = 3) -> np.ndarray:
    """An image without hard edges, so that JPEG hardly changes it."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (9 + c) + c) + np.cos(y / (7 + c)) for c in range(channels)]
    return (127 + 60 * np.stack(waves, -1)).astype(np.uint8)


def file_of(pixels: np.ndarray, kind: str = "jpeg", mode: str = "RGB", **options) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2:] == (1,) else pixels)
    image.convert(mode).save(file, kind, **options)
    return file.getvalue()


def as_pillow(content: bytes, mode: str = "RGB") -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert(mode))


def image_of(transform, image, row: int = 0) -> np.ndarray:
    sample = {"image": image, "label": 3}
    found = transform(sample, generator_of(1, 0, 0, row))
    assert found["label"] == 3
    assert found is not sample
    assert sample["image"] is image
    return found["image"]


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "bmp"])
def test_a_file_is_decoded_to_the_pixels_that_pillow_reads(kind):
    content = file_of(photo(), kind)
    pixels = image_of(Decode(), content)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (60, 80, 3))
    assert (pixels == as_pillow(content)).all()


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_any_jpeg_is_decoded_to_the_pixels_that_pillow_reads(options):
    content = file_of(photo(), **options)
    assert (image_of(Decode(), content) == as_pillow(content)).all()


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("wanted", ["RGB", "L"])
def test_grey_and_cmyk_files_become_what_is_asked_for(mode, wanted):
    content = file_of(photo(), mode=mode, quality=95)
    pixels = image_of(Decode(mode=wanted), content)
    assert pixels.shape == (60, 80, len(wanted))
    difference = pixels.squeeze().astype(int) - as_pillow(content, wanted).astype(int)
    assert np.abs(difference).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_turned_upright_as_pillow_does(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = file_of(photo(), exif=exif.tobytes())
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    assert (image_of(Decode(), content) == upright).all()
    small = image_of(Resize([15, 20]), content)
    whole = resize_crop(upright, (0, 0, *upright.shape[:2]), (15, 20))
    assert np.abs(small.astype(int) - whole).max() < 12


@pytest.mark.parametrize("edge", [160, 96, 64, 33, 16, 9])
def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same(edge):
    pixels = photo(320, 480)
    content = file_of(pixels, quality=95)
    found = image_of(Resize(edge), content)
    wanted = image_of(Resize(edge), image_of(Decode(), content))
    assert found.shape == wanted.shape == (edge, edge * 3 // 2, 3)
    assert np.abs(found.astype(int) - wanted).mean() < 3


@given(st.integers(1, 200), st.integers(1, 200), ROWS, st.floats(0.01, 1), st.floats(0.2, 5))
@settings(deadline=None)
def test_a_crop_lies_within_the_image_and_is_a_function_of_the_key(
    height, width, row, scale, ratio
):
    crop = RandomResizedCrop(8, scale=[scale, 1], ratio=[ratio, ratio * 2])
    top, left, h, w = crop.box(height, width, generator_of(1, 0, 0, row))
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert min(h, w) >= 1
    assert crop.box(height, width, generator_of(1, 0, 0, row)) == (top, left, h, w)


def test_crops_are_distributed_as_their_settings_have_it():
    crop, area = RandomResizedCrop(224), 375 * 500
    boxes = np.array([crop.box(375, 500, generator_of(1, 0, 0, row)) for row in range(4_000)])
    shares = boxes[:, 2] * boxes[:, 3] / area
    ratios = np.log(boxes[:, 3] / boxes[:, 2])
    assert 0.079 < shares.min() < 0.09
    assert shares.max() < 1
    # of uniform shares and ratios, those that fit
    rng = np.random.default_rng(0)
    uniform = rng.uniform(0.08, 1, 100_000)
    ratio = np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), 100_000))
    fits = (np.sqrt(uniform * area * ratio) <= 500) & (np.sqrt(uniform * area / ratio) <= 375)
    assert abs(shares.mean() - uniform[fits].mean()) < 0.015
    assert abs(shares.std() - uniform[fits].std()) < 0.015
    assert abs(ratios).max() <= math.log(4 / 3) + 0.02
    assert abs(ratios.mean() - np.log(ratio[fits]).mean()) < 0.015
    middle = (boxes[:, 1] + boxes[:, 3] / 2).mean() / 500
    assert abs(middle - 0.5) < 0.01


@given(SIZES, SIZES)
def test_a_flip_undoes_itself(height, width):
    pixels = photo(height, width)
    flipped = image_of(Flip(p=1), pixels)
    assert (flipped == pixels[:, ::-1]).all()
    assert (image_of(Flip(p=1), flipped) == pixels).all()
    assert (image_of(Flip(p=0), pixels) == pixels).all()


def test_half_of_the_images_are_flipped():
    pixels = photo(2, 2)
    flips = [bool((image_of(Flip(), pixels, row) != pixels).any()) for row in range(2_000)]
    assert 0.46 < np.mean(flips) < 0.54


@given(SIZES, SIZES, SIZES, SIZES)
def test_the_middle_is_cut_out_and_what_is_missing_is_zero(height, width, out_height, out_width):
    pixels = photo(height, width).clip(1)
    found = image_of(CenterCrop([out_height, out_width]), pixels)
    assert found.shape == (out_height, out_width, 3)
    kept = min(height, out_height) * min(width, out_width)
    assert np.count_nonzero(found[..., 0]) == kept


@pytest.mark.parametrize("size", [20, 60, 100])
def test_the_shorter_edge_is_resized_and_the_other_follows(size):
    assert image_of(Resize(size), photo(60, 80)).shape == (size, size * 80 // 60, 3)
    assert image_of(Resize(size), photo(80, 60)).shape == (size * 80 // 60, size, 3)
    assert image_of(Resize([size, 7]), photo(80, 60)).shape == (size, 7, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_gives_channels_first(channels):
    pixels = photo(channels=channels)
    mean, std = [0.1, 0.2, 0.3][:channels], [0.5, 0.25, 2.0][:channels]
    found = image_of(Normalize(mean, std), pixels)
    wanted = (pixels / 255 - mean) / std
    assert (found.dtype, found.shape) == (np.float32, (channels, 60, 80))
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1), atol=1e-5)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_a_colour_jitter_of_one_kind_is_pillows_with_a_factor_of_its_range(name):
    pixels = photo()
    kind = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast}
    enhance = kind.get(name, ImageEnhance.Color)(Image.fromarray(pixels)).enhance
    found = image_of(ColorJitter(**{name: 0.4}), pixels)
    candidates = [np.asarray(enhance(factor)) for factor in np.linspace(0.6, 1.4, 801)]
    assert min(np.abs(found.astype(int) - one).max() for one in candidates) <= 1
    assert (image_of(ColorJitter(), pixels) == pixels).all()


def test_a_turned_hue_keeps_the_brightness_and_changes_the_colour():
    pixels = photo()
    found = image_of(ColorJitter(hue=0.5), pixels, row=3)
    assert np.abs(found.max(-1).astype(int) - pixels.max(-1)).max() <= 3
    assert np.abs(found.astype(int) - pixels).mean() > 2
    assert image_of(ColorJitter(0.5, 0.5, 0.5, 0.5), photo(channels=1)).shape == (60, 80, 1)


CHAIN = [
    {"type": "random_resized_crop", "size": 16},
    "flip",
    {"type": "color_jitter", "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 0.1},
    {"type": "normalize", "mean": 0.5, "std": [0.2, 0.2, 0.2]},
]


@given(ROWS)
@settings(max_examples=20, deadline=None)
def test_a_chain_is_a_function_of_key_and_bytes(row):
    steps = TransformSpec(written=CHAIN, what="data.transform").make()
    sample = {"image": file_of(photo())}
    first, second = (steps((1, 2, 3, row), sample)["image"] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert first.shape == (3, 16, 16)
    assert steps((1, 2, 4, row), sample)["image"].tobytes() != first.tobytes()


def test_the_shipped_transforms_pass_the_check_and_have_names():
    spec = TransformSpec(written=CHAIN, what="data.transform")
    check_samples(spec, [((1, 0, 0, row), {"image": file_of(photo())}) for row in range(5)], str)
    evaluation = ["decode", {"type": "resize", "size": 20}, {"type": "center_crop", "size": 16}]
    found = TransformSpec(written=evaluation, what="data.eval_transform", has_chance=False).make()
    assert found((1, 0, 0, 1), {"image": file_of(photo())})["image"].shape == (16, 16, 3)
    assert set(SHIPPED_TRANSFORMS) >= {
        one if isinstance(one, str) else one["type"] for one in CHAIN
    }


@pytest.mark.parametrize("name", ["flip", "random_resized_crop", "color_jitter"])
def test_chance_in_an_eval_transform_is_refused_when_it_is_made(name):
    written = {"type": name, "size": 8} if "crop" in name else name
    with pytest.raises(
        ConfigError, match=rf"data.eval_transform={name} cannot be called with \(sample\)"
    ):
        TransformSpec(written=written, what="data.eval_transform", has_chance=False).make()


def test_transforms_are_composed():
    both = Compose([Decode(), Flip(p=1), CenterCrop(8)])
    assert image_of(both, file_of(photo())).shape == (8, 8, 3)
    assert Compose([Decode(), Resize(8)])({"image": file_of(photo(8, 8))})["image"].shape == (8, 8, 3)  # fmt: skip


def bomb() -> bytes:
    content = bytearray(file_of(photo()))
    place = content.index(b"\xff\xc0") + 5
    content[place : place + 4] = b"\xff\xdc\xff\xdc"
    return bytes(content)


def extended(content: bytes, extra: bytes) -> bytes:
    end = content.rindex(b"\xff\xd9")
    return content[:end] + extra + content[end:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"column image does not decode \(no bytes\), expected a complete JPEG or PNG"),
        (b"no image at all", r"column image does not decode \(not an image\)"),
        (b"\xff\xd8\xff", r"column image does not decode \("),
        (file_of(photo())[:900], r"column image does not decode \(Premature end of JPEG file\)"),
        (file_of(photo())[:-2], r"column image does not decode \(Premature end of JPEG file\)"),
        (file_of(photo(), progressive=True)[:-9], r"column image does not decode \("),
        (file_of(photo(), mode="CMYK")[:900], r"column image does not decode \(image file is truncated"),
        (file_of(photo(), "png")[:300], r"column image does not decode \("),
        (file_of(photo(), "gif")[:10], r"column image does not decode \("),
        (bomb(), r"column image has an image of 65,500 x 65,500 pixels, expected at most 134,217,728"),
    ],
)  # fmt: skip
def test_what_is_no_whole_image_is_refused_with_the_reason(content, message):
    for transform in (Decode(), RandomResizedCrop(8), Resize(8)):
        with pytest.raises(DataError, match=message):
            image_of(transform, content)


def test_a_png_of_too_many_pixels_is_not_decoded(monkeypatch):
    monkeypatch.setattr(decoding, "_MOST_PIXELS", 60 * 80 - 1)
    with pytest.raises(DataError, match="80 x 60 pixels, expected at most 4,799"):
        image_of(Decode(), file_of(photo(), "png"))


@given(
    st.binary(max_size=40), st.integers(0, 3_000), st.sampled_from(["jpeg", "png", "gif", "webp"])
)
@settings(deadline=None)
def test_damaged_files_are_decoded_or_refused_and_nothing_else(damage, place, kind):
    content = bytearray(file_of(photo(), kind))
    place %= len(content)
    content[place : place + len(damage)] = damage
    try:
        pixels = image_of(Decode(), bytes(content))
    except DataError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3


def test_bytes_that_cameras_leave_behind_the_image_do_no_harm():
    content = file_of(photo())
    for found in (extended(content, b"abc"), content + b"abc"):
        assert (image_of(Decode(), found) == as_pillow(content)).all()


def test_sixteen_bits_are_not_clipped_in_silence():
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(file, "png")
    with pytest.raises(DataError, match="more than 8 bits a channel, mode I;16; convert it"):
        image_of(Decode(), file.getvalue())


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"images": b""}, 'there is no column image, only images; did you mean "images"'),
        ({"image": None}, "column image contains NoneType, expected the bytes of an image file or"),
        ({"image": "a.jpg"}, "column image contains str, expected"),
        ({"image": np.zeros((3, 4), np.uint8)}, r"column image contains uint8 \[3, 4\], expected"),
        ({"image": np.zeros((0, 4, 3), np.uint8)}, r"column image contains uint8 \[0, 4, 3\], exp"),
        ({"image": np.zeros((4, 4, 3), np.int64)}, r"column image contains int64 \[4, 4, 3\], exp"),
    ],
)
def test_another_column_is_refused_by_name(sample, message):
    with pytest.raises(DataError, match=message):
        Resize(8)(sample)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Resize(0), lambda: Resize([1, 2, 3]), lambda: RandomResizedCrop(8, scale=[0.5, 0.1]),
        lambda: Flip(p=2), lambda: ColorJitter(hue=0.6), lambda: ColorJitter(brightness=-1),
        lambda: Normalize(0, 0), lambda: Decode(mode="BGR"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(make):
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_without_the_decoder_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(decoding, "simplejpeg", None)
    with pytest.raises(
        ConfigError, match=r"simplejpeg, which is not installed.*shardline\[images\]"
    ):
        Decode()


BY_PILLOW = ("4:4:4", "4:2:2", "4:2:0")
SUBSAMPLINGS = [*BY_PILLOW, "440", "411"]


@given(
    st.integers(1, 90), st.integers(1, 40), st.integers(0, 2**16), st.sampled_from(SUBSAMPLINGS),
    st.sampled_from(["RGB", "L"]), st.sampled_from(["RGB", "L"]),
    st.sampled_from([{}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}]),
    st.sampled_from([b"", b"abc"]), st.data(),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_the_first_rows_of_a_jpeg_are_those_of_the_whole(
    height, width, seed, subsampling, mode, wanted, options, rest, data
):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    if subsampling in BY_PILLOW:
        content = file_of(pixels, mode=mode, subsampling=subsampling, quality=70, **options)
    else:
        content = simplejpeg.encode_jpeg(pixels, 70, "RGB", subsampling)
    content = extended(content, rest) if rest else content
    rows = data.draw(st.integers(1, height))
    found = Encoded(content, wanted).top(rows)
    assert found.shape[0] >= rows
    assert (found[:rows] == Encoded(content, wanted).pixels()[:rows]).all()


def test_most_jpegs_are_decoded_no_further_than_asked():
    content = file_of(photo(320, 480))
    assert Encoded(content, "RGB").top(100).shape == (112, 480, 3)
    with pytest.raises(DataError, match="Premature end"):
        Encoded(content[:-200], "RGB").top(100)
