"""State of each rank besides the model: random generators and sums of metrics.

Lightning saves neither, so a metric that is averaged over an epoch would restart at zero after a
resume in mid-epoch. This state is small, so rank 0 gathers it and writes it to `state.pt`.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection
from torchmetrics import Metric, MetricCollection

from shardline.checkpoints import averaging
from shardline.checkpoints.model_extras import own_buffers, set_buffers
from shardline.core.lightning_compat import (
    LoggedMetric,
    State,
    logged_metrics,
    logging_place,
    make_logged_metric,
    random_states,
    set_logging_place,
    set_random_states,
    set_updates,
    shown_metrics,
    updates_of,
)

_META = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
    "dataloader_idx", "metric_attribute",
)  # fmt: skip
_REDUCTIONS = {"sum": sum, "max": max, "min": min}
_SUMS = ("value", "cumulated_batch_size", "_forward_cache", "has_reset", "_update_count")

_SHOWN = ("callback_metrics", "logged_metrics", "progress_bar_metrics")


def collect(trainer: pl.Trainer, *, is_mid_epoch: bool) -> State:
    """Return this rank's random generators, torchmetrics, metrics and, in mid-epoch, logged sums."""
    mine = {
        "metrics": _metric_states(trainer.lightning_module),
        "logged": _logged(trainer) if is_mid_epoch else None,
        "shown": {name: dict(getattr(trainer, name)) for name in _SHOWN},
        "buffers": own_buffers(trainer, trainer.lightning_module),
        "averages": averaging.collect_own(trainer),
    }
    detached = apply_to_collection(mine, torch.Tensor, lambda tensor: tensor.detach().cpu())
    return {"random": random_numbers(), **detached}


