"""What predictions and ONNX exports of models of transformers hold, head by head, with rows of unequal length."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from msgspec import structs
from safetensors.numpy import save_file

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, Evaluation
from shardline.core.errors import ConfigError, DataError
from shardline.data.prediction_file import write_predictions
from shardline.data.prediction_parts import LENGTHS, count_parts, part_file
from shardline.data.run_batches import RunBatches
from shardline.training.models.hf_causal_lm import CausalLM
from shardline.training.models.hf_sequence_classification import SequenceClassification
from shardline.training.models.hf_token_classification import TokenClassification
from shardline.training.models.outputs import (
    CLASSES,
    FLAGS,
    NUMBERS,
    NotFiniteError,
    predicted_rows,
    predicted_tokens,
)
from shardline.training.predict import predict
from tests.support.exported import Model, sealed
from tests.unit.training.test_model_huggingface import BERT, GPT2, LLAMA

SOURCES = """
import numpy as np
from shardline.sources import Schema, Source, Table

class Base(Source):
    def iter_tables(self, shard):
        rng = np.random.default_rng(shard)
        tokens = [rng.integers(0, 256, 1 + r % 5, np.uint8) for r in range(12)]
        yield Table(ids=12 * shard + np.arange(12), columns={"tokens": tokens, "labels": self.labels(rng, tokens)})

class Classes(Base):
    schema = Schema(columns={"tokens": "uint8[*]", "labels": "int64"}, classes=("a", "b", "c"))
    def labels(self, rng, tokens): return np.arange(12) % 3

class Number(Base):
    schema = Schema(columns={"tokens": "uint8[*]", "labels": "float32"})
    def labels(self, rng, tokens): return rng.normal(size=12).astype(np.float32)

class Flags(Base):
    schema = Schema(columns={"tokens": "uint8[*]", "labels": "bool[3]"})
    def labels(self, rng, tokens): return rng.normal(size=(12, 3)) > 0

class Tags(Base):
    schema = Schema(columns={"tokens": "uint8[*]", "labels": "int64[*]"})
    def labels(self, rng, tokens): return [t.astype(np.int64) % 3 for t in tokens]
