"""Description of the layers, parameters and buffers of a new model, to compare processes and ranks.

A constructor that iterates over a set, `os.listdir` or ids of objects registers layers in a different order in each
process. Names show most of these differences. Two swapped layers of a `ModuleList` keep their names, so digests of
initial values, classes and plain attributes are compared as well.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import torch
from blake3 import blake3
from torch import nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

from shardline.core.lightning_compat import buffers_of, num_hooks

Form = list[Any]  # name, type, shape

ONE_ORDER = (
    "register layers, groups and buffers in a fixed order (use sorted(...) for a set, os.listdir or ids); "
    "this change trains the run from the start"
)
_DIGESTED_BYTES = 1 << 16  # at the beginning of each tensor
_MOST_ITEMS = 10_000
_PLAIN = (str, int, float, bool, type(None))


class Registered(TypedDict):
    """Description of a model as plain values, in order of registration.

    Attributes:
        parameters: Forms of parameters, with whether they are trained.
        buffers: Forms of buffers, with whether they are saved.
        modules: Class of each module by path.
        sequences: Names of the children of each `Sequential`.
        watched: Modules with hooks, and metrics.
        values: Digests of initial values by name.
        orders: Digests of lists and dicts among the attributes of modules.
        processor: Instruction set of the CPU.
    """

    parameters: list[Form]
    buffers: list[Form]
    modules: dict[str, str]
    sequences: dict[str, list[str]]
    watched: list[list[Any]]
    values: dict[str, str]
    orders: dict[str, list[str]]
    processor: str


NOTHING = Registered(
    parameters=[], buffers=[], modules={}, sequences={}, watched=[], values={}, orders={}, processor=""
)  # fmt: skip


def names_of(module: nn.Module) -> dict[int, str]:
    """Return the name of each parameter by its id. A tied parameter has the alphabetically first name."""
    names: dict[int, str] = {}
    found = module.named_parameters(remove_duplicate=False)
    for name, parameter in sorted(found, key=lambda pair: pair[0]):
        names.setdefault(id(parameter), name)
    return names


def form_of(tensor: torch.Tensor, name: str) -> Form:
    """Return name, type and shape of a tensor. The shape of an uninitialized lazy tensor is empty."""
    is_known = not isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)
    kind = str(tensor.dtype).removeprefix("torch.")
    return [name, kind, [*tensor.shape] if is_known else []]


def describe(module: nn.Module) -> Registered:
    """Describe a model."""
    names, parts = names_of(module), dict(module.named_modules(remove_duplicate=False))
    buffers = {
        _join(path, name): (value, is_saved)
        for path, part in parts.items()
        for name, (value, is_saved) in buffers_of(part).items()
        if value is not None
    }
    values = {names[id(value)]: _digest(value) for value in module.parameters()}
    values |= {name: _digest(value) for name, (value, _) in buffers.items()}
    values |= {f"module {path}": _short(_description(part)) for path, part in parts.items()}
    return {
        "parameters": [[*form_of(p, names[id(p)]), p.requires_grad] for p in module.parameters()],
        "buffers": [[*form_of(value, name), saved] for name, (value, saved) in buffers.items()],
        "modules": {path: _class_of(part) for path, part in parts.items()},
        "sequences": {
            path: [name for name, _ in part.named_children()]
            for path, part in parts.items()
            if isinstance(part, nn.Sequential)
        },
        "watched": [
            [path, num_hooks(part)]
            for path, part in module.named_modules()
            if num_hooks(part) or isinstance(part, Metric)
        ],
        "values": {name: digest for name, digest in values.items() if digest},
        "orders": dict(_orders(parts)),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    return blake3(text.encode()).hexdigest()[:16]


def _digest(tensor: torch.Tensor) -> str:
    """Return a digest of the first bytes of a tensor, or an empty text if it is sharded or not initialized."""
    is_lazy = isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)
    if is_lazy or isinstance(tensor, DTensor) or tensor.is_meta or tensor.layout != torch.strided:
        return ""
    few = tensor.detach().reshape(-1)[: _DIGESTED_BYTES // tensor.element_size()]
    return blake3(few.cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()[:16]


def _class_of(part: nn.Module) -> str:
    # without the import path, since a class may move; torch's modules list their arguments
    name = type(part).__qualname__
    return f"{name}({part.extra_repr()})" if type(part).__module__.startswith("torch.nn.") else name


def _description(part: nn.Module) -> str:
    """Return class and plain attributes of a module."""
    plain = {
        name: value
        for name, value in vars(part).items()
        if isinstance(value, _PLAIN) and name != "training"
    }
    return _class_of(part) + repr(sorted(plain.items()))


def _orders(parts: Mapping[str, nn.Module]) -> Iterator[tuple[str, list[str]]]:
    """Yield digests of lists and dicts of plain values, in order and sorted."""
    for path, part in parts.items():
        for name, value in vars(part).items():
            items = [*value.items()] if isinstance(value, dict) else value
            if name.startswith("_") or not isinstance(items, list | tuple):
                continue
            if not 1 < len(items) <= _MOST_ITEMS or not all(map(_is_plain, items)):
                continue
            columns = zip(*value.items(), strict=True) if isinstance(value, dict) else [items]
            in_order = [sorted(map(repr, column)) for column in columns]
            yield _join(path, name), [_short(repr(items)), _short(repr(in_order))]


def _is_plain(item: Any) -> bool:
    return isinstance(item, _PLAIN) or (type(item) is tuple and all(map(_is_plain, item)))


def difference(there: Registered, here: Registered) -> str:
    """Return the first difference that prevents loading the state of one model into another; empty for none.

    Args:
        there: Description of the model that saved the state.
        here: Description of the model to load it into.
    """
    kept = [[*form, True] for *form, saved in there["buffers"] if saved]
    now = [[*form, True] for *form, saved in here["buffers"] if saved]
    return (
        _other_form("parameter", there["parameters"], here["parameters"])
        or _other_form("buffer", kept, now)
        or _other_class(there["modules"], here["modules"])
        or _other_sequence(there["sequences"], here["sequences"])
        or moved(there["values"], here["values"])
    )


def _other_form(kind: str, there: Sequence[Form], here: Sequence[Form]) -> str:
    before, now = ({name: (dtype, shape) for name, dtype, shape, _ in one} for one in (there, here))
    for name in (*before, *now):
        if before.get(name) != now.get(name):
            return (
                f"{kind} {name} was {_spelt(before.get(name))} and is now {_spelt(now.get(name))}"
            )
    return ""


def _spelt(form: tuple[str, list[int]] | None) -> str:
    return f"{form[0]} {form[1]}" if form else "not registered"


def _other_class(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    pairs = ((path, there[path], here[path]) for path in there if path in here)
    return next((f"module {p} was {a} and is now {b}" for p, a, b in pairs if a != b), "")


def _other_sequence(there: Mapping[str, list[str]], here: Mapping[str, list[str]]) -> str:
    for path, names in there.items():
        if names != here.get(path, names):
            listed = f"{', '.join(names)} and are now {', '.join(here[path])}"
            return f"the layers of Sequential {path or 'of the model'} were {listed}"
    return ""


def moved(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return an error if values are swapped between names that differ only in their numbers; empty for none."""
    alike = defaultdict(list)
    for name in there:
        if name in here:
            alike[re.sub(r"\d+", "N", name)].append(name)
    for names in alike.values():
        before, now = [there[name] for name in names], [here[name] for name in names]
        if before != now and sorted(before) == sorted(now):
            place = next(i for i, digest in enumerate(now) if digest != before[i])
            return f"{names[place]} here begins as {names[before.index(now[place])]} does there"
    return ""


