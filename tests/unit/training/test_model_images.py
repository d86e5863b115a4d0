"""The shipped models of images: published sizes, layouts, sizes from the data, and what they learn."""

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import Data, RunSettings
from shardline.errors import ConfigError, DataError
from shardline.records.datasets import DatasetSchema
from shardline.training.model import make_model
from shardline.training.models.resnet import ResNet
from shardline.training.models.unet import UNet

PHOTOS = {"image": "float32[3,8,8]", "labels": "int64"}
MASKED = {"image": "uint8[8,8,3]", "mask": "uint8[8,8]"}


def trainer(**options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


def learnt(model: pl.LightningModule, batch: Any, steps: int) -> pl.Trainer:
    """Train on one batch again and again."""
    model.configure_optimizers = lambda: torch.optim.Adam(model.parameters(), lr=0.005)  # type: ignore[method-assign]
    many, once = (DataLoader([batch] * times, batch_size=None) for times in (steps, 1))
    ran = trainer(max_epochs=1)
    ran.fit(model, many, once)
    return ran


# --- resnet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "published"), [(18, 11_689_512), (50, 25_557_032)])
def test_a_resnet_has_the_published_number_of_parameters(depth: int, published: int) -> None:
    with torch.device("meta"):
        model = ResNet(1000, {**PHOTOS, "image": "float32[3,224,224]"}, depth=depth)
    assert sum(value.numel() for value in model.parameters()) == published
    shortcuts = [name for name, _ in model.named_modules() if name.endswith("shortcut.1")]
    assert len(shortcuts) == (3 if depth == 18 else 4)


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(("stem", "size"), [("large", 2), ("small", 8)])
def test_a_stem_keeps_or_divides_the_resolution(depth: int, stem: Any, size: int) -> None:
    model, seen = ResNet(5, PHOTOS, depth=depth, stem=stem), []
    model.body[-1].register_forward_hook(lambda _, __, output: seen.append(output.shape))
    assert model(torch.rand(2, 3, 64, 64)).shape == (2, 5)
    assert list(seen[0]) == [2, 512 if depth == 18 else 2048, size, size]


@pytest.mark.parametrize(
    ("columns", "is_small", "channels"),
    [
        ({"image": "uint8[64,70,3]", "labels": "int64"}, True, 3),
        ({"image": "float32[1,65,65]", "labels": "int64"}, False, 1),
        ({"features": "uint8[28,28]", "labels": "int64"}, True, 1),
        ({"features": "float32[12,100,90]", "labels": "int64"}, False, 12),
    ],
)
def test_stem_and_channels_come_from_the_data(
    columns: dict[str, str | None], is_small: bool, channels: int
) -> None:
    model = ResNet(3, columns)
    first = model.body[0]
    assert isinstance(first, torch.nn.Conv2d)
    assert (first.in_channels, first.kernel_size[0]) == (channels, 3 if is_small else 7)


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"features": "float32[10]", "labels": "int64"}, {},
         r"features is float32\[10\], expected an image .*; use a model for flat features, such as mlp"),
        ({"image": "bytes", "labels": "int64"}, {}, r"column=image is bytes, .*decode it by data\.transform"),
        ({"picture": "uint8[8,8,3]", "labels": "int64"}, {}, "image is not a column .* have picture, labels; set"),
        ({"image": "uint8[8,8,3]"}, {}, "needs a column `labels`, but the samples have image; rename"),
        ({"image": None, "labels": "int64"}, {}, r"stem=auto needs the images' size.*small for images of up to 64"),
        (None, {}, r"stem=auto needs the images' size"),
        (PHOTOS, {"depth": 34}, "depth=34 is not supported, expected 18 or 50"),
        (PHOTOS, {"stem": "tiny"}, "stem=tiny is not known; known are auto, large, small"),
        (PHOTOS, {"num_classes": 0}, "the dataset has 0; set `classes` or `num_classes`"),
    ],
)  # fmt: skip
def test_data_and_settings_that_a_resnet_cannot_take_are_named(
    columns: dict[str, str | None] | None, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ResNet(**{"num_classes": 3, "sample_columns": columns, **given})


def test_images_of_any_layout_give_the_same_logits() -> None:
    model = ResNet(3, PHOTOS).eval()
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        expected = model(images)
        assert torch.equal(model(images.permute(0, 2, 3, 1)), expected)
        torch.testing.assert_close(model(images / 255), expected)
        assert torch.equal(model({"image": images, "labels": torch.zeros(2)}), expected)
    with pytest.raises(
        DataError, match=r"have shape \[2, 1, 8, 8\], expected \[B, 3, H, W\].*channels"
    ):
        model(images[:, :1])


def test_a_resnet_learns_from_columns_as_from_a_table() -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
    columns = {"image": images, "labels": labels.int()}
    logged = learnt(ResNet(3, PHOTOS), columns, steps=6).callback_metrics
    assert logged["train_loss"] < 0.5, "of ln 3"
    assert {"val_loss", "val_accuracy"} <= logged.keys()
    model = ResNet(3, PHOTOS).eval()
    model.log = lambda *_: None  # type: ignore[method-assign, assignment]
    assert torch.equal(model.training_step((images, labels), 0), model.training_step(columns, 0))
    weights = torch.tensor([1.0, 1, 1, 0, 0, 0])
    half = functional.cross_entropy(model(images[:3]), labels[:3]) / 2
    torch.testing.assert_close(model.training_step({**columns, "weights": weights}, 0), half)


def test_a_run_gives_a_model_the_columns_of_its_samples() -> None:
    columns = {"image": "bytes", "labels": "int64"}
    schema = DatasetSchema(columns=columns, classes=["a", "b"], task="classification")
    transform = [{"type": "resize", "size": [40, 40], "mode": "L"}, "normalize"]
    settings = RunSettings(data=Data(transform=transform))
    spec = RunSpec(
        run="r", model_class="shardline.training.models.resnet:ResNet", settings=settings
    )
    model = make_model(spec, schema)
    assert isinstance(model, ResNet)
    assert (model.channels, model.head.out_features) == (1, 2)


# --- unet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 8), (1, 1), (7, 21), (16, 5)])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_each_pixel_of_an_image_of_any_size_has_logits(size: tuple[int, int], depth: int) -> None:
    model = UNet(5, width=4, depth=depth)
    assert model(torch.rand(2, 3, *size)).shape == (2, 5, *size)


def test_a_unet_learns_masks_and_logs_what_is_measured() -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (3, 11, 9, 3), dtype=torch.uint8)
    masks = (images[..., 0] > 127).long()
    masks[:, 0] = 255
    batch = {"image": images, "mask": masks.to(torch.uint8)}
    model = UNet(2, MASKED, width=8, depth=1, ignore_index=255)
    ran = learnt(model, batch, steps=40)
    assert {"train_loss", "val_loss", "val_miou"} <= ran.callback_metrics.keys()
    (tested,) = trainer().test(model, DataLoader([batch], batch_size=None), verbose=False)
    assert tested["test_loss"] < 0.25, "of ln 2"
    predicted, counts = model(images).argmax(dim=1), masks != 255
    assert tested["test_pixel_accuracy"] == pytest.approx(
        float((predicted == masks)[counts].float().mean())
    )
    shares = []
    for number in range(2):
        one, other = (predicted == number) & counts, masks == number
        shares.append(float((one & other).sum() / (one | other).sum()))
    assert tested["test_miou"] == pytest.approx(sum(shares) / 2)


