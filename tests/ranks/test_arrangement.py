"""Real ranks of a model that registers its layers in another order in each process, or on each rank."""

import re
from pathlib import Path

import pytest

from shardline.supervision.failure_records import first_failure
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating

MODEL = """
import os
import random
import zlib
from pathlib import Path

import torch
from torch import nn

from shardline.training.models.classifier_base import Classifier


class Arranged(Classifier):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        width = feature_shape[0]
        parts = {name: nn.Linear(width, width) for name in ("alpha", "beta", "gamma")}
        parts |= {"norm": nn.BatchNorm1d(width), "head": nn.Linear(width, num_classes)}
        names = [*parts]
        random.Random(order()).shuffle(names)
        for name in names:
            self.add_module(name, parts[name])
        for name, value in self.named_parameters():
            drawn = torch.rand(value.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            value.data.copy_(drawn - 0.5)

    def forward(self, features):
        return self.head(self.norm(self.alpha(features).tanh() + self.beta(features)) * self.gamma(features))

    def configure_optimizers(self):
        groups = {"alpha": [], "rest": []}
        for name, value in self.named_parameters():
            groups["alpha" if name.startswith("alpha") else "rest"].append(value)
        names = [*groups]
        random.Random(order() + "!").shuffle(names)
        rates = {"alpha": 0.05, "rest": 0.01}
        optimizer = torch.optim.Adam([{"params": groups[name], "lr": rates[name]} for name in names])
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def order():
    text = Path("order").read_text()
    return os.environ["RANK"] if text == "by rank" else text
"""


@pytest.mark.parametrize("strategy", ["ddp", *rotating("fsdp")])
def test_a_model_in_another_order_in_each_process_resumes_with_its_bits(
    prepare, tmp_path, strategy
):
    (tmp_path / "arranged.py").write_text(MODEL)
    ranks = prepare(
        3, model="arranged:Arranged", devices=2, strategy=strategy, **{"trainer.max_epochs": 3}
    )
    Path("order").write_text("1")
    ranks.train("whole")
    step = ranks.kill_after("killed", 6)
    Path("order").write_text("2")
    output = ranks.train("killed")
    assert f"resuming from step {step}" in output
    assert output.count("the model registers its parameters in another order") == 1
    assert ranks.model("killed") == ranks.model("whole")
    # two terms are added in either order alike, so that the layout of DDP's buckets does not show
    Path("order").write_text("by rank")
    process = ranks.start("apart")
    end_of_ranks(process)
    assert process.returncode != 0
    message = str(first_failure(ranks.root / "apart/work", 2))
    found = re.search(
        r"rank 1 has (\S+) where rank 0 has (\S+) \(the first parameter that differs\)", message
    )
    assert found, message
    assert found[1] != found[2]
    assert not (ranks.results("apart") / "model.safetensors").exists()
