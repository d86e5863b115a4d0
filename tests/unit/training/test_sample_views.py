"""What a model's `describe_sample` returns becomes a small record: boxes, masks and texts of any content."""

import base64
import io
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from shardline.core.errors import ConfigError
from shardline.training.pictures import COLOURS
from shardline.training.sample_views import MAX_BOXES, MAX_CHARS, MAX_SIDE, SampleViews

VIEWS = SampleViews(what="describe_sample", classes=("cat", "dog"))
QUICK = settings(deadline=None, max_examples=60)
EDGES = st.one_of(
    st.floats(-20, 40),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-3, 9).map(float),
)


def view(described: Any, image: Any = None) -> dict[str, Any]:
    """Return the record of a sample, as a file has it."""
    found = VIEWS.view(described, image, lambda tokens: " ".join(map(str, tokens)))
    return json.loads(json.dumps(found, allow_nan=False))


def decoded(url: str) -> np.ndarray:
    head, data = url.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


@QUICK
@given(
    boxes=st.lists(st.tuples(EDGES, EDGES, EDGES, EDGES), max_size=70),
    size=st.tuples(st.integers(4, 30), st.integers(4, 30)),
    seed=st.integers(0, 9),
)
def test_boxes_are_within_the_image_and_the_surest_come_first(
    boxes: list[tuple[float, ...]], size: tuple[int, int], seed: int
) -> None:
    scores = np.random.default_rng(seed).random(len(boxes))
    described = {
        "image": np.zeros(size, np.uint8), "boxes": {"predicted": torch.tensor(boxes, dtype=torch.float64)},
        "labels": {"predicted": list(range(len(boxes)))}, "scores": torch.from_numpy(scores),
    }  # fmt: skip
    found = view(described)["boxes"]
    height, width = size
    expected = {}
    for number, (box, score) in enumerate(zip(boxes, scores.tolist(), strict=True)):
        clipped = [
            min(max(edge, 0), of) / of for edge, of in zip(box, (width, height) * 2, strict=True)
        ]
        if all(map(math.isfinite, box)) and clipped[0] < clipped[2] and clipped[1] < clipped[3]:
            expected[("cat", "dog")[number] if number < 2 else str(number)] = (score, clipped)
    surest = sorted(expected, key=lambda name: -expected[name][0])[:MAX_BOXES]
    assert [box["label"] for box in found["predicted"]] == surest
    assert found.get("left_out", 0) == len(boxes) - len(surest)
    for box in found["predicted"]:
        score, clipped = expected[box["label"]]
        assert box["score"] == pytest.approx(score, rel=1e-5)
        assert box["at"] == pytest.approx(clipped, abs=1e-4)
        assert all(0 <= edge <= 1 for edge in box["at"])


@QUICK
@given(
    mask=arrays.arrays(
        st.sampled_from(["uint8", "int64", "bool", "int32"]),
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=40),
    )
)
def test_a_mask_is_drawn_in_the_colours_of_its_classes(mask: np.ndarray) -> None:
    found = view({"mask": {"predicted": torch.from_numpy(mask), "true": mask}})["mask"]
    pixels = decoded(found["predicted"])
    assert found["predicted"] == found["true"]
    assert pixels.shape[:2] == mask.shape
    numbers = mask.astype(np.int64)
    np.testing.assert_array_equal(pixels[..., 3] > 0, numbers > 0)
    for number in np.unique(numbers[numbers > 0]).tolist():
        drawn = pixels[numbers == number][:, :3]
        assert (drawn == COLOURS[(number - 1) % len(COLOURS)]).all()
    shown = [int(number) for number in found["classes"]]
    assert shown == sorted(set(numbers[numbers > 0].tolist()))[: len(shown)]
    assert found["classes"].get("1", "dog") == "dog"


