"""Transforms of images, with the distributions of torchvision and random numbers from the sample's generator.

An image is a column of bytes (JPEG, PNG) or an array [height, width, channels] uint8. Every transform
except `Normalize` returns such an array. `RandomResizedCrop` and `Resize` also decode: a JPEG is decoded
at a fraction of its size if the part is at least twice as large as the result. All raise `DataError` with the
name of the column if the image cannot be decoded.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import did_you_mean
from shardline.data.transforms.decoding import MODES, Encoded, Mode, check_installed
from shardline.data.transforms.resizing import Box, resize_crop
from shardline.data.transforms.transform_steps import Sample

if TYPE_CHECKING:
    from PIL import Image

_TRIES = 10  # attempts to find a crop, as in torchvision
Size = int | Sequence[int]
_Found = TypeVar("_Found")


def _pair(name: str, size: Size) -> tuple[int, int]:
    found = (size, size) if isinstance(size, int) else tuple(size)
    if len(found) != 2 or not all(isinstance(n, int) and n > 0 for n in found):
        raise ConfigError(
            f"{name}={size} is not a size, expected a number of pixels, or [height, width]; use one of them"
        )
    return found


class _OfImage:
    """Base class of transforms of an image.

    Args:
        column: Name of the image column.
        mode: Mode to decode bytes to: `RGB`, or `L` for grey.
    """

    def __init__(self, column: str = "image", mode: Mode = "RGB") -> None:
        if mode not in MODES:
            raise ConfigError(f"mode={mode!r} is not known, expected {' or '.join(MODES)}")
        check_installed()
        self.column, self.mode = column, mode

    def _image(self, sample: Sample) -> np.ndarray | Encoded:
        if self.column not in sample:
            remedy = did_you_mean(self.column, sample, otherwise="set `column` to the image column")
            raise DataError(f"there is no column {self.column}, only {', '.join(sample)}; {remedy}")
        value: np.ndarray | bytes = sample[self.column]
        if isinstance(value, bytes):
            return self._named(lambda: Encoded(value, self.mode))
        is_image = (
            isinstance(value, np.ndarray)
            and value.ndim == 3
            and value.dtype in ("uint8", "float32")
        )
        if not is_image or 0 in value.shape:
            found = type(value).__name__
            if isinstance(value, np.ndarray):
                found = f"{value.dtype} {list(value.shape)}"
            raise DataError(
                f"column {self.column} contains {found}, expected the bytes of an image file or an array uint8 "
                "[height, width, channels]; change the source, or transpose the array"
            )
        return value

    def _pixels(self, sample: Sample) -> np.ndarray:
        image = self._image(sample)
        return self._named(image.pixels) if isinstance(image, Encoded) else image

    def _cropped(self, image: np.ndarray | Encoded, box: Box, size: tuple[int, int]) -> np.ndarray:
        return self._named(lambda: resize_crop(image, box, size))

    def _named(self, work: Callable[[], _Found]) -> _Found:
        try:
            return work()
        except DataError as error:
            raise DataError(f"column {self.column} {error}") from None


def _shape(image: np.ndarray | Encoded) -> tuple[int, int]:
    """Return height and width."""
    if isinstance(image, Encoded):
        return image.height, image.width
    return image.shape[0], image.shape[1]


class Decode(_OfImage):
    """Decode the bytes of an image file to [height, width, channels] uint8.

    Images are turned upright by their EXIF orientation. Transparency is dropped.
    """

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the sample with the decoded image."""
        return {**sample, self.column: self._pixels(sample)}