"""
ROBERTA = {
    **BERT,
    "model_type": "roberta",
    "max_position_embeddings": 6,
}  # of which two are reserved
BATCH = 2  # so that blocks have rows of other lengths


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_sources.py").write_text(SOURCES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_sources", raising=False)

    def made(source: str, model_class: type, **model_args: Any) -> Model:
        given = {"type": f"own_sources:{source}"}
        return sealed(tmp_path, given, model_class, Data(normalize="none"), **model_args)

    return made


def predicted(model: Model) -> dict[str, list[Any]]:
    """Return the columns of the predictions of the test rows."""
    place = DatasetPlace(manifest=model.sealed / "manifest.json", shards=model.sealed)
    spec = structs.replace(
        model.spec,
        settings=structs.replace(model.spec.settings, evaluation=Evaluation(batch=BATCH)),
    )
    parts = model.folder / "parts"
    parts.mkdir()
    numbers = range(count_parts(model.manifest.splits["test"], BATCH))
    list(
        predict(
            spec, model_file=model.sealed / "model.safetensors", trained_on=[place], rows=place,
            split="test", folder=parts, parts=numbers,
        )
    )  # fmt: skip
    files = [part_file(parts, number) for number in numbers]
    path = model.folder / "predictions.parquet"
    write_predictions(path, files, classes=model.manifest.schema.classes, names=(), about={})
    table = pq.read_table(path)
    return {name: table[name].to_pylist() for name in table.column_names}


def logits(model: Model) -> list[torch.Tensor]:
    """Return what the model itself gives of each test row alone."""
    place = DatasetPlace(manifest=model.sealed / "manifest.json", shards=model.sealed)
    stream, _ = RunBatches([place], model.spec.settings).held_out("test", batch=1, num_epochs=1)
    own = model.model
    with torch.inference_mode():
        rows = model.manifest.splits["test"]
        batches = stream.batches()
        return [own(next(batches))[0].double() for _ in range(rows)]


@pytest.mark.parametrize(
    "config",
    [BERT, GPT2, LLAMA, {**ROBERTA, "max_position_embeddings": 7}],
    ids=lambda config: config["model_type"],
)
def test_a_class_is_predicted_with_the_probability_of_each(
    make: Any, config: dict[str, Any]
) -> None:
    model = make("Classes", SequenceClassification, config=config)
    table = predicted(model)
    shares = torch.stack(logits(model)).softmax(1).numpy()
    np.testing.assert_allclose(table["probabilities"], shares, atol=1e-6)
    assert table["prediction"] == ["abc"[place] for place in shares.argmax(1)]


def test_a_number_is_predicted(make: Any) -> None:
    model = make("Number", SequenceClassification, config=BERT)
    np.testing.assert_allclose(
        predicted(model)["prediction"], torch.cat(logits(model)).numpy(), atol=1e-6
    )


def test_flags_are_predicted_with_the_probability_of_each(make: Any) -> None:
    model = make("Flags", SequenceClassification, config=LLAMA)
    table, shares = predicted(model), torch.stack(logits(model)).sigmoid().numpy()
    np.testing.assert_allclose(table["probability"], shares, atol=1e-6)
    assert table["prediction"] == (shares > 0.5).tolist()


def test_tokens_are_predicted_as_lists_of_each_row_s_own_length(make: Any) -> None:
    model = make("Tags", TokenClassification, config=BERT, classes=3)
    table, rows = predicted(model), [one.softmax(1).numpy() for one in logits(model)]
    assert table["prediction"] == [row.argmax(1).tolist() for row in rows]
    for found, row in zip(table["probability"], rows, strict=True):
        np.testing.assert_allclose(found, row.max(1), atol=1e-6)


@pytest.mark.rotating
def test_a_decoder_s_classes_are_exported_for_any_number_of_rows(make: Any) -> None:
    model = make("Classes", SequenceClassification, config=GPT2)
    _, config, check = model.exported("onnx")
    assert check.rows > BATCH
    assert config["outputs"][0]["shape"] == ["batch", 3]


def test_a_language_model_predicts_nothing_of_a_row(make: Any) -> None:
    with pytest.raises(
        ConfigError, match="scores the next tokens and makes no prediction of a row"
    ):
        predicted(make("Tags", CausalLM, config=GPT2))


def test_positions_that_roberta_reserves_do_not_count(make: Any) -> None:
    model = make("Classes", SequenceClassification, config=ROBERTA)  # of rows of 1 to 5 tokens
    with pytest.raises(
        DataError,
        match="row of 5 values, expected at most 4 .max_position_embeddings of the model's config, minus 2 reserved",
    ):
        predicted(model)


@settings(deadline=None)
@given(
    mask=arrays(
        np.int64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=st.integers(0, 1)
    ),
    bad=st.sampled_from([np.nan, np.inf, -np.inf]),
    labels=st.sampled_from([CLASSES, FLAGS, NUMBERS]),
    data=st.data(),
)
def test_the_first_row_whose_outputs_are_not_finite_is_named(
    mask: np.ndarray, bad: float, labels: str, data: st.DataObject
) -> None:
    row, place = (data.draw(st.integers(0, most - 1)) for most in mask.shape)
    is_bad = np.zeros(mask.shape, bool)
    is_bad[row, place] = is_bad[row + 1 :] = True
    scores = torch.zeros(*mask.shape, 2)
    scores[..., 1][torch.tensor(is_bad)] = bad
    first = next(iter(np.flatnonzero((is_bad & (mask == 1)).any(axis=1))), None)
    if first is None:
        found = predicted_tokens(scores, torch.tensor(mask), None)
        assert found["probability"].isfinite().all()
    else:
        with pytest.raises(NotFiniteError, match=f"for row {first} of a batch"):
            predicted_tokens(scores, torch.tensor(mask), None)
    with pytest.raises(NotFiniteError, match=f"for row {row} of a batch"):
        predicted_rows(scores[:, place], labels)


@settings(deadline=None)
@given(data=st.data(), lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_lists_come_back_as_long_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, lengths: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    shape = data.draw(st.sampled_from([(), (2,)]))
    width = max(lengths) + data.draw(st.integers(0, 2))
    values = data.draw(arrays(np.int32, (len(lengths), width, *shape)))
    part = {
        "id": np.arange(len(lengths)),
        "prediction": values,
        f"prediction{LENGTHS}": np.array(lengths),
    }
    save_file(part, folder / "part.safetensors")
    write_predictions(
        folder / "out.parquet", [folder / "part.safetensors"], classes=(), names=(), about={}
    )
    found = pq.read_table(folder / "out.parquet")
    assert found.column_names == ["id", "prediction"]
    expected = [row[:length].tolist() for row, length in zip(values, lengths, strict=True)]
    assert found["prediction"].to_pylist() == expected
