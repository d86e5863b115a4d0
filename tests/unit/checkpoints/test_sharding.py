"""Which parts of a model are gathered by themselves, what cannot be sharded, and shards that are torn."""

import re

import pytest
import torch
from safetensors import safe_open
from torch import nn

from shardline.checkpoints.sharded import StateShards, put_shards, take_shards
from shardline.errors import ConfigError, DataError
from shardline.training.sharding import find_units, shard


def blocks() -> nn.Module:
    model = nn.Module()
    model.embed = nn.Embedding(50, 10)
    model.blocks = nn.ModuleList(
        nn.ModuleDict({"attention": nn.MultiheadAttention(10, 2), "mix": nn.Linear(10, 20)})
        for _ in range(2)
    )
    model.head = nn.Linear(10, 50, bias=False)
    return model


def names_of(model: nn.Module, min_parameters: int) -> list[str]:
    names = {part: name for name, part in model.named_modules()}
    return [names[unit] for unit in find_units(model, min_parameters)]


def test_units_are_large_called_by_themselves_and_attention_stays_whole():
    assert names_of(blocks(), 400) == ["embed", "blocks.0.attention", "blocks.1.attention", "head"]
    assert names_of(blocks(), 200) == [
        "embed", "blocks.0.attention", "blocks.0.mix", "blocks.1.attention", "blocks.1.mix", "head",
    ]  # fmt: skip
    assert names_of(blocks(), 10_000) == [], "all is gathered with the root"


def test_small_parts_are_gathered_with_the_module_around_them():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2))
    assert names_of(model, 30) == ["0"]


def test_tied_weights_stay_with_the_root():
    model = blocks()
    model.head.weight = model.embed.weight
    assert "embed" not in names_of(model, 400)
    assert "head" not in names_of(model, 400)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Scalar(), "parameter scale is a scalar, which cannot be sharded; give it the shape (1,)"),
        (nn.Sequential(nn.LazyLinear(3)), "parameter 0.weight of a lazy module has no shape yet"),
    ],
)
def test_what_cannot_be_sharded_is_refused_by_name(module, message):
    with pytest.raises(ConfigError, match=re.escape(f"strategy=fsdp: {message}")):
        shard(module, mesh=None)


def test_what_is_not_sharded_is_left_as_it_is(tmp_path):
    state = {"state_dict": {"a": torch.ones(2)}, "loops": [1, (2, "three")], "epoch": 4}
    rest, shards = take_shards(state, 0, 1)
    assert rest == state
    assert shards.parts == {}
    assert put_shards(rest, tmp_path, lambda: None) == state


def test_a_shard_is_readable_without_us_and_one_that_lacks_a_tensor_is_named(tmp_path):
    shards = StateShards(
        "shard-00001-of-00001.safetensors", {"a/b": torch.arange(6.0)}, {"a/b": [0]}
    )
    (record,) = shards.write(tmp_path).values()
    assert record.bytes == (tmp_path / shards.name).stat().st_size
    with safe_open(tmp_path / shards.name, framework="pt") as file:
        assert torch.equal(file.get_tensor("a/b"), torch.arange(6.0))
    with pytest.raises(DataError, match=r"has no shard of a/c; delete the folder to resume"):
        put_shards({"a": {"c": "shardline-shard:a/c"}}, tmp_path, lambda: None)
