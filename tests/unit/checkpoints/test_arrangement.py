"""A model that registers its parts in another order in each process is resumed with its bits, or refused.

The campaign takes a seed from the commit; `SHARDLINE_CAMPAIGN_CHAINS` and `SHARDLINE_SEED` say how many and which.
"""

import json
import os
import random
import re
import zlib
from copy import deepcopy
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import LRSchedulerConfig
from safetensors.torch import load

from shardline.checkpoints import arrangement, optimizers, registered
from shardline.checkpoints.arrangement import Arrangement
from shardline.errors import ConfigError
from tests.support.arranged_models import ORDER, Arranged
from tests.support.campaigns import campaign_seed
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings

SEED = campaign_seed()
MODELS = [
    "Arranged",
    "Groups",
    "Cyclic",
    "Sequence",
    "AtPlateau",
    "Several",
    "Hidden",
    "Frozen",
    "clipped",
]
CHAINS = max(len(MODELS), int(os.environ.get("SHARDLINE_CAMPAIGN_CHAINS", "0")))
PLACES = ["model.training_step", "callback.on_after_backward", "callback.on_validation_start"]


def case(model: str) -> Case:
    settings = {"trainer.gradient_clip": 0.1} if model == "clipped" else {}
    name = "Arranged" if model == "clipped" else model
    return Case(  # its buffer `high` is in training checkpoints and in no sealed weights
        name=model, model=f"tests.support.arranged_models:{name}", settings=settings, check_sealed="warn"
    )  # fmt: skip


class Arrangements(Chain):
    """A chain whose attempts have an order each."""

    orders: list[int]

    def attempt(self, kill: Kill | None) -> dict[str, Any] | None:
        order, *self.orders = (
            [*self.orders, self.orders[-1]] if self.orders[1:] else self.orders * 2
        )
        with mock.patch.dict(os.environ, {ORDER: str(order)}):
            return super().attempt(kill)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


@pytest.fixture
def chain(trainings, tmp_path):
    """Return a chain of attempts under these orders."""
    made = []

    def make(case, *orders, **options):
        made.append(Arrangements(trainings, case, tmp_path / f"{len(made)}", **options))
        made[-1].orders = [*orders]
        return made[-1]

    return make


def at(*steps: int) -> list[Kill]:
    return [Kill(place="model.training_step", step=step) for step in steps]


def results(killed, unbroken):
    """Return what differs, but for the order of what is in a state."""
    return [one for one in killed.differences(unbroken) if not one.startswith("state ")]


def refusal(chain):
    """Resume after a kill, and return the error."""
    chain.attempt(*at(3))
    with pytest.raises(ConfigError) as error:
        chain.attempt(None)
    assert not list(chain.root.rglob("model.safetensors"))
    return str(error.value)


@pytest.mark.parametrize("number", range(CHAINS), ids=lambda number: f"{SEED}-{number}")
def test_resumes_in_other_orders_end_with_the_same_bits(chain, number):
    drawn = random.Random(f"{SEED}/{number}")
    one = case(MODELS[number % len(MODELS)])
    orders = [drawn.randrange(1000) for _ in range(3)]
    # behind the first state: a training that begins again in another order is another training
    steps = sorted(drawn.sample(range(6, 16), 2))
    kills = [Kill(place=drawn.choice(PLACES), step=step) for step in steps]
    unbroken = chain(one, orders[0]).run([])
    assert results(chain(one, *orders, every_steps=drawn.randint(1, 3)).run(kills), unbroken) == []


