"""Restoring the states of optimizers and schedules by parameter name.

torch restores by position: the state of the third parameter goes to the third parameter of this process. This module
first sorts a state into the present order. Within a group, the parameters of the optimizer are sorted like the state,
so that sums over all parameters, such as a gradient norm, always add in the same order.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch

from shardline.checkpoints.registered import Form, form_of, names_of
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import State

# class name, and forms of the parameters in each group
DescribedOptimizer = TypedDict("DescribedOptimizer", {"class": str, "groups": list[list[Form]]})
# lists in the states of torch's schedules that have an item per parameter group
_PER_GROUP = {
    "base_lrs", "_last_lr", "min_lrs", "max_lrs", "base_momentums", "max_momentums", "lr_lambdas",
}  # fmt: skip


def describe(trainer: pl.Trainer) -> list[DescribedOptimizer]:
    """Return the class of each optimizer, and the forms of the parameters in each group."""
    names = names_of(trainer.lightning_module)
    return [
        {
            "class": type(optimizer).__qualname__,
            "groups": [
                [form_of(p, names.get(id(p), "")) for p in group["params"]]
                for group in optimizer.param_groups
            ],
        }
        for optimizer in trainer.optimizers
    ]


def describe_schedules(trainer: pl.Trainer) -> list[list[Any]]:
    """Return the properties that distinguish schedules: class, index of the optimizer, and when they step."""
    places = {id(optimizer): i for i, optimizer in enumerate(trainer.optimizers)}
    return [
        [
            type(config.scheduler).__qualname__,
            places.get(id(getattr(config.scheduler, "optimizer", None)), -1),
            config.interval, config.frequency, config.monitor, config.name,
        ]
        for config in trainer.lr_scheduler_configs
    ]  # fmt: skip


def nameless(trainer: pl.Trainer) -> dict[str, torch.Tensor]:
    """Return the parameters that only optimizers have, by type and shape. No `state_dict` contains them.

    Raises:
        ConfigError: Two of these parameters have the same type and shape.
    """
    names, found = names_of(trainer.lightning_module), dict[str, torch.Tensor]()
    for number, optimizer in enumerate(trainer.optimizers):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            key = _spelt(form_of(parameter, ""))
            if id(parameter) in names or found.get(key) is parameter:
                continue
            if key in found:
                raise ConfigError(
                    f"optimizer {number} ({type(optimizer).__qualname__}) has two parameters of {key} that are not "
                    "registered in the model, so a resume cannot distinguish them; register them in the "
                    "model (nn.Parameter, nn.ParameterList, or nn.ModuleList instead of a plain list)"
                )
            found[key] = parameter
    return found


def bring_into_order(
    checkpoint: State, saved: Sequence[DescribedOptimizer], schedules: Sequence[Sequence[Any]],
    trainer: pl.Trainer,
) -> str:  # fmt: skip
    """Sort the states of optimizers and schedules in a training checkpoint into the present order.

    Args:
        checkpoint: Training checkpoint; changed in place.
        saved: Result of `describe` in the process that saved the checkpoint.
        schedules: Result of `describe_schedules` in that process.
        trainer: Trainer with the present optimizers.

    Returns:
        The first difference that prevents a resume, or an empty text on success.
    """
    here = describe(trainer)
    sources = _matched([_key(one) for one in saved], [_key(one) for one in here])
    if sources is None or len(saved) != len(here):
        return _first_difference(saved, here)
    orders = [_group_order(saved[j], here[i]) for i, j in enumerate(sources)]
    states: list[Any] = checkpoint["optimizer_states"]
    checkpoint["optimizer_states"] = [
        _in_order(states[j], order) for j, order in zip(sources, orders, strict=True)
    ]
    for i, (j, order) in enumerate(zip(sources, orders, strict=True)):
        _sort_parameters(trainer, i, [saved[j]["groups"][k] for k in order])
    now = describe_schedules(trainer)
    of_saved = [[kind, j, *rest] for kind, j, *rest in schedules]
    of_now = [[kind, sources[i] if i >= 0 else i, *rest] for kind, i, *rest in now]
    places = _matched(of_saved, of_now)
    if places is None or len(schedules) != len(now):
        return f"the learning rate schedules were {_kinds(schedules)} and are now {_kinds(now)}"
    found = []
    for config, (_, i, *_), j in zip(trainer.lr_scheduler_configs, now, places, strict=True):
        state = checkpoint["lr_schedulers"][j]
        if i >= 0 and orders[i] != sorted(orders[i]):
            if trouble := unknown_list(config.scheduler, state, len(orders[i])):
                return trouble
            state = _schedule_in_order(state, orders[i])
        found.append(state)
    checkpoint["lr_schedulers"] = found
    return ""


def _spelt(form: Form) -> str:
    return f"{form[0]} {form[1]} {form[2]}".strip()


def _key(described: DescribedOptimizer) -> Any:
    return described["class"], sorted(_group_key(group) for group in described["groups"])


def _group_key(group: Sequence[Form]) -> list[str]:
    return sorted(map(_spelt, group))


def _matched(saved: Sequence[Any], here: Sequence[Any]) -> list[int] | None:
    """Return the index of an equal saved item for each item, the same index if possible; None if one is missing."""
    left, found = {*range(len(saved))}, []
    for i, key in enumerate(here):
        equal = [j for j in sorted(left, key=lambda j: (j != i, j)) if saved[j] == key]
        if not equal:
            return None
        found.append(equal[0])
        left.discard(equal[0])
    return found


def _group_order(saved: DescribedOptimizer, here: DescribedOptimizer) -> list[int]:
    order = _matched(*([_group_key(group) for group in one["groups"]] for one in (saved, here)))
    assert order is not None  # the keys of the optimisers are equal
    return order


def _in_order(state: State, order: Sequence[int]) -> State:
    if [*order] == sorted(order):
        return state
    groups = state["param_groups"]  # the parameter numbers in them are the keys of the rest
    return {**state, "param_groups": [groups[k] for k in order]}


def _sort_parameters(trainer: pl.Trainer, place: int, groups: Sequence[Sequence[Form]]) -> None:
    names = names_of(trainer.lightning_module)
    for group, forms in zip(trainer.optimizers[place].param_groups, groups, strict=True):
        by_form = {_spelt(form_of(p, names.get(id(p), ""))): p for p in group["params"]}
        group["params"][:] = [by_form[_spelt(form)] for form in forms]  # the list is shared


def _kinds(schedules: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{kind} of optimizer {place}" for kind, place, *_ in schedules) or "none"


def unknown_list(scheduler: Any, state: State, num_groups: int) -> str:
    """Return an error if a schedule that is not torch's has a list with as many items as there are groups."""
    if type(scheduler).__module__.startswith("torch."):
        return ""
    for key, value in state.items():
        is_scalar = isinstance(value, torch.Tensor) and not value.ndim
        if is_scalar or key in _PER_GROUP or not isinstance(value, list | tuple | torch.Tensor):
            continue
        if len(value) == num_groups:
            return (
                f"the optimizer's groups are in another order, and {key} of {type(scheduler).__qualname__} may "
                "have an item per group"
            )
    return ""


