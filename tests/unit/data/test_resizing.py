"""Parts of images, resized: as Pillow does it, and by each processor alike."""

import os
import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardline.data.transforms.resizing import resize_crop

SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES, SIZES, st.data())
@settings(max_examples=60, deadline=None)
def test_a_part_is_resized_as_pillow_does(height, width, out_height, out_width, data):
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    h, w = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    found = resize_crop(pixels, (top, left, h, w), (out_height, out_width))
    part = Image.fromarray(pixels[top : top + h, left : left + w])
    wanted = np.asarray(part.resize((out_width, out_height), Image.Resampling.BILINEAR))
    assert found.shape == (out_height, out_width, 3)
    assert np.abs(found.astype(int) - wanted).max() <= 1


RESIZED = """
import itertools, sys
import numpy as np
from shardline.data.transforms.resizing import resize_crop
found = {}
for kind, height, width, h, w in itertools.product("Bf", (1, 2, 3, 8, 40), (1, 3, 17), (1, 3, 24), (1, 2, 9)):
    pixels = (np.random.default_rng(height * width).random((height, width, 3)) * 255).astype(kind)
    found[f"{kind} {height} {width} {h} {w}"] = resize_crop(pixels, (0, 0, height, width), (h, w))
np.savez(sys.argv[1], **found)
"""


def test_an_older_processor_resizes_to_the_same_bytes(tmp_path):
    """torch says nothing of what it takes wrong: floats in one column, and without AVX2 bytes in one."""
    for name, more in {"own": {}, "older": {"ATEN_CPU_CAPABILITY": "default"}}.items():
        command = [sys.executable, "-c", RESIZED, str(tmp_path / f"{name}.npz")]
        subprocess.run(command, env=os.environ | more, check=True)
    own, older = np.load(tmp_path / "own.npz"), np.load(tmp_path / "older.npz")
    for name in own.files:
        kind, height, width, h, w = name.split()
        assert (own[name] == older[name]).all() or kind == "f", name
        shape = int(height), int(width), 3
        pixels = (np.random.default_rng(shape[0] * shape[1]).random(shape) * 255).astype(kind)
        for channel in range(3):
            part = Image.fromarray(pixels[:, :, channel])
            wanted = np.asarray(part.resize((int(w), int(h)), Image.Resampling.BILINEAR))
            for found in (own[name], older[name]):
                close = 1 if kind == "B" else 1e-3
                assert np.abs(found[:, :, channel] - wanted.astype(float)).max() <= close, name