def first_other(there: Sequence[Any], here: Sequence[Any]) -> tuple[str, str] | None:
    """Return the two names at the first difference of two lists of forms, or None if they are equal."""
    for i in range(max(len(there), len(here))):
        one, two = (given[i] if i < len(given) else None for given in (there, here))
        if one != two:
            return _named(one, two), _named(two, one)
    return None


def _named(form: Any, other: Any) -> str:
    if form is None:
        return "no further one"
    is_same_name = other is not None and form[0] == other[0]
    return f"{form[0]} {' '.join(map(str, form[1:]))}" if is_same_name else str(form[0])


def remarks(there: Registered, here: Registered) -> list[str]:
    """Return warnings about differences that may be harmless."""
    found = []
    kinds = {
        "parameters": (there["parameters"], here["parameters"]),
        "buffers": (there["buffers"], here["buffers"]),
    }
    for kind, forms in kinds.items():
        before, now = ([form[0] for form in one] for one in forms)
        if other := first_other([[name] for name in before], [[name] for name in now]):
            found.append(
                f"the model registers its {kind} in another order ({other[1]} instead of {other[0]}) than in "
                "the process that began this training; they are restored by name, but code that iterates over "
                f"{kind} or modules may compute other results; use sorted(...) for a set or os.listdir"
            )
            break
    were, are = there["orders"], here["orders"]
    turned = [
        name
        for name in were
        if name in are and were[name] != are[name] and were[name][1] == are[name][1]
    ]
    if turned:
        found.append(
            f"the model's attribute {turned[0]} has its items in another order than in the process that began this "
            "training; if this order selects layers, restored layers are swapped; use sorted(...)"
        )
    if not found and there["processor"] == here["processor"]:
        values = here["values"]
        others = [n for n, of in there["values"].items() if of != values.get(n) and " " not in n]
        if others:
            found.append(
                f"the constructor gives {others[0]} other initial values than in the process that began this training, "
                "because it reads changed files or draws numbers without the seed; this is harmless if all of them are "
                "restored"
            )
    return found
