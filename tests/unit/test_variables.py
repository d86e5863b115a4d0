"""No variable of the shell changes what is trained, evaluated or counted."""

import inspect
import re
from importlib.metadata import EntryPoint

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from shardline.core import lightning_compat as compat
from tests.support.evaluated_model import Rows, evaluated
from tests.support.simulated_kills import Case, Trainings, build_trainings
from tests.support.workspace import REPOSITORY
from tests.unit.test_evaluate_steps import TABLE, Tested

COUNTING = Case(name="Counting", model="tests.support.killed_models:Counting")
ARGUMENTS = inspect.signature(pl.Trainer).parameters
# what changes most about a training; an argument that is not listed gets 1
NASTY = {
    "accelerator": "tpu", "strategy": "ddp_spawn", "devices": "7", "num_nodes": "3", "precision": "bf16-true",
    "fast_dev_run": "1", "max_epochs": "1", "max_time": "00:00:00:00", "overfit_batches": "2",
    "gradient_clip_val": "0.001", "gradient_clip_algorithm": "value", "accumulate_grad_batches": "2",
    "max_steps": "2", "inference_mode": "False", "num_sanity_val_steps": "-1", "val_check_interval": "2",
    "profiler": "simple", "default_root_dir": "/proc/none", "callbacks": "x", "plugins": "x", "logger": "True",
    "model_registry": "x",
}  # fmt: skip


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A shell with a variable for every argument of the installed Trainer, and the rest of Lightning's."""
    found = {f"PL_TRAINER_{name.upper()}": NASTY.get(name, "1") for name in ARGUMENTS}
    found |= {"PL_GLOBAL_SEED": "77", "PL_SEED_WORKERS": "0"}
    found |= {f"LT_{name}": "1" for name in ("CLI_USED", "DEVICES", "NUM_NODES")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_trainer_gets_each_argument_of_the_installed_signature(monkeypatch):
    given = {}

    def init(self, **arguments):
        given.update(arguments)

    init.__signature__ = inspect.signature(pl.Trainer.__init__)
    monkeypatch.setattr(pl.Trainer, "__init__", init)
    compat.new_trainer(max_epochs=7)
    assert given == {name: one.default for name, one in ARGUMENTS.items()} | {"max_epochs": 7}


def test_every_argument_in_the_shell_changes_no_bit_of_a_training(trainings, shell, monkeypatch):
    with_shell = Trainings(trainings._spec, trainings._data)
    found, _ = with_shell.unbroken(COUNTING)
    for name in shell:
        monkeypatch.delenv(name, raising=False)
    expected, _ = trainings.unbroken(COUNTING)
    assert found.differences(expected) == []


def test_every_argument_in_the_shell_changes_no_evaluation(tmp_path, shell, monkeypatch):
    found, _ = evaluated(tmp_path / "a", Rows(**TABLE), model_class=Tested, batch=16)
    for name in shell:
        monkeypatch.delenv(name, raising=False)
    expected, _ = evaluated(tmp_path / "b", Rows(**TABLE), model_class=Tested, batch=16)
    assert found == expected
    assert found["num_samples"] > 16


@pytest.mark.parametrize("group", compat.FACTORIES)
def test_callbacks_of_installed_packages_are_named_and_left_out(group, monkeypatch, capsys):
    def points(*, group):
        known = EntryPoint(name="spy", value="spy:make", group=group)
        return [known] if group == known_group else []

    known_group = group
    monkeypatch.setattr(compat, "entry_points", points)
    monkeypatch.setattr("lightning_fabric.utilities.registry.entry_points", points)
    trainer = compat.new_trainer(
        logger=False, enable_checkpointing=False, accelerator="cpu", callbacks=[Callback()]
    )
    assert "spy:make" in capsys.readouterr().out
    assert len(trainer.callbacks) == 3  # with Lightning's bar and summary


def test_there_is_one_constructor_of_trainers():
    made = re.compile(r"\b(pl|pytorch_lightning|lightning)\.Trainer\(")
    files = (REPOSITORY / "src").rglob("*.py")
    assert [one.name for one in files if made.search(one.read_text())] == ["lightning_compat.py"]
