"""What the error says of a model that is no LightningModule: what was found, and what to name."""

import pytest
import pytorch_lightning as pl
import torch

from shardline.config.resolved import RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.errors import ConfigError
from shardline.records.datasets import DatasetSchema
from shardline.training.model import make_model


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
