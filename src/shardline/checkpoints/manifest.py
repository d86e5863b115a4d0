"""Manifest of a training checkpoint: what its folder contains, and what decides when it is written."""

from pathlib import Path
from typing import Any

import msgspec

MANIFEST = "manifest.json"
POINTER = "latest.json"
BEST = "best-*.safetensors"


class StateFile(msgspec.Struct, frozen=True):
    """Size and BLAKE3 digest of a file."""

    bytes: int
    blake3: str


Digests = dict[str, StateFile]


class Pointer(msgspec.Struct, frozen=True):
    """Content of latest.json: the folder name of the newest training checkpoint."""

    newest: str


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How far the state of a training depends on the training's length.

    Attributes:
        reasons: Reasons why a longer training does not pass through this state, a clause each.
        is_within: Whether the state is within an epoch, and not between two.
        epoch_end: Optimizer steps at the end of this epoch, if the training does not end before.
        planned: Optimizer steps of the whole training.
        is_validated: Whether a validation of the present weights was the last thing before the state.
        of_cut: Reasons why trainings of which one ends within this epoch do not both pass through the state, a clause
            each; None if unknown.
    """

    reasons: list[str]
    is_within: bool
    epoch_end: int
    planned: int
    is_validated: bool = False
    of_cut: list[str] | None = None


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The shorter run whose state a training began with.

    Attributes:
        run: Id of the shorter run.
        identity: Identity of the shorter run.
        step: Optimizer steps in its state.
        seconds: Seconds of training up to its state.
        ranks: Number of ranks that trained up to its state.
        settings: Tables `trainer` and `schedule` of its settings.
    """

    run: str
    identity: str
    step: int
    seconds: float
    ranks: int
    settings: dict[str, Any] = {}

    @property
    def device_hours(self) -> float:
        """Hours of all devices that need not be trained again."""
        return self.seconds * self.ranks / 3600


class StateManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a training checkpoint's manifest.json.

    Attributes:
        identity: Identity of the run.
        step: Number of completed optimizer steps.
        epoch: Number of the current epoch, starting at 0.
        world_size: Number of ranks that wrote the checkpoint.
        best: Files of the best weights at this step, which are beside the folder.
        written: Time of writing (UTC).
        files: Files in the folder.
        bound: How far the state depends on the training's length; None if unknown, for a state of an earlier
            Shardline.
        continued: The shorter run that the training began with; None if it began at step 0.
        milestone: Whether the checkpoint stays when others are removed, see `checkpoint.milestones`.
    """

    identity: str
    step: int
    epoch: int
    world_size: int
    best: Digests
    written: str
    files: Digests
    bound: Bound | None = None
    continued: Continued | None = None
    milestone: bool = False


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings under `runtime.checkpoint`, which do not change results.

    Attributes:
        every_steps: Optimizer steps between two training checkpoints; 0 for never.
        every_min: Minutes between two training checkpoints; 0 for never.
        keep: Number of training checkpoints to keep.
        keep_best: Number of best weights to keep. The best of them are sealed.
        asynchronous: Whether to write while the training continues. Otherwise each save waits for the disk.
    """

    every_steps: int = 0
    every_min: float = 0.0
    keep: int = 2
    keep_best: int = 1
    asynchronous: bool = True


class TrainingCheckpoint(StateManifest, frozen=True, kw_only=True):
    """A training checkpoint: its manifest and the path of its folder."""

    path: Path

    @property
    def bytes(self) -> int:
        """Total size of the files in the folder."""
        return sum(of.bytes for of in self.files.values())
