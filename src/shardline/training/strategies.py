"""Data-parallel strategies whose gradient sums do not depend on when the training was resumed."""

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

# torch's message, with the indices of the parameters in the list that DDP got
_UNUSED = re.compile(
    r"Expected to have finished reduction.*Parameter indices which did not receive grad for rank \d+: ([\d ]+)",
    re.DOTALL,
)
_NO_TYPE = re.compile(r"Invalid scalar type|Unconvertible NCCL type")
_SHOWN = 5
# types that both gloo and nccl support
_SENT = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64,
}  # fmt: skip


class _SteadyBuckets(DistributedDataParallel):
    """DDP with gradient buckets that are laid out once, before the first step.

    The order in which an all-reduce adds the ranks' values depends on an element's place in its
    bucket. With three or more ranks, this order decides the last bits. DDP lays its buckets out
    again after its first step, so the first step after a resume would add in another order.
    """

    def __init__(self, module: Module, **kwargs: Any) -> None:
        try:
            super().__init__(module, **kwargs)
        except RuntimeError as error:
            raise _of_types(module, error) or error from None
        # lay out the buckets now, as DDP does after its first step
        settle_buckets(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step; the error about missing gradients of the step before names parameters."""
        with self.naming_unused():
            return super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]

    @contextmanager
    def naming_unused(self) -> Iterator[None]:
        """Replace parameter indices by names in torch's error about missing gradients.

        Raises:
            ConfigError: Parameters got no gradient, so ranks would wait for each other forever.
        """
        try:
            yield
        except RuntimeError as error:
            if not (found := _UNUSED.search(str(error))):
                raise
            names = {id(value): name for name, value in self.module.named_parameters()}
            unused = [names[id(self._in_order[int(one)])] for one in reversed(found[1].split())]
            raise ConfigError(
                f"{_listed(unused)} got no gradient in a training step, but strategy=ddp on several ranks expects a "
                "gradient for each parameter; set ddp.find_unused_parameters to true, call requires_grad_(False) on "
                "parameters that are not trained, or use them in the loss"
            ) from None

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        """Return the parameters in reverse order, and whether each has sparse gradients.

        Gradients arrive in about this order, so full buckets are reduced during the rest of the
        backward pass.
        """
        parameters, is_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        self._in_order: list[torch.nn.Parameter] = parameters[::-1]
        return self._in_order, is_sparse[::-1]


def _of_types(module: Module, error: RuntimeError) -> ConfigError | None:
    """Return an error that names the tensors of types that ranks cannot send; None if it is not the cause."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    unsent = [name for name, value in tensors.items() if value.dtype not in _SENT]
    if not (_NO_TYPE.search(str(error)) and unsent):
        return None
    kinds = sorted({str(tensors[name].dtype) for name in unsent})
    return ConfigError(
        f"{_listed(unsent)} has the type {' or '.join(kinds)}, which strategy=ddp cannot send between ranks; use a "
        "type such as torch.int32, torch.uint8 or torch.float32"
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class SteadyDDPStrategy(DDPStrategy):
    """Lightning's DDP strategy, with a resumed training bit-identical to an uninterrupted one."""

    def setup_environment(self) -> None:
        """Join the ranks, once."""
        _join_alone(self.world_size, self._process_group_backend or "gloo")
        super().setup_environment()

    def _setup_model(self, model: Module) -> DistributedDataParallel:
        device_ids = self.determine_ddp_device_ids()
        # on a separate stream, see https://pytorch.org/docs/stable/notes/cuda.html#id5
        with nullcontext() if device_ids is None else torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            return _SteadyBuckets(model, device_ids=device_ids, **self._ddp_kwargs)

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Prepare for a backward pass that the model starts itself."""
        with self._steady.naming_unused():
            super().pre_backward(closure_loss)

    def check_gradients(self) -> None:
        """Reject a step in which some parameters got no gradient, before the next step starts.

        Raises:
            ConfigError: The message names the parameters.
        """
        with self._steady.naming_unused():
            check_gradients_are_summed(self._steady)

    @property
    def _steady(self) -> _SteadyBuckets:
        assert isinstance(self.model, _SteadyBuckets)
        return self.model


class SteadyFSDPStrategy(ModelParallelStrategy):
    """FSDP2 under Lightning: parameters, gradients and optimiser state are sharded over all ranks.

    The strategy runs on CPUs with gloo and on GPUs with nccl. Gradients are summed in one layout
    from the first step on, so a resumed training is bit-identical to an uninterrupted one.
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
                (self.world_size, 1),  # the shape that a user's configure_model expects
                mesh_dim_names=("data_parallel", "tensor_parallel"),
            )
        if self.lightning_module is not None:
            set_device_mesh(self.lightning_module, self._device_mesh)

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard the model, move it to the device, and set up its optimisers."""
        assert self.accelerator is not None
        assert self.lightning_module is not None
        self.accelerator.setup(trainer)
        self.model = shard(self.lightning_module, self.device_mesh["data_parallel"])
        self.lightning_module.to(self.root_device)  # the rest, such as metrics
        self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        self.barrier()

    def on_validation_end(self) -> None:
        """Free parameters that the last validation batch gathered, since no backward pass frees them."""
        self.model.reshard()  # type: ignore[union-attr,operator]

    def lightning_module_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights as DTensors under the module's own names, and unchanged buffers."""
        assert self.lightning_module is not None
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimiser's state, with DTensors for sharded values."""
        return Strategy.optimizer_state(self, optimizer)

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Reject saves by Lightning, which would write unsafe pickles.

        Raises:
            ConfigError: The model itself saves a training checkpoint.
        """
        raise ConfigError(
            "strategy=fsdp: the model saves training checkpoints itself (Trainer.save_checkpoint or ModelCheckpoint), "
            "expected only Shardline's checkpoints (runtime.checkpoint), since no rank has a whole model; remove the "
            "call or callback"
        )

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load this rank's parts of a training checkpoint, which may be of another world size."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only=True)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this rank's parts of the weights."""
        Strategy.load_model_state_dict(self, checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this rank's parts of the optimisers' states."""
        Strategy.load_optimizer_state_dict(self, checkpoint)


def _join_alone(world_size: int, backend: str | None) -> None:
    """Form the process group of a single rank, which needs no address."""
    if world_size == 1 and not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # not in its stub
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
