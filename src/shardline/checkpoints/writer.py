"""Copying of training states, and writing them to disk in a thread."""

import io
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from safetensors.torch import save

from shardline.checkpoints.folder import describe, saving
from shardline.checkpoints.manifest import Bound, Continued, Digests
from shardline.core.errors import ConfigError
from shardline.core.files import sync_file, write_bytes, writing
from shardline.core.lightning_compat import State

STATE = "state.pt"

Weights = dict[str, torch.Tensor]


class Snapshot:
    """Copies of training states in reused memory.

    Mapping new memory at each save would take longer than the copy. GPU tensors are copied to
    page-locked memory on a separate stream. The program continues meanwhile; only the next
    kernels on the GPU wait for the copy.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._copied: dict[tuple[Any, ...], torch.Tensor] = {}
        self._stream: Any = None
        self._done: Any = None

    def take(self, state: Any) -> Any:
        """Return a copy of the state, which overwrites the previous copy."""
        self._used = 0
        self._copied.clear()
        self._done = None
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return apply_to_collection(state, torch.Tensor, self._copy)
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        now = torch.cuda.current_stream()
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            copy = apply_to_collection(state, torch.Tensor, self._copy)
        self._done = self._stream.record_event()
        now.wait_event(self._done)  # the next kernels may change the tensors
        return copy

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self._done is not None:
            self._done.synchronize()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        # a tensor with two names is copied once
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in self._copied:
            return self._copied[key]
        buffer = self._buffer(tensor)
        buffer.copy_(tensor, non_blocking=True)
        self._copied[key] = buffer
        return buffer

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        index, self._used = self._used, self._used + 1
        if index < len(self._buffers):
            known = self._buffers[index]
            if known.shape == tensor.shape and known.dtype == tensor.dtype:
                return known
        new = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._buffers[index : index + 1] = [new]
        return new


class Background:
    """A thread that runs one function at a time, and reports its error at the next call."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._work: Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a function is running."""
        return self._work is not None and not self._work.done()

    def start(self, work: Callable[[], object]) -> None:
        """Start a function. Call `wait` for the previous function first."""
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._work = self._pool.submit(work)

    def check(self) -> None:
        """Raise the error of a function that has failed."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until no function is running, and raise its error if it failed."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def close(self) -> None:
        """Wait until no function is running, ignore its error, and stop the thread."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = self._work = None


@dataclass
class StateWriter:
    """Writer of training checkpoints and best weights.

    Attributes:
        folder: `checkpoints/` in the run's folder of the store.
        identity: Identity of the run.
        keep: Number of training checkpoints to keep.
        known: Size and digest of the best weights on disk.
        continued: The shorter run that the training began with.
    """

    folder: Path
    identity: str
    keep: int
    known: Digests = field(default_factory=dict)
    continued: Continued | None = None
    _is_proven: bool = False

    def write(
        self, state: State, *, world_size: int, new_best: Mapping[str, Weights],
        best: set[str], beside: Callable[[Path], Digests] | None = None, milestone: bool = False,
        bound: Bound | None = None,
    ) -> None:  # fmt: skip
        """Write new best weights, then a training checkpoint that lists them.

        Args:
            state: Checkpoint from Lightning.
            world_size: Number of ranks.
            new_best: New best weights by file name.
            best: File names of all best weights at this step.
            beside: Function that writes further files of the checkpoint and returns their digests.
            bound: How far the state depends on the training's length.
            milestone: Whether the checkpoint stays when others are removed.

        Raises:
            ConfigError: `torch.load` with `weights_only=True` cannot read the state.
            DataError: The checkpoint cannot be written.
        """
        for name, weights in new_best.items():
            # a single key: safetensors writes several keys of metadata in random order
            write_bytes(self.folder / name, save(weights, metadata={"identity": self.identity}))
            self.known[name] = describe(self.folder / name)
        known: Digests = {}
        self._sync_records()
        with saving(
            self.folder,
            step=state["global_step"],
            epoch=state["epoch"],
            identity=self.identity,
            world_size=world_size,
            keep=self.keep,
            best={name: self.known[name] for name in sorted(best)},
            known=known,
            bound=bound,
            continued=self.continued,
            milestone=milestone,
        ) as scratch:
            if beside is not None:
                known |= beside(scratch)
            with (scratch / STATE).open("wb") as file:
                self._save(state, file)
            self._prove(state, scratch / STATE)

    def _sync_records(self) -> None:
        """Sync the metrics before this state to disk, since a resumed training does not write them again."""
        records = self.folder.parent / "metrics.jsonl"
        with writing(records), suppress(FileNotFoundError):
            sync_file(records)

    def _save(self, state: State, file: IO[bytes]) -> None:
        try:
            torch.save(state, file)
        except (
            pickle.PicklingError,
            AttributeError,
            TypeError,
        ) as error:  # of a local function or a lock
            raise _cannot_resume(state, str(error)) from None

    def _prove(self, state: State, path: Path) -> None:
        """Read the first state back, to report a state that cannot be resumed early in the training."""
        if self._is_proven:
            return
        try:
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            lines = str(error).splitlines()
            raise _cannot_resume(
                state, next((one for one in lines if "global" in one), str(error))
            ) from None
        self._is_proven = True


def _cannot_resume(state: State, reason: str) -> ConfigError:
    return ConfigError(
        f"the model's training state cannot be resumed ({_owner(state)}{reason.strip()}), expected only tensors and "
        "plain values; remove other objects from buffers, states of callbacks and on_save_checkpoint"
    )


def _owner(state: State) -> str:
    """Return the beginning of a message that names the callback or key whose value is no plain value; or nothing."""
    parts = {f"state of the callback {key}": one for key, one in state["callbacks"].items()}
    parts |= {
        f"on_save_checkpoint sets {key}": one for key, one in state.items() if key != "callbacks"
    }
    for name, value in parts.items():
        content = io.BytesIO()
        try:
            torch.save(value, content)
            torch.load(io.BytesIO(content.getvalue()), map_location="cpu", weights_only=True)
        except (pickle.PickleError, AttributeError, TypeError):
            return f"{name}: "
    return ""