@QUICK
@given(height=st.integers(4, 700), width=st.integers(4, 700), channels=st.sampled_from([0, 1, 3]))
def test_images_and_masks_of_any_size_are_small_and_lie_on_each_other(
    height: int, width: int, channels: int
) -> None:
    image = np.zeros((height, width, channels) if channels else (height, width), np.uint8)
    mask = np.zeros((height, width), np.int64)
    mask[height // 2 :] = 1
    found = view({"image": image, "mask": {"true": mask}})
    shown, over = decoded(found["image"]), decoded(found["mask"]["true"])
    assert shown.shape == over.shape
    assert max(shown.shape) <= MAX_SIDE
    assert over[-1, 0, 3] or len(over) == 1
    assert (over[..., 3] > 0).mean() == pytest.approx(0.5, abs=0.6 / len(over) + 1e-9)


@pytest.mark.parametrize(
    "image",
    [torch.full((3, 5, 6), math.nan), torch.zeros(1, 5, 6), np.array([[-math.inf] * 5] * 4 + [[math.inf] * 5]),
     torch.rand(5, 6).bfloat16(), np.ones((5, 6), bool)],
)  # fmt: skip
def test_an_image_of_any_numbers_is_drawn(image: Any) -> None:
    assert decoded(view({}, image)["image"]).shape[0] == 5


def test_an_image_of_floats_is_scaled_from_its_least_to_its_largest_value() -> None:
    image = torch.tensor([[0.0, 1, 2, 4]]).repeat(4, 1) - 7
    assert decoded(view({"image": image})["image"])[0, :, 0].tolist() == [0, 64, 128, 255]


@QUICK
@given(text=st.text(st.characters(exclude_categories=()), max_size=600))
def test_a_text_is_short_and_can_be_written(text: str) -> None:
    found = view({"text": {"prompt": text, "true": text, "predicted": text}})["text"]
    for name, shown in found.items():
        assert len(shown) <= MAX_CHARS + 1
        assert shown.encode().decode() == shown
        assert not any(ord(one) < 0x20 and one not in "\t\n" for one in shown)
        kept = text[-MAX_CHARS:] if name == "prompt" else text[:MAX_CHARS]
        assert ("…" in shown) >= (len(text) > MAX_CHARS)
        if kept.isalnum() and kept.isascii():
            assert kept in shown


def test_tokens_are_spelled_and_too_many_are_cut() -> None:
    found = view(
        {"text": {"prompt": torch.arange(9000), "true": [], "predicted": np.array([3, 4])}}
    )
    assert found["text"]["prompt"].endswith("8998 8999")
    assert (found["text"]["true"], found["text"]["predicted"]) == ("", "3 4")


def test_a_label_and_a_prediction_stand_as_they_are() -> None:
    assert view({"label": 1, "predicted": "a <b>"}) == {"label": "dog", "predicted": "a <b>"}
    assert view({"label": torch.tensor(0.123456789), "predicted": math.nan}) == {
        "label": 0.123457, "predicted": None,
    }  # fmt: skip


PIXELS = np.zeros((5, 6), np.uint8)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (None, "returned NoneType, expected a dict with some of image, mask"),
        ({"masks": {}}, 'returned masks as an unknown key, .*did you mean "mask"'),
        ({"image": torch.zeros(2, 3, 5, 6)}, r"returned image as float32\[2, 3, 5, 6\], expected numbers"),
        ({"mask": PIXELS}, "returned mask as ndarray, expected a dict with some of true, predicted"),
        ({"mask": {"guess": PIXELS}}, "returned mask as a dict with guess, expected"),
        ({"mask": {"true": PIXELS / 2}}, r"mask.true as float64\[5, 6\], expected integers"),
        ({"image": PIXELS, "mask": {"true": PIXELS.T}}, r"mask.true as uint8\[6, 5\], .*shape \[5, 6\], the image's"),
        ({"boxes": {"true": []}}, "boxes as boxes without an image, .*return the image as well"),
        ({"image": PIXELS, "boxes": {"true": [[1, 2, 3]]}}, r"boxes.true as int64\[1, 3\], .*\[n, 4\]"),
        ({"image": PIXELS, "boxes": {"predicted": [[0, 0, 1, 1]]}, "scores": []}, "scores as 0 values, expected 1"),
        ({"text": {"prompt": [1.5]}}, r"text.prompt as float64\[1\], expected a string, or its tokens"),
        ({"label": object()}, "label as object, expected a string or a number"),
    ],
)  # fmt: skip
def test_another_form_is_a_sentence_that_names_the_key(described: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        view(described)