def test_mean_iou_is_over_the_classes_that_occur() -> None:
    model = UNet(4, width=4, depth=1)
    images = torch.rand(1, 3, 4, 4)
    masks = model(images).argmax(dim=1)
    batches = DataLoader([{"image": images, "mask": masks}], batch_size=None)
    (tested,) = trainer().test(model, batches, verbose=False)
    assert len(masks.unique()) < 4
    assert tested["test_miou"] == tested["test_pixel_accuracy"] == 1


def test_pixels_and_samples_that_do_not_count_have_no_gradient() -> None:
    torch.manual_seed(0)
    model = UNet(3, width=4, depth=1, ignore_index=9)
    images, masks = torch.rand(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    masks[:, 2:] = 9
    weights = torch.tensor([1.0, 0.0])
    _, _, losses, counts = model.losses({"image": images, "mask": masks, "weights": weights})
    kept = functional.cross_entropy(model(images)[:1, :, :2], masks[:1, :2])
    torch.testing.assert_close((losses * counts).sum() / counts.sum(), kept)
    assert counts.sum() == 8


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"image": "uint8[8,8,3]"}, {}, r"model_args\.mask=mask is not a column of the samples, which have image"),
        ({**MASKED, "mask": "float32[8,8]"}, {}, r"mask is float32\[8,8\], expected a class for each pixel"),
        ({**MASKED, "mask": "bytes"}, {}, "mask is bytes, expected .* decode"),
        ({**MASKED, "image": "uint8[*,8,3]"}, {}, r"image is uint8\[\*,8,3\], .*bring all images to one size"),
        (MASKED, {"num_classes": 0}, r"model_args\.classes=0 is too small, expected at least 2; set it"),
    ],
)  # fmt: skip
def test_data_that_a_unet_cannot_take_is_named(
    columns: dict[str, str | None], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        UNet(**{"num_classes": 2, "sample_columns": columns, **given})


def test_masks_that_do_not_fit_are_named() -> None:
    model = UNet(0, MASKED, classes=2, width=4, depth=1)
    images, masks = torch.rand(1, 3, 4, 4), torch.zeros(1, 4, 4).long()
    masks[0, 1, 2] = 7
    with pytest.raises(
        DataError, match=r"mask has the value 7, expected 0 to 1; raise model_args\.classes"
    ):
        model.losses({"image": images, "mask": masks})
    with pytest.raises(DataError, match=r"mask has shape \[1, 4, 3\], expected \[1, 4, 4\]"):
        model.losses({"image": images, "mask": masks[:, :, :3]})


@pytest.mark.parametrize(
    "make", [lambda: ResNet(3, PHOTOS), lambda: UNet(3, MASKED, width=4, depth=1)]
)
def test_weights_are_restored(make: Any) -> None:
    images, model = torch.rand(2, 3, 8, 8), make()
    model(images)  # running statistics are state as well
    other = make()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(images), model.eval()(images))