def _schedule_in_order(state: State, order: Sequence[int]) -> State:
    changed = dict(state)
    for key, value in state.items():
        if key == "_schedulers":
            changed[key] = [_schedule_in_order(inner, order) for inner in value]
        elif key in _PER_GROUP and isinstance(value, list | tuple) and len(value) == len(order):
            changed[key] = [value[k] for k in order]
    return changed


def _first_difference(
    saved: Sequence[DescribedOptimizer], here: Sequence[DescribedOptimizer]
) -> str:
    before, now = _places(saved), _places(here)
    for key in (*before, *now):
        there, found = before.get(key), now.get(key)
        if there and found and there[1:] == found[1:]:
            continue
        other = next((k for k in now if not found and k.split()[0] == key.split()[0]), "")
        here_is = found[0] if found else f"{other} {now[other][0]}" if other else "unused"
        return f"parameter {key} was {there[0] if there else 'unused'} and is now {here_is}"
    kinds = [", ".join(one["class"] for one in described) for described in (saved, here)]
    return f"the optimizers were {kinds[0] or 'none'} and are now {kinds[1] or 'none'}"


def _places(described: Sequence[DescribedOptimizer]) -> dict[str, tuple[Any, ...]]:
    """Return the place of each parameter, the class of its optimizer and the forms in its group."""
    return {
        _spelt(form): (
            f"in group {k} of optimizer {i} ({one['class']})",
            one["class"],
            _group_key(group),
        )
        for i, one in enumerate(described)
        for k, group in enumerate(one["groups"])
        for form in group
    }