def test_the_norm_of_groups_in_another_order_adds_in_another_order(chain):
    """Which is all that may differ: the last bits."""
    one = Case(
        name="norm", model="tests.support.arranged_models:Groups",
        settings={"trainer.gradient_clip": 0.1}, check_sealed="warn",
    )  # fmt: skip
    unbroken, killed = chain(one, 1).run([]), chain(one, 1, 2, 3).run(at(3, 9))
    weights = (load(unbroken.model), load(killed.model))
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("ByShape", r"parameter layers\.\d\.weight was float32 \[\d, 4\] and is now float32 \[\d, 4\]"),
        ("ByClass", r"module layers\.\d was \w+\(\) and is now \w+\(\)"),
        ("ByArgument", r"module layers\.\d was Dropout\(p=0\.\d+, inplace=False\) and is now Dropout"),
        ("ByValue", r"layers\.\d\.weight here begins as layers\.\d\.weight does there"),
        ("ByAttribute", r"module layers\.\d here begins as module layers\.\d does there"),
        ("Chained", r"the layers of Sequential chain were \w+, \w+, \w+ and are now \w+, \w+, \w+;"),
        ("Split", r"parameter \S+ float32 \[.*\] was in group \d of optimizer 0 \(Adam\) and is now"),
        ("OwnSchedule", r"groups are in another order, and lengths of ByGroup may have an item per group"),
        ("Shadowed", r"in another order, and callbacks/Shadows/shadow_params has a tensor for each by position"),
        ("Unkeyed", r"has the state of a callback Kept low 1, but no present callback has this state_key"),
    ],
)  # fmt: skip
def test_what_names_cannot_put_right_is_refused(chain, model, message):
    found = refusal(chain(case(model), 1, 2))
    assert re.search(message, found), found
    assert found.endswith("this change trains the run from the start")


def test_parameters_without_a_name_and_of_one_shape_are_refused_before_the_first_step(chain):
    training = chain(case("HiddenPair"), 1)
    with pytest.raises(ConfigError, match=r"two parameters of float32 \[2, 4\] that are not"):
        training.attempt(None)
    assert training.last.step == 0


def test_another_order_is_told_once_and_one_that_may_be_a_part_as_well(chain, capsys):
    training = chain(case("ByList"), 1, 2)  # which have their buffers in one order
    training.attempt(*at(3))
    assert "warning: the model" not in capsys.readouterr().out
    training.attempt(*at(5))
    told = [line for line in capsys.readouterr().out.splitlines() if "warning: the model" in line]
    assert [line.split(" than in the process")[0] for line in told] == [
        "warning: the model registers its parameters in another order (tied.weight instead of norm.weight)",
        "warning: the model's attribute order has its items in another order",
    ]


