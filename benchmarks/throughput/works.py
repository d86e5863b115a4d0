"""What is trained: a config for Shardline, and the same model and shapes for a bare loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.throughput.turns import Turns

from shardline.training.models.gpt import GPT
from shardline.training.models.resnet import ResNet

CLASSES = 10
PHOTO_SIZE, CROP = (500, 375), 224
PHOTOS = 1200  # an epoch of many steps: what its end costs is not looked at
TEXT_BYTES = 2_000_000


class _InTurns:
    """Trains when it has its turn; batches, loss and optimiser are the model's and the run's."""

    def on_train_start(self) -> None:
        self.turns = Turns()
        self.turns.wait()

    def on_train_batch_end(self, *_: Any) -> None:
        self.turns.step_ended()


class TimedResNet(_InTurns, ResNet):
    """The shipped ResNet, in turns."""


class TimedGPT(_InTurns, GPT):
    """The shipped GPT, in turns."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model and its data.

    Attributes:
        model: class that Shardline trains, and the bare loop the one below it.
        sample: what a sample is called.
        batch: samples of a step.
        samples: what counts in a sample: 1 image, or so many tokens.
        steps: counted in a turn.
        source: of the dataset.
        data: settings of the run.
        model_args: of both.
        arguments: what the bare loop's model is made with besides.
        make: returns the bare loop's rows, in memory: inputs and targets.
    """

    model: type
    sample: str
    batch: int
    steps: int
    source: dict[str, Any]
    make: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    samples: int = 1
    data: dict[str, Any] = field(default_factory=dict)
    model_args: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)


def _images(size: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(PHOTOS, 3, size, size), torch.randint(0, CLASSES, (PHOTOS,))

    return make


def _tokens() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 256, (TEXT_BYTES // 256, 256))
    return tokens[:, :-1], tokens[:, 1:]


_FLAT = {"stem": "large", "channels": 3}
WORKS: dict[str, Work] = {
    "resnet18, pixels": Work(
        model=TimedResNet, sample="images", batch=8, steps=10,
        source={"type": "image_folder", "files": ["photos"], "size": [64, 64]},
        data={"normalize": "global"}, make=_images(64),
        model_args={"depth": 18, **_FLAT}, arguments={"num_classes": CLASSES},
    ),
    "resnet50, photos": Work(
        model=TimedResNet, sample="images", batch=2, steps=4,
        source={"type": "image_folder", "files": ["photos"], "decode": "at_read"},
        data={
            "normalize": "none",
            "transform": [{"type": "random_resized_crop", "size": CROP}, "flip", "normalize"],
            "eval_transform": [{"type": "resize", "size": 256}, {"type": "center_crop", "size": CROP}, "normalize"],
        },
        make=_images(CROP), model_args={"depth": 50, **_FLAT}, arguments={"num_classes": CLASSES},
    ),
    "gpt": Work(
        model=TimedGPT, sample="tokens", batch=8, samples=256, steps=10,
        source={"type": "text", "files": ["text.txt"], "end": "\n"},
        data={"pack": {"column": "tokens", "length": 256}}, make=_tokens,
        model_args={"vocab": 256, "context": 256, "layers": 4, "heads": 4, "width": 128, "dropout": 0.0},
    ),
}  # fmt: skip


def write_files(folder: Path) -> None:
    """Write photos in a folder per class, and a text."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(PHOTOS):
        place = folder / f"photos/class-{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(generator.integers(0, 255, (15, 20, 3), dtype=np.uint8))
        clouds = np.asarray(small.resize(PHOTO_SIZE, Image.Resampling.BICUBIC), np.float32)
        noisy = clouds + generator.normal(0, 15, (*clouds.shape[:2], 1))
        photo = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        photo.save(place / f"{number:03}.jpg", quality=90)
    letters = generator.integers(97, 123, TEXT_BYTES, dtype=np.uint8)
    letters[generator.integers(0, TEXT_BYTES, TEXT_BYTES // 50)] = ord("\n")
    (folder / "text.txt").write_bytes(letters.tobytes())
