"""Horizons of schedules, `wsd`, and the step up to which two schedules are equal."""

import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytorch_lightning import LightningModule

from shardline.config.documents import counted_settings
from shardline.config.resolved import RunSpec, as_plain
from shardline.config.schedules import ends_early, fitting, horizon, length, same_until, too_short
from shardline.config.settings.optim_settings import Optim, Schedule
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.errors import ConfigError
from shardline.training.optim import attach_optimizer, lr_factor, make_schedule

ONE_CYCLE = "torch.optim.lr_scheduler:OneCycleLR"
STEP = "torch.optim.lr_scheduler:StepLR"
FORTY = {"total_steps": 40}
EPOCH = 5  # steps


def steps_of(epochs: int) -> int:
    return EPOCH * epochs


def run(*, max_epochs: int = 4, max_steps: int = -1, **schedule: Any) -> RunSettings:
    trainer = Trainer(max_epochs=max_epochs, max_steps=max_steps)
    return RunSettings(schedule=Schedule(**schedule), trainer=trainer, optim=Optim(lr=0.1))


def factors(settings: RunSettings, num: int) -> list[float]:
    of, end = settings.schedule, horizon(settings, steps_of)
    return [
        lr_factor(
            step, name=of.name, warmup_steps=of.warmup_steps, total_steps=end, decay_steps=of.decay_steps,
            decay=of.decay,
        )
        for step in range(num)
    ]  # fmt: skip


HORIZONS = st.one_of(
    st.just({}),
    st.integers(1, 8).map(lambda n: {"epochs": n}),
    st.integers(1, 40).map(lambda n: {"steps": n}),
)
LENGTHS = st.one_of(
    st.integers(1, 8).map(lambda n: {"max_epochs": n}),
    st.integers(1, 40).map(lambda n: {"max_steps": n}),
)
KINDS = st.one_of(
    st.sampled_from(["constant", "linear", "cosine"]).map(lambda name: {"name": name}),
    st.tuples(st.integers(1, 10), st.sampled_from(["linear", "cosine", "sqrt"])).map(
        lambda one: {"name": "wsd", "decay_steps": one[0], "decay": one[1]}
    ),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[RunSettings, RunSettings]:
    """Two runs that differ in length and horizon, and sometimes in a phase of `wsd`."""
    warmup, kind = draw(st.integers(0, 6)), draw(KINDS)
    found = []
    for _ in range(2):
        end = {} if kind["name"] == "constant" else draw(HORIZONS)
        found.append(run(**draw(LENGTHS), **end, **kind, warmup_steps=warmup))
        if kind["name"] == "wsd" and draw(st.booleans()):
            kind = {**kind, "decay_steps": draw(st.integers(1, 10))}
    assume(not any(too_short(one.schedule, horizon(one, steps_of)) for one in found))
    return found[0], found[1]


@given(pairs())
def test_learning_rates_are_equal_up_to_the_step_that_is_named(pair) -> None:
    a, b = pair
    until = same_until(a, b, steps_of)
    shared = min(length(a, steps_of), length(b, steps_of))
    assert 0 <= until <= shared
    assert until == same_until(b, a, steps_of)
    # the state after a step has the rate of the next
    assert factors(a, until + 1)[: until or 0] == factors(b, until + 1)[: until or 0]
    if until:
        assert factors(a, until + 1) == factors(b, until + 1)
    if factors(a, shared + 1) == factors(b, shared + 1) and a.schedule == b.schedule:
        assert until == shared or horizon(a, steps_of) != horizon(b, steps_of)


@given(
    st.integers(0, 9),
    st.integers(1, 9),
    st.integers(0, 9),
    st.sampled_from(["linear", "cosine", "sqrt"]),
)
def test_wsd_rises_stays_and_falls_to_zero(warmup: int, decay: int, flat: int, shape: str) -> None:
    end = warmup + flat + decay
    found = factors(
        run(max_steps=end, name="wsd", warmup_steps=warmup, decay_steps=decay, decay=shape), end + 4
    )
    assert found[:warmup] == [(step + 1) / warmup for step in range(warmup)]
    assert found[warmup : end - decay + 1] == [1.0] * (flat + 1)
    falling = found[end - decay : end + 1]
    assert all(a > b for a, b in pairwise(falling))
    assert found[end:] == pytest.approx([0.0] * 4, abs=1e-12)
    if shape == "sqrt":  # Hägele et al. 2024, equation 2
        assert falling == pytest.approx([1 - (i / decay) ** 0.5 for i in range(decay + 1)])


@pytest.mark.parametrize(
    ("a", "b", "until"),
    [
        (run(max_epochs=4), run(max_epochs=6), 20),
        (run(name="cosine", max_epochs=4), run(name="cosine", max_epochs=6), 0),
        (run(name="cosine", max_epochs=4), run(name="cosine", max_epochs=6, epochs=4), 20),
        (run(name="linear", max_epochs=4, epochs=9), run(name="linear", max_epochs=6, epochs=9), 20),
        (run(name="wsd", decay_steps=5, max_epochs=4), run(name="wsd", decay_steps=5, max_epochs=6), 15),
        (run(max_epochs=6), run(name="wsd", decay_steps=5, max_epochs=4), 15),
        (run(name="wsd", decay_steps=5, warmup_steps=1), run(name="wsd", decay_steps=5), 0),
        (run(name="constant", warmup_steps=2), run(name="constant"), 0),
        (run(name=ONE_CYCLE, max_epochs=4), run(name=ONE_CYCLE, max_epochs=6), 0),
        (run(name=ONE_CYCLE, max_epochs=4), run(name=ONE_CYCLE, max_epochs=6, epochs=4), 19),
        (run(name=ONE_CYCLE, args=FORTY), run(name=ONE_CYCLE, args=FORTY, max_epochs=6), 20),
        (run(name=STEP), run(name=STEP, args={"step_size": 2}, max_epochs=6), 0),
        (run(name=STEP), run(name=STEP, max_epochs=6), 20),
        (run(name="mine:Own"), run(name="mine:Own", max_epochs=6), 0),
    ],
)  # fmt: skip
def test_schedules_that_extend_and_those_that_do_not(a, b, until: int) -> None:
    assert same_until(a, b, steps_of) == same_until(b, a, steps_of) == until


def test_a_class_of_the_user_that_takes_no_length_extends() -> None:
    a, b = run(name="mine:Own"), run(name="mine:Own", max_epochs=6)
    assert same_until(a, b, steps_of, takes_length=False) == 20


# --- horizons -------------------------------------------------------------------------------------


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)


