"""What errors say of models that are no LightningModules, and of versions of Lightning."""

import pytest
import pytorch_lightning as pl
import torch
from msgspec.structs import replace

from shardline.config.resolved import RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.core import one_lightning
from shardline.errors import ConfigError
from shardline.records.datasets import DatasetSchema
from shardline.training import rank
from shardline.training.model import make_model
from shardline.training.rank_task import Check, Preflight, RankTask, read_result
from tests.support.rank_tasks import ALONE, rank_runtime


class Net(torch.nn.Module):
    pass


class Data(pl.LightningDataModule):
    pass


class Watch(pl.Callback):
    pass


class Alone:
    pass


made = pl.LightningModule()
SCHEMA = DatasetSchema(task="classification", columns={"image": "uint8[4,4]", "labels": "int64"})


def function():
    return Net()


@pytest.mark.parametrize(
    ("name", "found", "remedy"),
    [
        ("Net", "a torch.nn.Module", "derive it from LightningModule, with a training_step that returns the loss"),
        ("Data", "a LightningDataModule", "name it in source.type of a dataset, and your model here"),
        ("Watch", "a class of {pl}.callbacks.callback.Callback", "derive it from one"),
        ("Alone", "a class without a base", "derive it from one"),
        ("made", "an object of LightningModule, not its class", "name the class"),
        ("function", "a function", "name a class; for a program with its own loop, write a script"),
        ("torch", "a module", "name a class; for a program with its own loop, write a script"),
    ],
)  # fmt: skip
def test_what_is_no_lightning_module_is_named(name, found, remedy):
    settings = as_type(fill({"global_batch": 4}, schema_of(RunSettings)), RunSettings)
    spec = RunSpec(run="ab", name="net", model_class=f"{__name__}:{name}", settings=settings)
    with pytest.raises(ConfigError) as error:
        make_model(spec, SCHEMA)
    assert str(error.value) == (
        f'run "net": model={__name__}:{name} is {found.format(pl=pl.__name__)}, expected a LightningModule of '
        f"lightning or pytorch_lightning; {remedy}"
    )


def test_a_version_that_is_too_old_is_a_problem_of_each_checked_model(tmp_path, monkeypatch):
    monkeypatch.setattr(one_lightning, "_installed", lambda package: "2.5.6")
    monkeypatch.setattr(one_lightning, "loaded", lambda: None)
    settings = as_type(fill({"global_batch": 4}, schema_of(RunSettings)), RunSettings)
    run = RunSpec(run="ab", model_class="nets:Net", settings=settings, lightning=("lightning",))
    tasks = [
        RankTask(
            run=run, action=Check(sources=(), output=tmp_path / name), work=tmp_path,
            rank_logs=tmp_path, runtime=rank_runtime(),
        )
        for name in ("a", "b")
    ]  # fmt: skip
    assert not rank._keep_lightning(tasks, ALONE)
    for task in tasks:
        assert read_result(task.action.output).problems == [
            "lightning 2.5.6 is installed, expected 2.6 or newer; use a newer version"
        ]
    training = replace(tasks[0], action=Preflight(output=tmp_path / "c"))
    with pytest.raises(ConfigError, match=r"^lightning 2\.5\.6 is installed"):
        rank._keep_lightning([training], ALONE)
