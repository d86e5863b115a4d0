"""Decoders of JPEG beside each other, alone and with a random resized crop to 224 pixels.

Photos are made: noise with the spectrum of photographs (amplitude 1/f), discs that hide each other as
objects do, and sensor noise; 500 x 375 pixels, about 110 KB as JPEG of 4:2:0. All competitors see the
same photos and parts, and take turns: one in one thread, then in two, then the next one.

- alone: bytes to pixels;
- crop: bytes to a part of random size and place, resized (bilinear, antialiased) to 224 x 224;
- shipped: `shardline.transforms.RandomResizedCrop`, and with the usual chain behind it.

PyTurboJPEG is measured where it is installed (version 1 with libjpeg-turbo 2.1, 2 with 3.0 of the
system). docs/decisions/0041-one-image-decoder.md holds the outcome.
"""

import argparse
import io
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import simplejpeg
import torch
from PIL import Image

from shardline.data.transforms.resizing import resize_crop
from shardline.transforms import Decode, Flip, Normalize, RandomResizedCrop
from shardline_io.order.chance import generator_of

try:
    import turbojpeg

    TURBO = turbojpeg.TurboJPEG()
except (ImportError, RuntimeError):
    TURBO = None

HEIGHT, WIDTH, PHOTO_BYTES = 375, 500, 110_000
NUM_PHOTOS, NUM_DISCS = 60, 60
CROP = RandomResizedCrop(224)
DECODE, FLIP = Decode(), Flip()
NORMALIZE = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

Competitor = Callable[[bytes, np.random.Generator], object]


def photo(rng: np.random.Generator) -> Image.Image:
    """Return a made photograph."""
    radius = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    amplitude = 1 / np.maximum(radius, 1 / WIDTH)

    def field() -> np.ndarray:
        phase = np.exp(2j * np.pi * rng.random(amplitude.shape))
        values = np.fft.irfft2(amplitude * phase, s=(HEIGHT, WIDTH))
        return values / values.std()

    fields = [field() for _ in range(3)]
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for _ in range(NUM_DISCS):
        size = 5 + 60 * rng.pareto(2.0)
        inside = (x - rng.random() * WIDTH) ** 2 + (y - rng.random() * HEIGHT) ** 2 < size**2
        for values in fields:
            values[inside] = 0.4 * values[inside] + rng.normal()
    luma, red, blue = fields
    grey = 118 + 50 * luma + 6 * rng.normal(size=luma.shape)
    colors = [grey + 18 * red, grey - 6 * red - 6 * blue, grey + 18 * blue]
    return Image.fromarray(np.stack(colors, -1).clip(0, 255).astype(np.uint8))


def as_jpeg(image: Image.Image) -> bytes:
    """Return a file of the quality whose size is nearest to that of the photos."""
    files = []
    for quality in range(80, 100):
        file = io.BytesIO()
        image.save(file, "jpeg", quality=quality)
        files.append(file.getvalue())
    return min(files, key=lambda content: abs(len(content) - PHOTO_BYTES))


def by_pillow(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def by_turbojpeg(content: bytes) -> np.ndarray:
    return TURBO.decode(content, turbojpeg.TJPF_RGB)


def with_crop(decode: Callable[[bytes], np.ndarray], *, by_torch: bool = True) -> Competitor:
    def work(content: bytes, generator: np.random.Generator) -> np.ndarray:
        pixels = decode(content)
        box = CROP.box(*pixels.shape[:2], generator)
        if by_torch:
            return resize_crop(pixels, box, (224, 224))
        top, left, height, width = box
        part = Image.fromarray(pixels[top : top + height, left : left + width])
        return np.asarray(part.resize((224, 224), Image.Resampling.BILINEAR))

    return work


def shipped(content: bytes, generator: np.random.Generator) -> object:
    return CROP({"image": content}, generator)


def chain(content: bytes, generator: np.random.Generator) -> object:
    return NORMALIZE(FLIP(CROP({"image": content}, generator), generator))


DECODERS = {"simplejpeg": simplejpeg.decode_jpeg, "Pillow": by_pillow}
if TURBO:
    DECODERS["PyTurboJPEG"] = by_turbojpeg
COMPETITORS: dict[str, Competitor] = {
    **{f"alone: {name}": (lambda c, g, of=of: of(c)) for name, of in DECODERS.items()},
    **{f"crop by torch: {name}": with_crop(of) for name, of in DECODERS.items()},
    **{f"crop by Pillow: {name}": with_crop(of, by_torch=False) for name, of in DECODERS.items()},
    "shipped: decode": lambda c, g: DECODE({"image": c}, g),
    "shipped: random_resized_crop": shipped,
    "shipped: crop, flip, normalize": chain,
}


def measure(work: Competitor, photos: list[bytes], threads: int) -> tuple[float, float]:
    """Return images/s by the clock, and images/s of CPU time."""

    def run(number: int) -> None:
        for row in range(number, len(photos), threads):
            work(photos[row], generator_of(0, 0, 0, row))

    crew = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    clock, cpu = time.perf_counter(), time.process_time()
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu
    return len(photos) / seconds, len(photos) / cpu_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    photos = [as_jpeg(photo(np.random.default_rng(seed))) for seed in range(NUM_PHOTOS)]
    packages = [f"{name} {version(name)}" for name in ("simplejpeg", "pillow", "torch")]
    if TURBO:
        packages.append(f"PyTurboJPEG {version('PyTurboJPEG')}")
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}"
    print(", ".join([machine, *packages]))
    mean_kb = sum(map(len, photos)) / len(photos) / 1000
    print(f"{len(photos)} photos, {mean_kb:.0f} KB in the mean; medians of {repeats}\n")
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(repeats):
        for name, work in COMPETITORS.items():
            for threads in (1, 2):
                found.setdefault((name, threads), []).append(measure(work, photos, threads))
    print("| | images/s of CPU time | images/s, one thread | two threads | two / one |")
    print("| --- | --- | --- | --- | --- |")
    for name in COMPETITORS:
        one, two = (np.median(found[name, threads], axis=0) for threads in (1, 2))
        gain = statistics.median(
            b[0] / a[0] for a, b in zip(found[name, 1], found[name, 2], strict=True)
        )
        print(f"| {name} | {one[1]:,.0f} | {one[0]:,.0f} | {two[0]:,.0f} | {gain:.2f} |")


if __name__ == "__main__":
    main()