class RandomResizedCrop(_OfImage):
    """Crop a part of random size, shape and place, and resize it (bilinear, antialiased).

    The distribution of the part is the same as in torchvision's `RandomResizedCrop.get_params`.

    Args:
        size: Edge length of the result in pixels, or [height, width].
        scale: Least and greatest share of the image area.
        ratio: Least and greatest ratio of width to height.
    """

    def __init__(
        self, size: Size, scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3), column: str = "image", mode: Mode = "RGB",
    ) -> None:  # fmt: skip
        super().__init__(column, mode)
        self.size = _pair("size", size)
        self.scale, self.ratio = _range("scale", scale), _range("ratio", ratio)

    def __call__(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return the sample with the image as [*size, channels]."""
        image = self._image(sample)
        box = self.box(*_shape(image), generator)
        return {**sample, self.column: self._cropped(image, box, self.size)}

    def box(self, height: int, width: int, generator: np.random.Generator) -> Box:
        """Return a random part of an image of this size: top, left, height, width in pixels."""
        least, greatest = (math.log(bound) for bound in self.ratio)
        for _ in range(_TRIES):
            area = height * width * generator.uniform(*self.scale)
            ratio = math.exp(generator.uniform(least, greatest))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top = int(generator.integers(height - h + 1))
                return top, int(generator.integers(width - w + 1)), h, w
        h, w = height, width  # fall back to the largest central part that the ratio allows
        if width / height < self.ratio[0]:
            h = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = min(width, max(1, round(height * self.ratio[1])))
        return (height - h) // 2, (width - w) // 2, h, w


def _range(name: str, bounds: Sequence[float]) -> tuple[float, float]:
    found = tuple(map(float, bounds))
    if len(found) != 2 or not 0 < found[0] <= found[1]:
        raise ConfigError(
            f"{name}={list(bounds)} is not a range, expected [least, greatest] above 0"
        )
    return found


class Resize(_OfImage):
    """Resize an image (bilinear, antialiased).

    Args:
        size: Length of the shorter edge in pixels, keeping proportions; or [height, width].
    """

    def __init__(self, size: Size, column: str = "image", mode: Mode = "RGB") -> None:
        super().__init__(column, mode)
        self.size, self._is_edge = _pair("size", size), isinstance(size, int)

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the sample with the resized image."""
        image = self._image(sample)
        height, width = _shape(image)
        size = self.size
        if self._is_edge:
            short = min(height, width)
            size = size[0] * height // short, size[1] * width // short
        return {**sample, self.column: self._cropped(image, (0, 0, height, width), size)}


class CenterCrop(_OfImage):
    """Crop the center of an image, and pad a smaller image with zeros.

    Args:
        size: Edge length of the result in pixels, or [height, width].
    """

    def __init__(self, size: Size, column: str = "image", mode: Mode = "RGB") -> None:
        super().__init__(column, mode)
        self.size = _pair("size", size)

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the sample with the image as [*size, channels]."""
        image = self._pixels(sample)
        missing = [max(0, n - m) for n, m in zip(self.size, image.shape, strict=False)]
        if any(missing):
            around = [(n // 2, n - n // 2) for n in missing]
            image = np.pad(image, (*around, (0, 0)))
        top, left = (round((m - n) / 2) for n, m in zip(self.size, image.shape, strict=False))
        part = image[top : top + self.size[0], left : left + self.size[1]]
        return {**sample, self.column: np.ascontiguousarray(part)}


class Flip(_OfImage):
    """Flip an image horizontally at random.

    Args:
        p: Probability of a flip, from 0 to 1.
    """

    def __init__(self, p: float = 0.5, column: str = "image", mode: Mode = "RGB") -> None:
        super().__init__(column, mode)
        if not 0 <= p <= 1:
            raise ConfigError(f"p={p} is not a probability, expected a number from 0 to 1")
        self.p = p

    def __call__(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return the sample with the image flipped, with probability `p`."""
        image = self._pixels(sample)
        if generator.random() < self.p:
            image = image[:, ::-1].copy(order="K")
        return {**sample, self.column: image}


class ColorJitter(_OfImage):
    """Change brightness, contrast, saturation and hue at random, in random order, as torchvision does.

    Brightness, contrast and saturation are multiplied by a factor from [max(0, 1 - x), 1 + x]. The
    hue is rotated by a share of the color circle from [-x, x].

    Args:
        brightness: x for the brightness, at least 0.
        contrast: x for the contrast, at least 0.
        saturation: x for the saturation, at least 0.
        hue: x for the hue, from 0 to 0.5.
    """

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0,
        column: str = "image", mode: Mode = "RGB",
    ) -> None:  # fmt: skip
        super().__init__(column, mode)
        self.factors = (brightness, contrast, saturation)
        self.hue = hue
        if min(self.factors) < 0 or not 0 <= hue <= 0.5:
            raise ConfigError(
                f"brightness, contrast, saturation={list(self.factors)} and hue={hue} are out of range, expected at "
                "least 0, and a hue of at most 0.5"
            )

    def __call__(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return the sample with the changed image."""
        pixels = self._pixels(sample)
        if pixels.dtype != np.uint8 or pixels.shape[2] not in (1, 3):
            raise DataError(
                f"column {self.column} contains {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, "
                "1 or 3]; put color_jitter before normalize"
            )
        from PIL import Image, ImageEnhance  # of the extra `images`

        enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        grey = pixels.shape[2] == 1
        image = Image.fromarray(pixels[:, :, 0] if grey else pixels)
        order = generator.permutation(4)
        factors = [generator.uniform(max(0.0, 1 - x), 1 + x) for x in self.factors]
        turn = generator.uniform(-self.hue, self.hue)
        for place in order.tolist():
            if place == 3:
                image = _turn_hue(image, turn) if self.hue and not grey else image
            elif self.factors[place]:
                image = enhance[place](image).enhance(factors[place])
        pixels = np.array(image)
        return {**sample, self.column: pixels[:, :, None] if grey else pixels}


def _turn_hue(image: "Image.Image", turn: float) -> "Image.Image":
    from PIL import Image

    hsv = np.array(image.convert("HSV"))
    hsv[:, :, 0] += np.uint8(int(turn * 255) % 256)
    return Image.fromarray(hsv, "HSV").convert("RGB")


class Normalize(_OfImage):
    """Normalize an image to float32 [channels, height, width]: (value / 255 - mean) / std.

    Args:
        mean: Mean of each channel, or one number for all channels.
        std: Standard deviation of each channel, or one number for all channels.

    Attributes:
        scale, shift: Factors [channels or 1, 1, 1] float32 in `value * scale - shift`.
    """

    def __init__(
        self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0,
        column: str = "image", mode: Mode = "RGB",
    ) -> None:  # fmt: skip
        super().__init__(column, mode)
        means, stds = (np.atleast_1d(np.asarray(of, np.float64)) for of in (mean, std))
        if means.ndim != 1 or stds.ndim != 1 or not (stds > 0).all():
            raise ConfigError(
                f"mean={mean}, std={std} cannot be used, expected a number or one per channel, and std above 0"
            )
        self.scale = (1 / (255 * stds)).astype(np.float32)[:, None, None]
        self.shift = (means / stds).astype(np.float32)[:, None, None]

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the sample with the image as float32 [channels, height, width]."""
        image = self._pixels(sample).transpose(2, 0, 1)
        channels = {len(self.scale), len(self.shift)} - {1, len(image)}
        if channels:
            raise DataError(
                f"column {self.column} has {len(image)} channels, expected {channels.pop()} as in mean and std; "
                "give one number for each channel"
            )
        result = np.empty(image.shape, np.float32)
        np.multiply(image, self.scale, out=result)
        result -= self.shift
        return {**sample, self.column: result}
