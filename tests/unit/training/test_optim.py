"""Optimisers and schedules by import path, groups of parameters, and frozen parameters."""

import functools
import warnings
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning import LightningModule
from torch import nn

from shardline.config.resolved import RunSpec
from shardline.config.settings.optim_settings import Optim, Schedule
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.errors import ConfigError
from shardline.training.optim import attach_optimizer, make_optimizer, make_schedule
from shardline.training.parameters import freeze_parameters, parameter_groups


class Net(LightningModule):
    """A model of a backbone and a head with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 2)
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.head.weight


class Plain(torch.optim.SGD):
    """An optimiser without weight decay."""

    def __init__(self, params: Any, lr: float, nested: Any = None) -> None:
        self.nested = nested
        super().__init__(params, lr)


class Open(torch.optim.SGD):
    """An optimiser whose arguments are those of its base."""

    def __init__(self, params: Any, **rest: Any) -> None:
        super().__init__(params, **rest)


HERE = __name__


def made(model: nn.Module | None = None, **optim: Any) -> torch.optim.Optimizer:
    return make_optimizer(model or Net(), Optim(**optim), world_size=2, where='run "a"')


# --- optimisers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["torch.optim:RAdam", "torch.optim.RAdam"])
def test_an_optimiser_by_import_path_gets_rate_decay_and_arguments(path: str) -> None:
    one = made(name=path, lr=0.2, weight_decay=0.3, args={"betas": [0.8, 0.9]}, scale_lr=True)
    assert type(one) is torch.optim.RAdam
    (group,) = one.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.4, 0.3, [0.8, 0.9])


def test_an_optimiser_gets_only_what_its_constructor_has() -> None:
    nested = {"type": "torch.nn:Tanh", "partial": True}
    one = made(name=f"{HERE}:Plain", lr=0.2, args={"nested": nested})
    assert isinstance(one.nested, functools.partial)
    assert made(name=f"{HERE}:Open", lr=0.2).param_groups[0]["lr"] == 0.2
    assert made(name=f"{HERE}:Open", weight_decay=0.2).param_groups[0]["weight_decay"] == 0.2


def test_shipped_optimisers_take_further_arguments() -> None:
    one = made(name="sgd", momentum=0.5, args={"nesterov": True})
    assert (one.param_groups[0]["momentum"], one.param_groups[0]["nesterov"]) == (0.5, True)


@pytest.mark.parametrize(
    ("optim", "sentence"),
    [
        ({"name": "torch.optim:RAdam", "args": {"beta": 1}},
         r"^run \"a\": optim.name=torch.optim:RAdam takes lr=0.001, .*, but not beta; did you mean \"betas\"\?$"),
        ({"name": f"{HERE}:Plain", "weight_decay": 0.1},
         r"optim.weight_decay=0.1, but .*:Plain takes params, lr, nested, and no weight_decay; leave .* default$"),
        ({"name": "torch.nn:Identity"}, "gives Identity, expected a torch.optim.Optimizer"),
        ({"name": "torch.optim:Nothing"}, "optim.name=torch.optim:Nothing does not import"),
        ({"groups": [{"match": "head.*", "lrr": 1}]},
         r"optim.groups.0.lrr is not an option of Adam, which has lr, .*; did you mean \"lr\"\?"),
        ({"groups": [{"match": "head.*", "lr": 1}, {"match": "neck.*", "lr": 1}]},
         r"optim.groups.1.match=neck.\* matches no trainable parameter of the model, which has backbone.0.weight, .* "
         "and 2 more; write a pattern of one of these"),
    ],
)  # fmt: skip
def test_a_wrong_optimiser_is_one_sentence(optim: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        made(**optim)


# --- groups ---------------------------------------------------------------------------------------

PATTERNS = st.sampled_from(
    ["*", "backbone.*", "*.bias", "backbone.0.weight", "tied.weight", "head.*"]
)
GROUPS = st.lists(
    st.builds(
        lambda pattern, options: {"match": pattern, **options},
        PATTERNS,
        st.dictionaries(st.sampled_from(["lr", "weight_decay"]), st.sampled_from([0.5, 2.0]), min_size=1),
    ),
    max_size=3,
)  # fmt: skip
FROZEN = st.sampled_from([[], ["backbone.0.*"], ["tied.weight", "*.bias"]])


@given(GROUPS, FROZEN)
def test_each_trained_parameter_is_in_one_group_with_the_options_of_all_its_patterns(
    groups: list[dict[str, Any]], frozen: list[str]
) -> None:
    model = Net()
    freeze_parameters(model, frozen, "run")
    names: dict[Any, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(value, []).append(name)
    try:
        found = parameter_groups(model, groups, 10, "run")
    except ConfigError as error:
        place = int(str(error).split("optim.groups.")[1][0])
        assert not any(
            value.requires_grad and fnmatchcase(name, groups[place]["match"])
            for value, of in names.items()
            for name in of
        )
        return
    listed = [value for group in found for value in group["params"]]
    assert len(listed) == len({*listed})
    assert {*listed} == {value for value in names if value.requires_grad}
    for group in found:
        for value in group["params"]:
            wanted: dict[str, Any] = {}
            for one in groups:
                if any(fnmatchcase(name, one["match"]) for name in names[value]):
                    wanted |= {key: item for key, item in one.items() if key != "match"}
            wanted |= {"lr": wanted["lr"] * 10} if "lr" in wanted else {}
            assert {key: item for key, item in group.items() if key != "params"} == wanted


def test_a_step_moves_each_group_by_its_own_rate_and_a_frozen_parameter_not_at_all() -> None:
    model = Net()
    freeze_parameters(model, ["backbone.1.*"], "run")
    groups = [{"match": "backbone.*", "lr": 0.25}, {"match": "*.bias", "weight_decay": 0}]
    one = made(model, name="sgd", momentum=0.0, lr=0.5, weight_decay=0.0, groups=groups)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    sum(value.sum() for value in model.parameters()).backward()
    one.step()
    moved = {name: (before[name] - value).max().item() for name, value in model.named_parameters()}
    assert {name: round(by, 5) for name, by in moved.items()} == {
        "backbone.0.weight": 0.25, "backbone.0.bias": 0.25, "backbone.1.weight": 0, "backbone.1.bias": 0,
        "head.weight": 0.5, "head.bias": 0.5, "tied.bias": 0.5,
    }  # fmt: skip


# --- frozen parameters ----------------------------------------------------------------------------


def test_a_pattern_that_freezes_nothing_is_an_error_and_so_is_a_model_frozen_whole() -> None:
    with pytest.raises(
        ConfigError, match=r"^run: freeze.1=bakbone.\* matches no parameter of the model, which has"
    ):
        freeze_parameters(Net(), ["head.*", "bakbone.*"], "run")
    model = Net()
    freeze_parameters(model, ["*"], "run")
    with pytest.raises(ConfigError, match="no trainable parameter, .*; freeze fewer parameters"):
        made(model)


def test_parameters_of_configure_model_are_frozen_behind_it() -> None:
    class Late(Net):
        def configure_model(self) -> None:
            self.late = nn.Linear(2, 2)

    model = Late()
    freeze_parameters(model, ["late.*"], "run")
    model.configure_model()
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert frozen == {"late.weight", "late.bias"}


# --- schedules ------------------------------------------------------------------------------------


def scheduled(interval: str = "step", monitor: str | None = None, **schedule: Any) -> Any:
    given = Schedule(interval=interval, monitor=monitor, **schedule)
    one = made(name="sgd", lr=0.5)
    return make_schedule(one, given, total_steps=40, num_epochs=4, where='run "a"')


@pytest.mark.parametrize(("interval", "total"), [("step", 40), ("epoch", 4)])
def test_a_schedule_gets_the_optimiser_its_arguments_and_the_length(
    interval: str, total: int
) -> None:
    path = "torch.optim.lr_scheduler:OneCycleLR"
    one = scheduled(interval, name=path, args={"max_lr": 0.25})
    assert (one.total_steps, one.optimizer.param_groups[0]["max_lr"]) == (total, 0.25)
    epochs = {"max_lr": 1, "epochs": 3, "steps_per_epoch": 5}
    assert scheduled(name=path, args=epochs).total_steps == 15
    step = scheduled(name="torch.optim.lr_scheduler.StepLR", args={"step_size": 1, "gamma": 0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a step of the schedule before one of the optimiser
        step.step()
    assert step.get_last_lr() == [pytest.approx(0.05)]


PLATEAU = "torch.optim.lr_scheduler:ReduceLROnPlateau"


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"name": PLATEAU}, "watches a metric of each validation; set schedule.interval to epoch, and sch"),
        ({"name": PLATEAU, "monitor": "val_loss"}, "set schedule.interval to epoch"),
        ({"name": "torch.optim.lr_scheduler:StepLR", "args": {"step_size": 1}, "monitor": "val_loss"},
         "schedule.monitor=val_loss, but torch.optim.lr_scheduler:StepLR watches no metric; leave it out"),
        ({"name": "torch.optim.lr_scheduler:StepLR"},
         "schedule.name=torch.optim.lr_scheduler:StepLR takes step_size, .*, and lacks step_size; add "
         "schedule.args.step_size"),
        ({"name": "torch.nn:Identity"}, "expected a torch.optim.lr_scheduler.LRScheduler"),
    ],
)  # fmt: skip
def test_a_wrong_schedule_is_one_sentence(schedule: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        scheduled(**schedule)


def test_the_model_hands_interval_and_monitor_to_lightning() -> None:
    settings = RunSettings(
        schedule=Schedule(name=PLATEAU, monitor="val/acc", interval="epoch", args={"mode": "max"}),
        trainer=Trainer(max_epochs=2),
    )
    model = Net()
    attach_optimizer(
        model, RunSpec(run="r", model_class="m", settings=settings), total_steps=lambda: 10
    )
    found: Any = model.configure_optimizers()
    assert (found["lr_scheduler"]["interval"], found["lr_scheduler"]["monitor"]) == (
        "epoch",
        "val/acc",
    )
    assert found["lr_scheduler"]["scheduler"].mode == "max"