class Unseeded(Arranged):
    """Draws its first weights without the seed."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.beta.weight.data.uniform_(generator=torch.Generator().manual_seed(UNSEEDED.pop()))


UNSEEDED = [1, 2, 3]


def test_other_initial_values_are_told_and_restored(chain, capsys):
    one = Case(name="Unseeded", model=f"{__name__}:Unseeded")
    training = chain(one, 1)
    training.attempt(*at(3))
    training.attempt(*at(5))
    told = [line for line in capsys.readouterr().out.splitlines() if "initial values" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: the constructor gives beta.weight other initial values")


def model_of(*names, bias=True):
    model = pl.LightningModule()
    for name in names:
        model.add_module(name, torch.nn.Linear(3, 2, bias=bias))
    return model


def trainer_of(model, *made):
    return SimpleNamespace(lightning_module=model, optimizers=[*made], lr_scheduler_configs=[])


def test_an_optimiser_that_sums_over_all_parameters_adds_in_the_order_of_its_state():
    def step(model, optimizer):
        def loss():
            optimizer.zero_grad()
            value = sum(
                ((n + 1) * p.square()).sum()
                for n, (_, p) in enumerate(sorted(model.named_parameters()))
            )
            value.backward()
            return value

        optimizer.step(loss)
        return sorted((name, p.tolist()) for name, p in model.named_parameters())

    def made(*names):
        torch.manual_seed(0)
        model = model_of(*names)
        for name, p in model.named_parameters():
            torch.nn.init.constant_(p, len(name) / 10)
        return model, torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=2)

    model, optimizer = made("one", "three")
    step(model, optimizer)
    state = {"optimizer_states": [deepcopy(optimizer.state_dict())], "lr_schedulers": []}
    saved = optimizers.describe(trainer_of(model, optimizer))
    other, its = made("three", "one")
    other.load_state_dict(model.state_dict())
    assert optimizers.bring_into_order(state, saved, [], trainer_of(other, its)) == ""
    its.load_state_dict(state["optimizer_states"][0])
    assert step(other, its) == step(model, optimizer)


@pytest.mark.parametrize("seed", range(20))
def test_states_of_generated_optimisers_go_to_the_parameters_of_their_names(seed):
    """Without Lightning: each parameter's state and each group's rate is told by its name."""

    def made(seed_of_order, seed_of_groups):
        order, groups = random.Random(seed_of_order), random.Random(seed_of_groups)
        names = [f"part{n}" for n in range(groups.randint(2, 6))]
        model = model_of(*order.sample(names, len(names)))
        by_name = dict(model.named_parameters())
        parts = [[] for _ in range(groups.randint(1, 4))]
        for name in sorted(by_name):
            groups.choice(parts).append(name)
        found = []
        kinds = [torch.optim.SGD, torch.optim.Adam]
        for k, part in enumerate(parts):
            shuffled = order.sample(part, len(part))
            cut = groups.randint(0, len(part))
            halves = [
                [n for n in shuffled if (n in sorted(part)[:cut]) is low] for low in (True, False)
            ]
            order.shuffle(halves)
            given = [
                {"params": [by_name[n] for n in half], "lr": rate_of(half)}
                for half in halves
                if half
            ]
            if given:
                found.append(kinds[k % 2](given, lr=1.0))
        order.shuffle(found)
        return model, found

    def mark_of(name):
        return zlib.crc32(name.encode())

    def rate_of(names):
        return 1 + sum(map(mark_of, names)) / 2**40

    model, before = made(f"{SEED}/{seed}", seed)
    for name, p in model.named_parameters():
        for optimizer in before:
            if any(p is one for group in optimizer.param_groups for one in group["params"]):
                optimizer.state[p] = {"mark": mark_of(name), "step": torch.tensor(0.0)}
    state = {
        "optimizer_states": [deepcopy(one.state_dict()) for one in before],
        "lr_schedulers": [],
    }
    saved = json.loads(json.dumps(optimizers.describe(trainer_of(model, *before))))
    other, now = made(f"{SEED}/{seed}/other", seed)
    assert optimizers.bring_into_order(state, saved, [], trainer_of(other, *now)) == ""
    names = registered.names_of(other)
    for optimizer, one in zip(now, state["optimizer_states"], strict=True):
        optimizer.load_state_dict(one)
        for group in optimizer.param_groups:
            own = [names[id(p)] for p in group["params"]]
            assert group["lr"] == rate_of(own)
            assert [optimizer.state[p]["mark"] for p in group["params"]] == [*map(mark_of, own)]


def made(kind, names):
    """Return a module whose parameters, buffers or hooks come in an order."""
    module = torch.nn.Module()
    for name in names if kind == "parameter" else sorted(names):
        module.add_module(name, torch.nn.Linear(2, 2))
    for name in names if kind == "buffer" else sorted(names):
        module.register_buffer(f"of_{name}", torch.zeros(3))
    if kind == "module with hooks":
        getattr(module, names[0]).register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("kind", ["parameter", "buffer", "module with hooks"])
def test_ranks_that_register_in_unlike_orders_are_refused(monkeypatch, kind):
    there = registered.describe(made(kind, ["a", "b"]))
    monkeypatch.setattr(
        arrangement, "_of_all_ranks", lambda _, mine: [{key: there[key] for key in mine}, mine]
    )
    trainer = SimpleNamespace(lightning_module=made(kind, ["a", "b"]))
    Arrangement()._look(trainer)
    trainer.lightning_module = made(kind, ["b", "a"])
    with pytest.raises(ConfigError, match=rf"rank 1 has .* \(the first {kind} that differs\)"):
        Arrangement()._look(trainer)


@pytest.mark.parametrize("kind", ["parameter in the optimizers", "schedule", "callback"])
def test_ranks_whose_optimizers_or_callbacks_come_in_unlike_orders_are_refused(monkeypatch, kind):
    def of_both(_, mine):
        return [mine, {**mine, kind: mine[kind][::-1]}]

    monkeypatch.setattr(arrangement, "_of_all_ranks", of_both)
    model = made("parameter", ["a", "b"])
    groups = [{"params": one.parameters()} for one in (model.a, model.b)]
    optimizer = torch.optim.SGD(groups, 0.1)
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        torch.optim.lr_scheduler.StepLR(optimizer, 1),
    ]
    trainer = SimpleNamespace(
        lightning_module=model, optimizers=[optimizer], callbacks=[pl.Callback(), pl.callbacks.Timer()],
        lr_scheduler_configs=[LRSchedulerConfig(one) for one in schedules],
    )  # fmt: skip
    with pytest.raises(ConfigError, match=rf"rank 1 has .* \(the first {kind} that differs\)"):
        Arrangement().begin(trainer)
