"""Data-parallel training whose sums do not depend on when the training was started."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import (
    check_gradients_are_summed,
    set_device_mesh,
    settle_buckets,
)
from shardline.training.sharding import shard

# torch's own words, and the parameters' places in the list that DDP was given
_UNUSED = re.compile(
    r"Expected to have finished reduction.*Parameter indices which did not receive grad for rank \d+: ([\d ]+)",
    re.DOTALL,
)
_NO_TYPE = re.compile(r"Invalid scalar type|Unconvertible NCCL type")
_SHOWN = 5
# what both gloo and nccl send
_SENT = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64,
}  # fmt: skip


class _SteadyBuckets(DistributedDataParallel):
    """Sums gradients in buckets that are laid out once, before the first step.

    An all-reduce adds the ranks' values in an order that depends on where in its
    bucket an element lies, which decides the last bits from three ranks on. DDP lays
    its buckets out again after its first step, so that the first step after a resume
    would add in another order than the same step of an uninterrupted training.
    """

    def __init__(self, module: Module, **kwargs: Any) -> None:
        try:
            super().__init__(module, **kwargs)
        except RuntimeError as error:
            raise _of_types(module, error) or error from None
        # as DDP does after its first step, and, for ranks that have run out of data, before
        settle_buckets(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do a step, or name the parameters that the step before gave no gradient."""
        with self.naming_unused():
            return super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]

    @contextmanager
    def naming_unused(self) -> Iterator[None]:
        """Name the parameters that torch's error gives the numbers of.

        Raises:
            ConfigError: a step has left out parameters, so that ranks would wait for each other for ever.
        """
        try:
            yield
        except RuntimeError as error:
            if not (found := _UNUSED.search(str(error))):
                raise
            names = {id(value): name for name, value in self.module.named_parameters()}
            unused = [names[id(self._in_order[int(one)])] for one in reversed(found[1].split())]
            raise ConfigError(
                f"{_listed(unused)} got no gradient in a training step, and strategy=ddp on several ranks expects one "
                "for each parameter; set ddp.find_unused_parameters to true, or call requires_grad_(False) on "
                "parameters that are not trained, or use them in the loss"
            ) from None

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        """Return parameters, and which have sparse gradients, the last first.

        Gradients arrive in about this order, so that full buckets are sent off during
        the rest of the backward pass.
        """
        parameters, is_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        self._in_order: list[torch.nn.Parameter] = parameters[::-1]
        return self._in_order, is_sparse[::-1]


def _of_types(module: Module, error: RuntimeError) -> ConfigError | None:
    """Return what to say where ranks cannot send each other a tensor of the model."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    unsent = [name for name, value in tensors.items() if value.dtype not in _SENT]
    if not (_NO_TYPE.search(str(error)) and unsent):
        return None
    kinds = sorted({str(tensors[name].dtype) for name in unsent})
    return ConfigError(
        f"{_listed(unsent)} has the type {' or '.join(kinds)}, which ranks cannot send each other (strategy=ddp); use "
        "a type such as torch.int32, torch.uint8 or torch.float32"
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class SteadyDDPStrategy(DDPStrategy):
    """Lightning's DDP, but a resumed training ends bit-identical to an uninterrupted one."""

    def setup_environment(self) -> None:
        """Join the ranks, once."""
        _join_alone(self.world_size, self._process_group_backend or "gloo")
        super().setup_environment()

    def _setup_model(self, model: Module) -> DistributedDataParallel:
        device_ids = self.determine_ddp_device_ids()
        # on a stream of its own, see https://pytorch.org/docs/stable/notes/cuda.html#id5
        with nullcontext() if device_ids is None else torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            return _SteadyBuckets(model, device_ids=device_ids, **self._ddp_kwargs)

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Prepare for a backward pass that the model starts itself."""
        with self._steady.naming_unused():
            super().pre_backward(closure_loss)

    def check_gradients(self) -> None:
        """Refuse a step that gave some parameters no gradient, before another step begins.

        Raises:
            ConfigError: names them.
        """
        with self._steady.naming_unused():
            check_gradients_are_summed(self._steady)

    @property
    def _steady(self) -> _SteadyBuckets:
        assert isinstance(self.model, _SteadyBuckets)
        return self.model


class SteadyFSDPStrategy(ModelParallelStrategy):
    """FSDP2 under Lightning: parameters, gradients and optimiser state are sharded over all ranks.

    On CPUs over gloo as on GPUs over nccl. Each shard's gradients are summed in one layout
    from the first step on, so that a resumed training ends bit-identical to an uninterrupted one.
    """

    lightning_restore_optimizer = True

    def __init__(self, environment: ClusterEnvironment, backend: str, timeout: timedelta) -> None:
        super().__init__(process_group_backend=backend, timeout=timeout)
        self.cluster_environment = environment

    def setup_environment(self) -> None:
        """Join the ranks, once."""
        _join_alone(self.world_size, self._process_group_backend)
        if self._device_mesh is None:
            self._setup_distributed()
            self._device_mesh = init_device_mesh(
                self.root_device.type,
                (self.world_size, 1),  # in the form that a user's configure_model expects
                mesh_dim_names=("data_parallel", "tensor_parallel"),
            )
        if self.lightning_module is not None:
            set_device_mesh(self.lightning_module, self._device_mesh)

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard the model unit by unit, each on its way to the device, and make its optimisers."""
        assert self.accelerator is not None
        assert self.lightning_module is not None
        self.accelerator.setup(trainer)
        self.model = shard(self.lightning_module, self.device_mesh["data_parallel"])
        self.lightning_module.to(self.root_device)  # what is no parameter, such as metrics
        self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        self.barrier()

    def on_validation_end(self) -> None:
        """Free what the last validation batch left gathered, which no backward pass frees."""
        self.model.reshard()  # type: ignore[union-attr,operator]

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return weights as DTensors under the module's own names, and buffers as they are."""
        assert self.lightning_module is not None
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimiser's state, DTensors for what belongs to a shard."""
        return Strategy.optimizer_state(self, optimizer)

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Refuse: Lightning's own way of writing shards pickles what it cannot read safely.

        Raises:
            ConfigError: a callback of the model's own saves training checkpoints.
        """
        raise ConfigError(
            "strategy=fsdp: the model saves training checkpoints itself (Trainer.save_checkpoint, ModelCheckpoint), "
            "which holds no whole model here; drop it, since the run saves its own (runtime.checkpoint)"
        )

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Return a training checkpoint of any world size, with this rank's parts."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only=True)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this rank's parts of the weights."""
        Strategy.load_model_state_dict(self, checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this rank's parts of the optimisers' states."""
        Strategy.load_optimizer_state_dict(self, checkpoint)


def _join_alone(world_size: int, backend: str | None) -> None:
    """Form the process group of a world of one, which needs no address."""
    if world_size == 1 and not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # not in its stub
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
