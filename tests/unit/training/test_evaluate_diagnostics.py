"""What an evaluation shows beside its metrics, held to real shards and to sums by hand."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from shardline.data.dataset import Dataset
from shardline.data.sources.digits import Digits
from shardline.records.base import encode
from shardline.training import diagnostics
from shardline.training.pictures import is_image, picture
from tests.support.evaluated_model import CLASSES, Rows, evaluated


def decoded(url):
    head, data = url.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def by_id(source):
    return {int(key): index for index, key in enumerate(source.ids)}


def outputs_of(model, source, samples):
    """Return each sample's place in the source and the model's outputs of that row."""
    places = [by_id(source)[sample["row"]] for sample in samples]
    with torch.no_grad():
        return places, model(torch.from_numpy(source.features[places]).float())


def test_calibration_equals_a_sum_by_hand():
    confidence = np.array([0.05, 1 / 15, 0.61, 0.65, 0.99, 1.0])
    is_right = np.array([False, True, True, False, True, True])
    bins = diagnostics.Bins()
    for part in (slice(0, 1), slice(1, 6)):
        bins.add(confidence[part], is_right[part])
    found = encode(bins.describe())
    filled = {i: b for i, b in enumerate(found["bins"]) if b["count"]}
    assert {index: one["count"] for index, one in filled.items()} == {0: 2, 9: 2, 14: 2}
    assert filled[9]["confidence"] == pytest.approx(0.63)
    assert filled[9]["accuracy"] == 0.5
    assert (filled[9]["low"], filled[9]["high"]) == (9 / 15, 10 / 15)
    expected = (abs(0.05 + 1 / 15 - 1) + abs(1.26 - 1) + abs(1.99 - 2)) / 6
    assert found["ece"] == pytest.approx(expected)
    assert found["bins"][3] == {
        "low": 0.2, "high": 4 / 15, "count": 0, "confidence": None, "accuracy": None,
    }  # fmt: skip


def test_an_evaluation_of_images_shows_rows_that_the_source_knows(tmp_path):
    source = Rows(num_shards=2, shape=(3, 8, 6), dtype="uint8")
    result, model = evaluated(tmp_path, source)
    assert sum(one["count"] for one in result["calibration"]["bins"]) == result["num_samples"]
    for samples in result["samples"].values():
        assert len(samples) == diagnostics.MAX_SAMPLES
        places, logits = outputs_of(model, source, samples)
        shares = logits.double().softmax(dim=1)
        for index, (sample, place) in enumerate(zip(samples, places, strict=True)):
            truth = int(source.labels[place])
            assert sample["label"] == CLASSES[truth]
            assert sample["predicted"] == CLASSES[int(shares[index].argmax())]
            assert sample["confidence"] == pytest.approx(float(shares[index].max()), rel=1e-4)
            assert sample["loss"] == pytest.approx(-float(shares[index, truth].log()), rel=1e-4)
            pixels = source.features[place].transpose(1, 2, 0)
            np.testing.assert_array_equal(decoded(sample["image"]), pixels)


def test_the_hardest_are_the_mistakes_of_the_largest_loss(tmp_path):
    source = Rows(num_shards=2, shape=(5,), dtype="float32")
    result, model = evaluated(tmp_path, source)
    dataset = Dataset(tmp_path / "manifest.json", tmp_path)
    ids = dataset.shards.ids(dataset.shards.pieces("test"))
    places = [by_id(source)[key] for key in ids.tolist()]
    labels = torch.from_numpy(source.labels[places])
    with torch.no_grad():
        logits = model(torch.from_numpy(source.features[places])).double()
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    wrong = logits.argmax(dim=1) != labels
    expected = torch.where(wrong, loss, -1).argsort(descending=True)[: diagnostics.MAX_SAMPLES]
    assert int(wrong.sum()) > diagnostics.MAX_SAMPLES
    hardest = result["samples"]["hardest"]
    assert [one["row"] for one in hardest] == ids[expected.numpy()].tolist()
    assert hardest[0]["loss"] == pytest.approx(float(loss[wrong].max()), rel=1e-4)


def test_a_table_shows_its_first_numbers_as_stored(tmp_path):
    source = Rows(num_shards=2, shape=(11,), dtype="float32", task="regression")
    source.features /= np.float32(10)
    result, model = evaluated(tmp_path, source)
    assert "calibration" not in result
    sample = result["samples"]["typical"][0]
    place = by_id(source)[sample["row"]]
    assert "image" not in sample
    assert sample["features"] == [float(str(value)) for value in source.features[place][:8]]
    _, values = outputs_of(model, source, [sample])
    assert sample["predicted"] == pytest.approx(float(values[0]), rel=1e-4)
    assert sample["loss"] == pytest.approx((sample["predicted"] - sample["label"]) ** 2, rel=1e-3)
    pairs = result["residuals"]
    assert len(pairs["truth"]) == len(pairs["predicted"]) == result["num_samples"]
    errors = np.subtract(pairs["predicted"], pairs["truth"])
    assert (errors**2).mean() == pytest.approx(result["metrics"]["mse"], rel=1e-4)


def test_digits_are_pictures_of_their_grey_values(tmp_path):
    source = Digits(num_shards=2)
    result, _ = evaluated(tmp_path, source)
    sample = result["samples"]["typical"][3]
    table = next(source.iter_tables(0)), next(source.iter_tables(1))
    images = np.concatenate([one.features for one in table])
    np.testing.assert_array_equal(
        decoded(sample["image"]), np.rint(images[sample["row"]] * (255 / 16)).astype(np.uint8)
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((28, 28), True),
        ((3, 32, 32), True),
        ((32, 32, 3), True),
        ((32, 32, 1), True),
        ((5, 32, 32), False),
        ((64,), False),
        ((100, 2), False),
        ((2, 3, 8, 8), False),
    ],
)
def test_which_rows_are_images(shape, expected):
    assert is_image(shape) is expected


def test_a_large_image_is_reduced_and_a_small_one_never_enlarged():
    ramp = np.tile(np.arange(0, 200, dtype=np.uint8), (130, 1))
    small = decoded(picture(ramp))
    assert small.shape == (32, 50)
    np.testing.assert_array_equal(small[0], np.arange(200).reshape(50, 4).mean(axis=1).round())
    assert decoded(picture(ramp[:5, :7])).shape == (5, 7)


def test_the_middle_of_each_stretch_stands_for_it():
    def kept(num_rows, num_kept):
        spread = diagnostics.Spread(num_rows, num_kept)
        for first in range(0, num_rows, 1000):
            spread.add({"place": np.arange(first, min(first + 1000, num_rows))})
        return spread.rows["place"].tolist()

    assert kept(10, 5) == [1, 3, 5, 7, 9]
    assert kept(3, 12) == [0, 1, 2]
    assert len(set(kept(100_003, 300))) == 300
