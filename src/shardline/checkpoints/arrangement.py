"""Holds a training to one arrangement of its model: over resumes, and over ranks before the first step."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from blake3 import blake3
from pytorch_lightning.utilities.model_helpers import is_overridden

from shardline.checkpoints import averaging, optimizers
from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.optimizers import DescribedOptimizer
from shardline.checkpoints.registered import (
    NOTHING,
    ONE_ORDER,
    Registered,
    describe,
    difference,
    first_other,
    moved,
    remarks,
)
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import State

_KEY, _NAMELESS = "registered", "nameless"
# of a state, what is restored by name, or is no user's
_NOT_LOOKED_AT = {
    "state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "ranks", "model_extras", "registered",
    "nameless",
}  # fmt: skip


class _Saved(TypedDict):
    """What a training checkpoint holds, as JSON: the model as it began, the rest as it was saved."""

    model: Registered
    optimizers: list[DescribedOptimizer]
    schedules: list[list[Any]]
    callbacks: list[str]


class Arrangement:
    """Records what the model and its optimisers register, and compares it.

    A training checkpoint holds what the model had registered in the process that began the training, before anything
    was restored, and what the optimisers of the process that saved it had.
    """

    def __init__(self) -> None:
        self._began = self._here = NOTHING
        self._saved: _Saved = {
            "model": NOTHING,
            "optimizers": [],
            "schedules": [],
            "callbacks": [],
        }

    def watch(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Look at the model once it is made, on its way into a training; called in the hook `setup`."""
        is_made_late = is_overridden("configure_model", module)
        last = "configure_model" if is_made_late else "setup"
        after_hook(module, last, partial(self._look, trainer))
        strategy: Any = trainer.strategy
        strategy.load_optimizer_state_dict = self._before(
            trainer, strategy.load_optimizer_state_dict
        )

    def _look(self, trainer: pl.Trainer) -> None:
        """Record the model as it is made.

        Raises:
            ConfigError: on all ranks, if one of them registers something else than rank 0.
        """
        self._began = self._here = here = describe(trainer.lightning_module)
        kinds = {"parameter": "parameters", "buffer": "buffers", "module with hooks": "watched"}
        compared = {
            "parameters": here["parameters"],
            "buffers": here["buffers"],
            "watched": here["watched"],
            "values": here["values"],
        }
        first, *others = _of_all_ranks(trainer, compared)
        for rank, other in enumerate(others, start=1):
            for kind, key in kinds.items():
                _refuse_other(rank, kind, first_other(first[key], other[key]))
            if trouble := moved(first["values"], other["values"]):
                raise ConfigError(
                    f"ranks 0 (there) and {rank} (here) differ: {trouble}; {ONE_ORDER}"
                )

    def check(self, checkpoint: State, folder: Path, *, prints: bool) -> None:
        """Compare the model as it is made here with the one that a training checkpoint is of.

        Args:
            checkpoint: as it is on disk; nothing of it is restored yet.
            folder: of the training checkpoint, for messages.

        Raises:
            ConfigError: names the first thing that differs.
        """
        saved = self._saved = json.loads(checkpoint[_KEY])
        self._began = saved["model"]
        trouble = difference(self._began, self._here)
        found = remarks(self._began, self._here)
        if not trouble and self._is_in_another_order():
            trouble = _by_position(checkpoint, self._began["parameters"])
        if trouble:
            raise _cannot_resume(folder, trouble)
        for sentence in found if prints else ():
            print(f"warning: {sentence}", flush=True)

    def _is_in_another_order(self) -> bool:
        return bool(first_other(self._began["parameters"], self._here["parameters"]))

    def check_callbacks(self, trainer: pl.Trainer, folder: Path | None) -> None:
        """Refuse a training checkpoint with the state of a callback that is not there.

        Raises:
            ConfigError: names the callback.
        """
        known = {callback.state_key for callback in _callbacks(trainer)}
        for key in self._saved["callbacks"]:
            if key not in known:
                raise ConfigError(
                    f"training checkpoint {folder} has the state of a callback {key}, and no callback with this "
                    "state_key is there now; give each callback a state_key that is the same in every process, "
                    "which trains the run from the start"
                )

    def _before(self, trainer: pl.Trainer, load: Callable[[Any], None]) -> Callable[[Any], None]:
        """Have states of optimisers and schedules come in the present order when Lightning restores them."""

        def load_in_order(checkpoint: State) -> None:
            folder = f"of step {checkpoint['global_step']}"
            averaging.resume_schedules(trainer, checkpoint)
            trouble = optimizers.bring_into_order(
                checkpoint, self._saved["optimizers"], self._saved["schedules"], trainer
            )
            if trouble:
                raise _cannot_resume(folder, trouble)
            here = optimizers.nameless(trainer)
            for key, value in checkpoint.get(_NAMELESS, {}).items():
                here[key].data.copy_(value)
            load(checkpoint)

        return load_in_order

    def begin(self, trainer: pl.Trainer) -> None:
        """Compare optimisers and callbacks over the ranks, before the first step.

        Raises:
            ConfigError: on all ranks, where one differs from rank 0, or optimisers cannot be resumed.
        """
        optimizers.nameless(trainer)
        described = optimizers.describe(trainer)
        groups = [
            [*form, i, k]
            for i, one in enumerate(described)
            for k, group in enumerate(one["groups"])
            for form in group
        ]
        callbacks = [[type(one).__qualname__] for one in _callbacks(trainer)]
        schedules = optimizers.describe_schedules(trainer)
        compared = {
            "parameter in the optimizers": groups,
            "schedule": schedules,
            "callback": callbacks,
        }
        first, *others = _of_all_ranks(trainer, compared)
        for rank, other in enumerate(others, start=1):
            for kind in compared:
                _refuse_other(rank, kind, first_other(first[kind], other[kind]))

    def collect(self, trainer: pl.Trainer, state: State) -> State:
        """Return what a training checkpoint holds of this.

        Args:
            state: the training checkpoint, with the states of callbacks.
        """
        foreign = [one.state_key for one in _callbacks(trainer) if _is_foreign(one)]
        registered: _Saved = {
            "model": self._began,
            "optimizers": optimizers.describe(trainer),
            "schedules": optimizers.describe_schedules(trainer),
            "callbacks": [key for key in foreign if key in state["callbacks"]],
        }
        found: State = {_KEY: _dumped(registered)}
        if nameless := optimizers.nameless(trainer):
            found[_NAMELESS] = nameless
        return found


