"""Heads of transformers beside those of rows with classes: numbers, flags, tokens, hidden tokens, images."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import transformers
from pytorch_lightning import LightningModule

from shardline.config.settings.run_settings import Data
from shardline.errors import ConfigError, DataError
from shardline.training.models.hf_image_classification import ImageClassification
from shardline.training.models.hf_masked_lm import MaskedLM
from shardline.training.models.hf_sequence_classification import SequenceClassification
from shardline.training.models.hf_token_classification import TokenClassification
from shardline.training.models.hf_tokens import TokenLabels
from shardline.training.outside_state import OutsideState
from tests.support.exported import sealed
from tests.unit.training.test_model_huggingface import BERT, GPT2

VIT = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "patch_size": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "values", "problem", "num_labels", "measure"),
    [
        ("float32", [0.5, 2.0], "regression", 1, "mae"),
        ("float32[3]", [[0.5, 1, 2], [3, 4, 5.0]], "regression", 3, "mae"),
        (
            "bool[3]",
            [[True, False, True], [False] * 3],
            "multi_label_classification",
            3,
            "accuracy",
        ),
    ],
)
def test_labels_that_are_no_classes_have_the_loss_of_transformers(
    labels: str, values: Any, problem: str, num_labels: int, measure: str
) -> None:
    model = SequenceClassification(0, {"tokens": "uint8[*]", "labels": labels}, config=BERT)
    model.eval()
    assert (model.hub.config.problem_type, model.hub.config.num_labels) == (problem, num_labels)
    assert model.logged_as == measure
    tokens, given = torch.randint(0, 256, (2, 5)), torch.tensor(values)
    losses, _, _ = model.measured({"tokens": tokens, "labels": given})
    theirs = model.hub(input_ids=tokens, labels=given.float()).loss
    torch.testing.assert_close(losses.mean(), theirs)


@pytest.mark.parametrize("labels", ["int64", "text", "float32[*]", "float32[2,2]"])
def test_other_labels_are_refused(labels: str) -> None:
    with pytest.raises(ConfigError, match="expected classes, numbers such as float32"):
        SequenceClassification(0, {"tokens": "uint8[*]", "labels": labels}, config=BERT)


def test_another_problem_than_that_of_the_labels_is_refused() -> None:
    config = {**BERT, "problem_type": "regression"}
    with pytest.raises(ConfigError, match="problem_type=regression, expected single_label"):
        SequenceClassification(3, {"tokens": "uint8[*]", "labels": "int64"}, config=config)


class Wrapped(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        config = {key: value for key, value in BERT.items() if key != "model_type"}
        self.config = transformers.BertConfig(**config)
        self.hub = transformers.BertForSequenceClassification(self.config)


def test_a_setting_that_transformers_completes_in_the_first_step_is_no_state_of_a_training() -> (
    None
):
    model = Wrapped()
    outside = OutsideState(
        cast("Any", SimpleNamespace(lightning_module=model, callbacks=[], optimizers=[]))
    )
    before = model.config.problem_type
    model.hub(input_ids=torch.ones(2, 4, dtype=torch.int64), labels=torch.tensor([0, 1]))
    assert model.config.problem_type != before
    assert outside.changed() == []


def _tokens(head: str) -> TokenLabels:
    torch.manual_seed(0)
    if head == "token":
        return TokenClassification(5, None, config=BERT).eval()
    return MaskedLM(None, config=BERT).eval()


@pytest.mark.parametrize("head", ["token", "masked"])
def test_each_label_that_counts_weighs_alike_however_rows_are_filled_up_and_split(
    head: str,
) -> None:
    model = _tokens(head)
    rows = [[7, 8, 9, 10], [11, 12], [13]]
    labels = [[1, -100, 2, 3], [4, -100], [0]]

    def batch(chosen: slice, length: int) -> dict[str, Any]:
        found = {
            name: torch.tensor([row + [0] * (length - len(row)) for row in of[chosen]])
            for name, of in (("tokens", rows), ("labels", labels))
        }
        lengths = torch.tensor([len(row) for row in rows[chosen]])
        # of the global batch, on two ranks
        return {**found, "tokens.lengths": lengths, "tokens.mean_count": torch.tensor(3.5)}

    alone = []
    for row, label in zip(rows, labels, strict=True):
        theirs = model.hub(input_ids=torch.tensor([row]), labels=torch.tensor([label])).loss
        alone.append(theirs * sum(one != -100 for one in label))
    losses, _, counts = model.measured(batch(slice(0, 3), 6))
    assert counts.sum() == 5
    torch.testing.assert_close((losses * counts).sum(1), torch.stack(alone))
    model.log = lambda *_, **__: None
    parts = [model.training_step(batch(part, n), 0) for part, n in ((slice(0, 1), 4), (slice(1, 3), 7))]  # fmt: skip
    torch.testing.assert_close(sum(parts) / 2, sum(alone) / 7)


def test_a_row_that_only_fills_up_a_batch_counts_nothing() -> None:
    batch = {
        "tokens": torch.ones(2, 3),
        "labels": torch.ones(2, 3),
        "weights": torch.tensor([1.0, 0]),
    }
    assert _tokens("token").measured(batch)[2].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_labels_that_do_not_fit_the_tokens_are_named() -> None:
    model, tokens = _tokens("token"), torch.ones(1, 3)
    with pytest.raises(DataError, match=r"labels has shape \[1, 2\], expected \[1, 3\]"):
        model.measured({"tokens": tokens, "labels": torch.ones(1, 2)})
    with pytest.raises(DataError, match="has the label 5, expected 0 to 4, or -100"):
        model.measured({"tokens": tokens, "labels": torch.full((1, 3), 5)})
    with pytest.raises(
        ConfigError, match=r"model_args.labels=labels is int64, expected integers, one"
    ):
        TokenClassification(5, {"tokens": "int32[*]", "labels": "int64"}, config=BERT)
    with pytest.raises(ConfigError, match="set model_args.classes"):
        TokenClassification(0, None, config=BERT)
    with pytest.raises(ConfigError, match="does not fit AutoModelForMaskedLM"):
        MaskedLM(None, config=GPT2)


SOURCES = '''
import numpy as np

from shardline.sources import Schema, Source, Table


class Photos(Source):
    """Grey images of three classes."""

    schema = Schema(columns={"image": "uint8[8,8]", "labels": "int64"}, classes=("a", "b", "c"))

    def iter_tables(self, shard):
        rng = np.random.default_rng(shard)
        columns = {"image": rng.integers(0, 255, (12, 8, 8), np.uint8), "labels": np.arange(12) % 3}
        yield Table(ids=12 * shard + np.arange(12), columns=columns)


class Tagged(Source):
    """Rows of tokens with a tag for each."""

    schema = Schema(columns={"tokens": "uint8[*]", "labels": "int64[*]"})

    def iter_tables(self, shard):
        rng = np.random.default_rng(shard)
        tokens = [rng.integers(0, 256, 1 + row % 5, np.uint8) for row in range(12)]
        columns = {"tokens": tokens, "labels": [of.astype(np.int64) % 3 for of in tokens]}
        yield Table(ids=12 * shard + np.arange(12), columns=columns)
'''


@pytest.mark.parametrize(
    ("head", "cls", "source", "args"),
    [
        ("ImageClassification", ImageClassification, "Photos", {"config": VIT}),
        ("TokenClassification", TokenClassification, "Tagged", {"config": BERT, "classes": 3}),
    ],
)
def test_an_export_has_equal_logits_in_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, cls: type, source: str,
    args: dict[str, Any],
) -> None:  # fmt: skip
    (tmp_path / "pictures_and_tags.py").write_text(SOURCES)
    monkeypatch.syspath_prepend(tmp_path)
    model = sealed(
        tmp_path, {"type": f"pictures_and_tags:{source}"}, cls, Data(normalize="none"), **args
    )
    folder, _, check = model.exported("huggingface")
    assert check.max_difference < 1e-6
    read = getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder).eval()
    if source == "Photos":
        config = json.loads((folder / "config.json").read_text())
        assert (config["num_channels"], config["image_size"], read.config.num_labels) == (1, 8, 3)
        images = torch.randint(0, 255, (2, 8, 8), dtype=torch.uint8)
        theirs = read(pixel_values=images[:, None] / 255)
        ours = model.model({"image": images})
    else:
        tokens = torch.tensor([[97, 98]])
        theirs, ours = read(input_ids=tokens), model.model({"tokens": tokens})
    torch.testing.assert_close(theirs.logits, ours)  # not bit by bit: ours has a mask


def test_images_without_classes_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="model=hf:AutoModelForImageClassification needs at least 2 classes"
    ):
        ImageClassification(0, {"image": "uint8[8,8]", "labels": "int64"}, config=VIT)
