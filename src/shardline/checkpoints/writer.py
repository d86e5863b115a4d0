"""Copying training states, and bringing them to disk beside the training, one at a time."""

import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from safetensors.torch import save

from shardline.checkpoints.folder import Digests, describe, saving
from shardline.core.errors import ConfigError
from shardline.core.files import sync_file, write_bytes, writing
from shardline.core.lightning_compat import State

STATE = "state.pt"

Weights = dict[str, torch.Tensor]


class Snapshot:
    """Copies states of one shape into the same memory, again and again.

    New memory would have to be mapped page by page at each save, which takes longer than the
    copy. A GPU's tensors are copied to page-locked memory on a stream of their own; the program
    continues, and the GPU's next kernels wait for the copy alone.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._copied: dict[tuple[Any, ...], torch.Tensor] = {}
        self._stream: Any = None
        self._done: Any = None

    def take(self, state: Any) -> Any:
        """Return the state with every tensor copied; the copy before this one is overwritten."""
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
        now.wait_event(self._done)  # what comes next may change what is being copied
        return copy

    def wait(self) -> None:
        """Return when the copy is complete."""
        if self._done is not None:
            self._done.synchronize()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        # two names of one tensor stay one
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
    """Does one piece of work at a time in a thread, and hands its error to who asks next."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._work: Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether work is going on."""
        return self._work is not None and not self._work.done()

    def start(self, work: Callable[[], object]) -> None:
        """Begin; the work before must have been waited for."""
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._work = self._pool.submit(work)

    def check(self) -> None:
        """Raise the error of work that has failed."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is going on; raise the error of work that has failed."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def close(self) -> None:
        """Let the work end, whatever comes of it, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = self._work = None


@dataclass
class StateWriter:
    """Writes states and the best weights that they name.

    Attributes:
        folder: `checkpoints/` of a run's folder in the store.
        identity: of the run.
        keep: states that stay.
        known: size and digest of the best weights that are on disk.
    """

    folder: Path
    identity: str
    keep: int
    known: Digests = field(default_factory=dict)
    _is_proven: bool = False

    def write(
        self, state: State, *, world_size: int, new_best: Mapping[str, Weights],
        best: set[str], beside: Callable[[Path], Digests] | None = None,
    ) -> None:  # fmt: skip
        """Write new best weights, then the state that names them.

        Args:
            state: as Lightning dumps it.
            new_best: weights by file name.
            best: file names of the weights that the state knows.
            beside: writes what else belongs to the state, and returns its size and digest.

        Raises:
            ConfigError: the state holds what `weights_only=True` refuses to read.
            DataError: it cannot be written.
        """
        for name, weights in new_best.items():
            # one key of metadata: safetensors writes several in no fixed order
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
        ) as scratch:
            if beside is not None:
                known |= beside(scratch)
            with (scratch / STATE).open("wb") as file:
                torch.save(state, file)
            self._prove(scratch / STATE)

    def _sync_records(self) -> None:
        """Bring the metrics of before this state to disk: a training that resumes from it has no others."""
        records = self.folder.parent / "metrics.jsonl"
        with writing(records), suppress(FileNotFoundError):
            sync_file(records)

    def _prove(self, path: Path) -> None:
        """Read the first state back: a state that cannot be resumed is reported before hours are spent."""
        if self._is_proven:
            return
        try:
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            reason = next(
                (line for line in str(error).splitlines() if "global" in line), str(error)
            )
            raise ConfigError(
                "the model's training state could not be resumed, since it holds more than tensors and plain "
                f"values ({reason.strip()}); keep such objects out of buffers, callbacks and on_save_checkpoint"
            ) from None
        self._is_proven = True