def _callbacks(trainer: pl.Trainer) -> list[pl.Callback]:
    found: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # not declared there
    return found


def _is_foreign(callback: pl.Callback) -> bool:
    # Shardline's own follow the settings; some measure one attempt alone
    return not type(callback).__module__.startswith("shardline.")


def _cannot_resume(folder: Path | str, trouble: str) -> ConfigError:
    return ConfigError(f"training checkpoint {folder} cannot be resumed: {trouble}; {ONE_ORDER}")


def _refuse_other(rank: int, kind: str, names: tuple[str, str] | None) -> None:
    if names is None:
        return
    raise ConfigError(
        f"rank {rank} has {names[1]} where rank 0 has {names[0]} (the first {kind} that differs), so that unlike "
        f"gradients would be averaged; {ONE_ORDER}"
    )


def _of_all_ranks(trainer: pl.Trainer, mine: Any) -> list[Any]:
    """Return what all ranks have, by rank, or one if it is the same everywhere; every rank calls this."""
    if trainer.world_size == 1:
        return [mine]
    text, device = _dumped(mine), trainer.strategy.root_device
    digest = torch.tensor([*blake3(text.encode()).digest()], dtype=torch.uint8, device=device)
    digests = [torch.empty_like(digest) for _ in range(trainer.world_size)]
    dist.all_gather(digests, digest)
    if all(torch.equal(one, digest) for one in digests):
        return [mine]
    texts: list[str] = [""] * trainer.world_size
    dist.all_gather_object(texts, text)
    return [json.loads(one) for one in texts]


def _dumped(record: Any) -> str:
    # as text it is soon copied and read
    return json.dumps(record, separators=(",", ":"))


def _by_position(checkpoint: State, parameters: Sequence[Any]) -> str:
    """Name a list of tensors, one for each parameter, that a callback or the model keeps by their order."""
    shapes = [shape for _, _, shape, _ in parameters]
    trained = [shape for _, _, shape, is_trained in parameters if is_trained]
    own = {name: value for name, value in checkpoint.items() if name not in _NOT_LOOKED_AT}
    for path, value in _lists_of_tensors({**own, "callbacks": checkpoint["callbacks"]}):
        if [[*one.shape] for one in value] in (shapes, trained):
            return f"the parameters are in another order, and {path} has a tensor for each by position, not by name"
    return ""


def _lists_of_tensors(value: Any, path: str = "") -> Iterator[tuple[str, list[torch.Tensor]]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _lists_of_tensors(inner, f"{path}/{key}" if path else f"{key}")
    elif isinstance(value, list | tuple) and value:
        if all(isinstance(one, torch.Tensor) for one in value):
            yield path, [*value]
        for i, inner in enumerate(value):
            yield from _lists_of_tensors(inner, f"{path}/{i}")
