"""The suite's models: one that may end itself, and those whose steps are timed."""

import os
import signal
from typing import Any, TypeVar

import torch
from benchmarks.gpu.turns import Turns
from torch import nn
from torch.nn import functional

from shardline.checkpoints.manager import CheckpointManager
from shardline.training.models.classifier_base import Classifier
from shardline.training.models.gpt import GPT
from shardline.training.models.resnet import ResNet
from shardline.training.stopwatch import Stopwatch

_Kind = TypeVar("_Kind")

# Environment variable, since it may not count in an identity: the step that the first attempt ends at.
KILL_AT = "SHARDLINE_SUITE_KILL_AT"
PAGE_LOCKED = "suite: page_locked="  # what the first training batch is printed behind


class Small(Classifier):
    """A few convolutions with batch norm and dropout; may be killed.

    The loss is so large that the first steps overflow in 16-bit floats: the gradient scaler has lowered its
    scale before the kill.
    """

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, scale: float = 64.0
    ) -> None:
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(
            nn.Conv2d(feature_shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(32, num_classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C] of images [B, channels, height, width]."""
        logits: torch.Tensor = self.head(self.body(features).mean(dim=(2, 3)))
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the scaled loss."""
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return self.scale * loss

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Print whether the first training batch is page-locked."""
        if self.trainer.training and self.global_step == 0:
            print(f"{PAGE_LOCKED}{batch[0].is_pinned()}", flush=True)
        return batch

    def on_train_batch_end(self, *_: Any) -> None:
        """End the process without a word, where it is asked for."""
        if self.global_step == int(os.environ.get(KILL_AT, 0)):
            os.kill(os.getpid(), signal.SIGKILL)


class _InTurns:
    """Trains when it has its turn; batches, loss and optimiser are the model's and the run's."""

    def on_train_start(self) -> None:
        self.turns = Turns(self.device, self._waited_s, self._save)  # type: ignore[attr-defined]
        self.turns.wait()

    def on_train_batch_end(self, *_: Any) -> None:
        self.turns.step_ended()

    def _waited_s(self) -> float:
        return self._callback(Stopwatch).seconds()[
            "data_wait"
        ]  # as the run's own provenance has it

    def _callback(self, kind: type[_Kind]) -> _Kind:
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        return next(one for one in callbacks if isinstance(one, kind))

    def _save(self, *, is_due: bool) -> float:
        """Wait for the write before; save if it is due; returns the seconds that the program stood still."""
        manager, trainer = self._callback(CheckpointManager), self.trainer  # type: ignore[attr-defined]
        if not is_due:
            manager._background.wait()
            return 0.0
        before = manager.seconds
        assert manager.save(trainer), "a turn ended where nothing can be saved"
        return manager.seconds - before


class TimedResNet(_InTurns, ResNet):
    """The shipped ResNet, in turns.

    Args:
        compiled: whether its layers are compiled.
    """

    def __init__(self, num_classes: int, *, compiled: bool = False, **others: Any) -> None:
        super().__init__(num_classes, channels=3, **others)
        if compiled:
            self.body.compile()


class TimedGPT(_InTurns, GPT):
    """The shipped GPT, in turns.

    Args:
        context: tokens that one is predicted from.
        compiled: whether its blocks are compiled, all of them by the same code.
    """

    def __init__(
        self, sample_columns: Any = None, *, compiled: bool = False, **others: Any
    ) -> None:
        super().__init__(sample_columns, **others)
        if compiled:
            for block in self.blocks:
                block.compile()