def rates(settings: RunSettings, num: int) -> list[float]:
    """Return the learning rates of a model's first steps."""
    model = Net()
    spec = RunSpec(run="a", settings=settings, model_class="mine:Net")
    end, epochs = horizon(settings, steps_of), settings.trainer.max_epochs
    attach_optimizer(model, spec, total_steps=lambda: end, num_epochs=epochs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = model.configure_optimizers()
        rates = []
        for step in range(num):
            rates.append(found["optimizer"].param_groups[0]["lr"])
            if found["lr_scheduler"]["interval"] == "step" or (step + 1) % EPOCH == 0:
                model.lr_scheduler_step(found["lr_scheduler"]["scheduler"], None)
    assert "step" not in found["lr_scheduler"]["scheduler"].state_dict()
    return rates


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_class_that_ends_keeps_its_last_rate_behind_its_horizon(interval: str) -> None:
    cycle = {"name": ONE_CYCLE, "args": {"max_lr": 0.1}, "interval": interval}
    whole = rates(run(max_epochs=4, **cycle), 20)
    longer = rates(run(max_epochs=6, epochs=4, **cycle), 30)
    assert longer == [*whole, *[whole[-1]] * 10]
    assert rates(run(max_epochs=4, epochs=4, **cycle), 20) == whole


def test_a_shipped_schedule_stays_at_its_end() -> None:
    whole = rates(run(max_epochs=4, name="linear"), 20)
    assert rates(run(max_epochs=6, epochs=4, name="linear"), 30) == [*whole, *[0.0] * 10]
    assert rates(run(max_epochs=2, epochs=4, name="linear"), 10) == whole[:10]


def test_a_horizon_needs_a_class_that_takes_it() -> None:
    optimizer = torch.optim.SGD(Net().parameters())
    step = Schedule(name="torch.optim.lr_scheduler:StepLR", args={"step_size": 2}, epochs=3)
    with pytest.raises(
        ConfigError, match=r"schedule.epochs is given, but .*StepLR takes no total_steps from it; "
    ):
        make_schedule(optimizer, step, 10)
    wsd = Schedule(name="wsd", warmup_steps=6, decay_steps=5)
    with pytest.raises(
        ConfigError, match=r"warmup_steps=6 and schedule.decay_steps=5 are more than the 10 steps"
    ):
        make_schedule(optimizer, wsd, 10)
    make_schedule(optimizer, fitting(wsd, 3), horizon(run(steps=fitting(wsd, 3).steps), steps_of))


@given(LENGTHS, HORIZONS)
def test_a_horizon_counts_unless_it_is_the_length_of_the_training(long, end) -> None:
    def counted(**schedule: Any) -> dict[str, Any]:
        return counted_settings(as_plain(run(**long, name="cosine", **schedule)))

    settings = run(**long, name="cosine", **end)
    is_own = set(end.items()) <= {
        ("epochs", long.get("max_epochs")),
        ("steps", long.get("max_steps")),
    }
    assert (counted(**end) == counted()) == is_own
    if is_own:
        assert horizon(settings, steps_of) == length(settings, steps_of)
    if early := ends_early(settings):
        assert horizon(settings, steps_of) < length(settings, steps_of)
        assert "stays at zero" in early
