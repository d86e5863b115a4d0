"""Checks that a model registers its layers in the same order at each resume and on all ranks."""

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
_UNCOUNTED = "_is_uncounted_by_shardline"
# parts of a state that are restored by name, or do not come from the user
_NOT_LOOKED_AT = {
    "state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "ranks", "model_extras", "registered",
    "nameless",
}  # fmt: skip


class _Saved(TypedDict):
    """Part of a training checkpoint, as JSON: the model at the start, the rest at the time of saving."""

    model: Registered
    optimizers: list[DescribedOptimizer]
    schedules: list[list[Any]]
    callbacks: list[str]


class Arrangement:
    """Recorder of the registration order of a model and its optimizers, and its comparison.

    A training checkpoint contains the registration of the model in the process that began the training, before any
    restore, and that of the optimizers in the process that saved it.
    """

    def __init__(self) -> None:
        self._began = self._here = NOTHING
        self._initial: dict[str, str] = {}
        self._saved: _Saved = {
            "model": NOTHING,
            "optimizers": [],
            "schedules": [],
            "callbacks": [],
        }

    def watch(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Describe the model as soon as it is made. Called in the hook `setup`."""
        is_made_late = is_overridden("configure_model", module)
        last = "configure_model" if is_made_late else "setup"
        after_hook(module, last, partial(self._look, trainer))
        strategy: Any = trainer.strategy
        strategy.load_optimizer_state_dict = self._before(
            trainer, strategy.load_optimizer_state_dict
        )

    def look_before_loading(self, module: pl.LightningModule) -> None:
        """Remember the values of a new model, before weights of another run are loaded into it.

        A resumed training loads no such weights, so its new model is compared with these values.
        """
        self._initial = describe(module)["values"]

    def _look(self, trainer: pl.Trainer) -> None:
        """Describe the new model, and compare it between ranks.

        Raises:
            ConfigError: A rank differs from rank 0. Raised on all ranks.
        """
        self._began = self._here = here = describe(trainer.lightning_module)
        here["values"] |= self._initial
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
        """Compare the new model with the model of a training checkpoint.

        Args:
            checkpoint: Training checkpoint, before anything is restored.
            folder: Folder of the training checkpoint, for messages.
            prints: Whether to print warnings.

        Raises:
            ConfigError: The models differ. The message names the first difference.
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
        """Reject a training checkpoint with the state of a missing callback.

        Raises:
            ConfigError: There is such a state. The message names the callback.
        """
        known = {callback.state_key for callback in _callbacks(trainer)}
        for key in self._saved["callbacks"]:
            if key not in known:
                raise ConfigError(
                    f"training checkpoint {folder} has the state of a callback {key}, but no present callback has this "
                    "state_key; give each callback a state_key that is the same in every process; this change trains "
                    "the run from the start"
                )

    def _before(self, trainer: pl.Trainer, load: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap Lightning's restore of optimizers and schedules, so that states are first sorted."""

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
        """Compare optimizers, schedules and callbacks between ranks, before the first step.

        Raises:
            ConfigError: A rank differs from rank 0, or optimizers cannot be resumed. Raised on all ranks.
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
        """Return the entries to add to `state`, a training checkpoint with the states of callbacks."""
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


def set_uncounted(callback: pl.Callback) -> None:
    """Mark a callback that changes no result: an attempt with it may be resumed without it."""
    setattr(callback, _UNCOUNTED, True)


def is_uncounted(callback: pl.Callback) -> bool:
    """Return whether a callback has the mark of `set_uncounted`."""
    return hasattr(callback, _UNCOUNTED)


def _is_foreign(callback: pl.Callback) -> bool:
    # Shardline's callbacks depend on the settings, and some measure only one attempt
    is_ours = type(callback).__module__.startswith("shardline.")
    return not is_ours and not is_uncounted(callback)


def _cannot_resume(folder: Path | str, trouble: str) -> ConfigError:
    return ConfigError(f"training checkpoint {folder} cannot be resumed: {trouble}; {ONE_ORDER}")


def _refuse_other(rank: int, kind: str, names: tuple[str, str] | None) -> None:
    if names is None:
        return
    raise ConfigError(
        f"rank {rank} has {names[1]} where rank 0 has {names[0]} (the first {kind} that differs), so gradients of "
        f"different parameters would be averaged; {ONE_ORDER}"
    )


def _of_all_ranks(trainer: pl.Trainer, mine: Any) -> list[Any]:
    """Return the values of all ranks, or only one if they are equal. Every rank calls this."""
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
    # a text is faster to copy and read than many small objects
    return json.dumps(record, separators=(",", ":"))


def _by_position(checkpoint: State, parameters: Sequence[Any]) -> str:
    """Return an error if a callback or the model saves a list with one tensor per parameter; empty for none."""
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
