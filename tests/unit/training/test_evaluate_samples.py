"""An evaluation by `test_step` shows samples that the model describes: typical ones and the hardest."""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from shardline.config.hub_models import TokenizerFile
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError, DataError
from shardline.data.sources.text import Text
from shardline.models import GPT, UNet
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from shardline.training.described_samples import MAX_SAMPLES
from shardline.training.evaluate import evaluate
from tests.support.columns import manifest_of
from tests.support.evaluated_model import SHARES
from tests.support.tokenizers import byte_level, words


class Scenes(Source):
    """An image, its mask, boxes and a loss in each held-out row, behind a row to train; ids tell no place."""

    schema = Schema(
        columns={
            "image": "uint8[6,8]",
            "mask": "uint8[6,8]",
            "boxes": "float32[*,4]",
            "loss": "int32",
        }
    )

    def __init__(self, *, losses: list[float], num_shards: int = 2) -> None:
        super().__init__(num_shards=num_shards)
        self.losses = np.array([*losses, 0], np.float32)
        count = len(self.losses)
        self.ids = np.random.default_rng(count).permutation(10 * count)[:count]

    def iter_tables(self, shard: int) -> Any:
        rows = np.array_split(np.arange(len(self.losses)), self.num_shards)[shard]
        image = np.zeros((len(rows), 6, 8), np.uint8) + (rows % 200)[:, None, None].astype(np.uint8)
        columns = {
            "image": image, "mask": image % 3, "loss": self.losses[rows].view(np.int32),
            "boxes": [np.tile(np.float32([0, 0, 4, 3]), (row % 3, 1)) for row in rows],
        }  # fmt: skip
        yield Table(
            ids=self.ids[rows], columns=columns, splits=np.where(rows == len(self.losses) - 1, 0, 2)
        )


class Describing(pl.LightningModule):
    """Returns the losses of the rows, and describes each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_loss", 1.0)
        return {
            "sample_losses": batch["loss"].view(torch.float32)
        }  # which datasets have finite alone

    def describe_sample(self, batch: Any) -> Any:
        assert not self.training
        count = int(batch["boxes.lengths"][0])
        assert len(batch["image"]) == 1
        return {
            "mask": {"true": batch["mask"][0]}, "label": batch["loss"].view(torch.float32),
            "boxes": {"true": batch["boxes"][0, :count], "predicted": batch["boxes"][0, :0]},
        }  # fmt: skip


class Typical(Describing):
    """Returns no losses."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", 1.0)


class Short(Describing):
    """Returns too few losses."""

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_loss", 1.0)
        return {"sample_losses": batch["loss"].sum()}


def evaluated(
    folder: Path, model: type[pl.LightningModule], source: Source, *, tokenizer: Path | None = None,
    weights: dict[str, torch.Tensor] | None = None, **given: Any,
) -> dict[str, Any]:  # fmt: skip
    folder.mkdir(exist_ok=True)
    manifest_of(source, folder, SHARES)
    save_file(weights or {"weight": torch.tensor(1.0)}, folder / "model.safetensors")
    spec = RunSpec(
        run="one", model_class=f"{model.__module__}:{model.__name__}",
        settings=msgspec.convert(given, RunSettings),
    )  # fmt: skip
    place = DatasetPlace(manifest=folder / "manifest.json", shards=folder, tokenizer=tokenizer)
    found = evaluate(
        spec, model_file=folder / "model.safetensors", datasets=[place], has_test_step=True, has_samples=True
    )  # fmt: skip
    return encode(found)


@settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    losses=st.lists(st.sampled_from([0.5, 1.5, 2.5, math.nan, math.inf, -1.0]) | st.floats(0, 9, width=32),
                    min_size=2, max_size=40),
    batch=st.integers(1, 50),
)  # fmt: skip
def test_the_hardest_and_the_typical_are_those_of_the_source_whatever_the_blocks(
    losses: list[float], batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = Scenes(losses=losses)
    found = evaluated(
        tmp_path_factory.mktemp("run"), Describing, source, evaluation={"batch": batch}
    )
    assert json.dumps(found["samples"], allow_nan=False)
    keys = [math.inf if math.isnan(loss) else loss for loss in source.losses[:-1].tolist()]
    worst = sorted(range(len(keys)), key=lambda row: -keys[row])[:MAX_SAMPLES]
    hardest = found["samples"]["hardest"]
    assert [one["row"] for one in hardest] == source.ids[worst].tolist()
    typical = found["samples"]["typical"]
    assert len({one["row"] for one in typical}) == len(typical) == min(len(losses), MAX_SAMPLES)
    by_id = {int(key): row for row, key in enumerate(source.ids)}
    for one in hardest + typical:
        row = by_id[one["row"]]
        loss = float(source.losses[row])
        expected = pytest.approx(loss, rel=1e-5) if math.isfinite(loss) else None
        assert one["label"] == expected
        assert one.get("loss", one["label"]) == expected
        assert len(one["boxes"]["true"]) == row % 3
        assert one["mask"]["classes"] == (
            {str(row % 200 % 3): str(row % 200 % 3)} if row % 200 % 3 else {}
        )
        assert one["image"].startswith("data:image/png")


def test_without_losses_there_are_typical_samples_alone(tmp_path: Path) -> None:
    assert evaluated(tmp_path, Typical, Scenes(losses=[1.0] * 20))["samples"].keys() == {"typical"}


def test_losses_of_another_shape_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"test_step returned sample_losses of shape \[\], expected \[3\]"
    ):
        evaluated(tmp_path, Short, Scenes(losses=[1.0] * 3))