def gather(mine: State, trainer: pl.Trainer) -> list[torch.Tensor]:
    """Return the states of all ranks on rank 0. Each rank calls this.

    A state is sent and saved as the bytes of `torch.save`, since metrics may differ in shape
    between ranks.
    """
    buffer = io.BytesIO()
    torch.save(mine, buffer)
    content = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    if trainer.world_size == 1:
        return [content]
    device = trainer.strategy.root_device
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(trainer.world_size)]
    dist.all_gather(sizes, torch.tensor([len(content)], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(content)] = content
    found = [torch.empty_like(padded) for _ in sizes] if trainer.is_global_zero else None
    dist.gather(padded, found)
    return [one[: int(size)].cpu() for one, size in zip(found or [], sizes, strict=False)]


def restore(trainer: pl.Trainer, saved: Sequence[torch.Tensor]) -> list[str]:
    """Restore the state of this rank.

    With another world size, random generators are not restored, since the next batch seeds them.
    Rank 0 then gets the sums of all ranks.

    Returns:
        A sentence for each part that could not be restored.
    """
    states = [
        torch.load(io.BytesIO(one.numpy().tobytes()), map_location="cpu", weights_only=True)
        for one in saved
    ]
    if len(states) == trainer.world_size:
        mine = states[trainer.global_rank]
        restore_random_numbers(mine["random"])
        _restore_metrics(trainer.lightning_module, [mine["metrics"]])
        _restore_shown(trainer, mine)
        left = set_buffers(trainer.lightning_module, mine.get("buffers", {}))
        left += averaging.restore_own(trainer, mine.get("averages", []))
        return [*left, *_restore_logged(trainer, [mine["logged"]])]
    _restore_shown(trainer, states[0])
    if trainer.global_rank:
        return _restore_logged(trainer, [states[0]["logged"]], is_empty=True)
    return [
        *_restore_metrics(trainer.lightning_module, [state["metrics"] for state in states]),
        *_restore_logged(trainer, [state["logged"] for state in states]),
    ]


def random_numbers() -> State:
    """Return the states of the random generators, with tensors for long lists, which are faster to save."""
    states = random_states()
    kind, keys, *rest = states["numpy"]
    version, words, gauss = states["python"]
    return {
        **states,
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": [version, torch.tensor(words), gauss],
    }


def restore_random_numbers(states: State) -> None:
    """Restore the random generators from the result of `random_numbers`."""
    kind, keys, *rest = states["numpy"]
    version, words, gauss = states["python"]
    states = {
        **states,
        "numpy": (kind, keys.numpy().astype(np.uint32), *rest),
        "python": (version, tuple(words.tolist()), gauss),
    }
    if len(states.get("torch.cuda", ())) != torch.cuda.device_count():
        states.pop("torch.cuda", None)  # another machine: the next batch seeds its generators
    set_random_states(states)


def _metric_states(module: pl.LightningModule) -> State:
    """Return the state of each torchmetrics.Metric, which `state_dict` does not contain by default."""
    for collection in module.modules():
        if isinstance(collection, MetricCollection):
            # this call updates metrics that share a state
            list(collection.values(copy_state=False))
    return {
        name: {"state": dict(metric.metric_state), "updates": updates_of(metric)}
        for name, metric in module.named_modules()
        if isinstance(metric, Metric)
    }


def _restore_metrics(module: pl.LightningModule, states: Sequence[State]) -> list[str]:
    left = []
    # look up by any name: a shared module may have another first name now
    modules = dict(module.named_modules(remove_duplicate=False))
    for name, state in states[0].items():
        metric = modules.get(name)
        if not isinstance(metric, Metric):
            left.append(f"metric {name} is not restored: the model has no such metric yet")
            continue
        for key, value in _moved(state["state"], metric.device).items():
            setattr(metric, key, value)
        set_updates(metric, state["updates"])
        try:
            for other in states[1:]:
                set_updates(metric, updates_of(metric) + other[name]["updates"])
                metric.merge_state(_moved(other[name]["state"], metric.device))
        except (RuntimeError, ValueError, TypeError) as error:
            metric.reset()
            left.append(f"metric {name} ({type(metric).__name__}) is reset: {error}")
    return left


def _moved(value: Any, device: torch.device) -> Any:
    return apply_to_collection(value, torch.Tensor, lambda tensor: tensor.to(device))


def _logged(trainer: pl.Trainer) -> State:
    """Return the sums of `self.log` in this epoch."""
    results = {key: _describe(metric) for key, metric in logged_metrics(trainer).items()}
    return {**logging_place(trainer), "results": results}


def _describe(metric: LoggedMetric) -> State:
    meta = metric.meta
    return {
        "meta": {name: getattr(meta, name) for name in _META},
        "reduction": meta.reduce_fx.__name__,
        "is_builtin": meta.reduce_fx in _REDUCTIONS.values(),
        "sync": [meta.sync.should, meta.sync.rank_zero_only, meta.sync.group is not None],
        "device": metric.value.device.type if metric.is_tensor else "",
        "is_tensor": metric.is_tensor,
        "sums": {
            name: getattr(metric, name)
            for name in _SUMS
            if hasattr(metric, name) and not isinstance(getattr(metric, name), Metric)
        },
    }


def _restore_shown(trainer: pl.Trainer, state: State) -> None:
    """Restore the last values of all metrics: a plateau schedule may read values of an earlier epoch."""
    for name, values in state.get("shown", {}).items():
        shown_metrics(trainer, name).update(_moved(values, trainer.strategy.root_device))


def _restore_logged(
    trainer: pl.Trainer, states: Sequence[State | None], *, is_empty: bool = False
) -> list[str]:
    known = [state for state in states if state is not None]
    if not known:
        return []
    set_logging_place(trainer, known[0])
    left = []
    for key, described in known[0]["results"].items():
        if described["sync"][2]:
            left.append(
                f"the epoch's {key} is reset: its sum over a group of ranks cannot be restored"
            )
            continue
        metric = _result_metric(trainer, described)
        for state in known[1:]:
            _add(metric, state["results"].get(key))
        if is_empty:  # rank 0 has all sums, but every rank must have the metric for the reduction
            metric.reset()
            metric.has_reset = described["sums"]["has_reset"]
        logged_metrics(trainer)[key] = metric
    return left


def _result_metric(trainer: pl.Trainer, described: State) -> LoggedMetric:
    """Recreate a metric as `self.log` would, with its saved state."""
    name = described["reduction"]
    reduction: Any = _REDUCTIONS[name] if described["is_builtin"] else getattr(torch, name)
    syncs, rank_zero_only, _ = described["sync"]
    metric = make_logged_metric(
        trainer, described["meta"], reduction, is_tensor=described["is_tensor"], syncs=syncs,
        rank_zero_only=rank_zero_only,
    )  # fmt: skip
    device = trainer.strategy.root_device if described["device"] != "cpu" else torch.device("cpu")
    for key, value in _moved(described["sums"], device).items():
        setattr(metric, key, value)
    if not described["is_tensor"]:
        metric.value = trainer.lightning_module.get_submodule(metric.meta.metric_attribute or "")
    return metric


def _add(metric: LoggedMetric, other: State | None) -> None:
    """Add the sum of another rank to a metric."""
    if other is None or not metric.is_tensor:
        return  # `_restore_metrics` has merged a torchmetrics.Metric
    value = other["sums"]["value"].to(metric.value)
    if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
        metric.value = metric.meta.reduce_fx(metric.value, value)
        return
    metric.value = metric.value + value
    if metric.meta.is_mean_reduction:
        size = metric.cumulated_batch_size
        metric.cumulated_batch_size = size + other["sums"]["cumulated_batch_size"].to(size)