def test_a_unet_shows_its_masks(tmp_path: Path) -> None:
    given = {"classes": 3, "width": 4, "depth": 1}
    model = UNet(sample_columns={"image": "uint8[6,8]", "mask": "uint8[6,8]"}, **given)
    found = evaluated(
        tmp_path, UNet, Scenes(losses=[1.0] * 9), weights=model.state_dict(), model_args=given
    )
    assert len(found["samples"]["hardest"]) == 8
    for one in found["samples"]["hardest"]:
        assert one["mask"].keys() == {"true", "predicted", "classes"}
        assert one["loss"] == pytest.approx(found["metrics"]["test_loss"], rel=1)


@pytest.mark.parametrize("method", ["concat", "best_fit"])
@pytest.mark.parametrize("kind", ["bytes", "tokenizer"])
def test_gpt_continues_texts_that_stand_in_the_source(
    tmp_path: Path, method: str, kind: str
) -> None:
    text = "\n".join(f"the cat {number} sat on the mat" for number in range(30))
    (tmp_path / "lines.txt").write_text(text)
    path = tmp_path / "tokenizer.json"
    tokens = byte_level(path).get_vocab_size()
    source = Text(
        files=[tmp_path / "lines.txt"], num_shards=1, end="\n" if kind == "bytes" else None,
        tokenizer=kind if kind == "bytes" else str(path),
    )  # fmt: skip
    vocab = 256 if kind == "bytes" else tokens
    torch.manual_seed(0)
    model = GPT(vocab=vocab, context=16, layers=1, heads=1, width=8)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    found = evaluated(
        tmp_path / "run", GPT, source, tokenizer=None if kind == "bytes" else path, weights=weights,
        model_args={"vocab": vocab, "layers": 1, "heads": 1, "width": 8}, global_batch=4,
        data={"pack": {"column": "tokens", "length": 16, "method": method}}, evaluation={"batch": 8},
    )  # fmt: skip
    whole = re.sub(r"[0-9]+", "#", text + "\n" if kind == "bytes" else text.replace("\n", ""))
    for one in found["samples"]["hardest"]:  # blocks go from a held-out line to another one
        shown = re.sub(r"[0-9]+", "#", one["text"]["prompt"] + one["text"]["true"]).strip("#")
        assert shown in whole
        assert len(one["text"]["true"]) > 0
        assert isinstance(one["text"]["predicted"], str)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(max_size=40))
def test_tokens_are_spelled_as_the_library_does(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = byte_level(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    file = TokenizerFile(path)
    assert file.text(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert file.num_tokens == tokenizer.get_vocab_size()


def test_other_tokenizers_are_spelled_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    words(path, {"the": 0, "cat": 1, "none": 2})
    assert TokenizerFile(path).text([0, 1, 9]) == "the cat <9>"
    pieces = {
        "Metaspace": (["\u2581a", "b"], " ab"), "WordPiece": (["a", "##b"], " ab"),
        "BPEDecoder": (["a", "b</w>"], "ab "), "ByteFallback": (["<0xC3>", "<0xA9>"], "é"),
    }  # fmt: skip
    for kind, (tokens, expected) in pieces.items():
        vocab = {"vocab": [[token, 0.0] for token in tokens]}
        path.write_text(
            json.dumps(
                {"model": vocab, "decoder": {"type": "Sequence", "decoders": [{"type": kind}]}}
            )
        )
        assert TokenizerFile(path).text([0, 1]) == expected
    path.write_text("{}")
    with pytest.raises(
        DataError, match=r"source.tokenizer=.* cannot be read .*expected a tokenizer.json"
    ):
        TokenizerFile(path)
