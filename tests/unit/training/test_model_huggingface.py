"""Models of transformers as shipped models: what they learn, what is refused, and the folder that others read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.hub_models import check_hub_model, hub_files
from shardline.config.settings.run_settings import Data
from shardline.errors import ConfigError, DataError
from shardline.training.models.hf_causal_lm import CausalLM
from shardline.training.models.hf_sequence_classification import SequenceClassification
from tests.support.exported import sealed

BERT = {
    "model_type": "bert", "vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16,
}  # fmt: skip
COLUMNS = {"tokens": "uint8[*]", "labels": "int64"}


def bert(**given: Any) -> SequenceClassification:
    torch.manual_seed(0)
    return SequenceClassification(3, COLUMNS, **{"config": BERT, **given})


@pytest.mark.parametrize("config", [BERT, GPT2, {**GPT2, "pad_token_id": 0}, LLAMA], ids=str)
@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, 8), more=st.integers(0, 5), end=st.integers(0, 2))
def test_what_fills_a_row_up_changes_no_logits(
    config: dict[str, Any], length: int, more: int, end: int
) -> None:
    model = bert(config=config).double().eval()
    row = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(length))
    row[0, -1] = end  # a row's own token may be the one that fills up
    alone = model({"tokens": row})
    filled = torch.nn.functional.pad(row, (0, more))
    batch = {"tokens": filled.repeat(2, 1), "tokens.lengths": torch.tensor([length, length])}
    torch.testing.assert_close(model(batch), alone.repeat(2, 1), rtol=0, atol=1e-9)
    if config is GPT2:  # of one row without padding, transformers agrees
        torch.testing.assert_close(alone, model.hub(input_ids=row).logits, rtol=0, atol=1e-9)


def test_a_causal_model_counts_each_next_token_of_a_row_and_continues_it() -> None:
    torch.manual_seed(0)
    model = CausalLM({"tokens": "uint8[*]"}, config=GPT2).eval()
    assert (model.vocab, model.context) == (256, 32)
    tokens = torch.randint(0, 256, (2, 6))
    losses, counts = model.losses({"tokens": tokens, "tokens.lengths": torch.tensor([6, 3])})
    assert counts.tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
    with torch.no_grad():
        theirs = model.hub(input_ids=tokens[:1], labels=tokens[:1]).loss
    torch.testing.assert_close(losses[0].mean(), theirs)
    assert model.generate(tokens[:, :2], 3).shape == (2, 5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"config": None}, "has neither of model_args.config and model_args.pretrained"),
        ({"pretrained": "x"}, "has both of"),
        ({"config": {**BERT, "model_type": "brt"}}, 'model_type=brt, .* did you mean "bert"'),
        ({"config": {**BERT, "hiden_size": 8}}, 'has hiden_size, .* did you mean "hidden_size"'),
        (
            {"config": {**BERT, "hidden_size": 15}},
            "does not fit AutoModelForSequenceClassification",
        ),
        ({"config": {"model_type": "vit"}}, "does not fit AutoModelForSequenceClassification"),
        ({"config": None, "pretrained": "bert-base-uncased"}, "nothing is downloaded"),
        ({"config": {**BERT, "hidden_size": "x"}}, "is not a valid config of bert .* expected int"),
        ({"config": {**BERT, "num_attention_heads": 0}}, "does not fit AutoModelFor"),
        ({"config": {**BERT, "num_labels": 2}}, "num_labels or id2label for 2 labels, expected 3"),
        ({"config": {**BERT, "attn_implementation": "a/b"}}, "nothing is downloaded; use eager"),
        ({"config": {**BERT, "auto_map": {}}}, "has auto_map, which a config of bert does not"),
        ({"config": {"model_type": "t5"}}, "model_type=t5 needs end or padding tokens in each row"),
        ({"column": "labels"}, "model_args.column=labels is int64, expected integers"),
    ],
)
def test_what_makes_no_model_is_refused_in_one_sentence(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        bert(**given)
    assert "\n" not in str(error.value)


def test_a_token_or_a_row_that_the_model_does_not_have_is_an_error_of_the_data() -> None:
    model = bert(config={**BERT, "max_position_embeddings": 4})
    with pytest.raises(DataError, match="a row of 9 values, expected at most 4"):
        model({"tokens": torch.zeros(2, 9)})
    with pytest.raises(DataError, match="has the token 256, expected 0 to 255; set vocab_size"):
        model({"tokens": torch.full((2, 4), 256)})


def test_an_encoder_that_sees_what_it_predicts_is_no_causal_model() -> None:
    with pytest.raises(
        ConfigError, match="is_decoder=False attends to the tokens that it must predict"
    ):
        CausalLM({"tokens": "uint8[*]"}, config=BERT)
    CausalLM({"tokens": "uint8[*]"}, config={**BERT, "is_decoder": True})


def _of(folder: Path, model_type: dict[str, Any] = BERT) -> Path:
    """Save a model of transformers in several files, with an index."""
    config = transformers.AutoConfig.for_model(**model_type, num_labels=3)
    head = transformers.AutoModelForSequenceClassification
    head.from_config(config).save_pretrained(folder, max_shard_size="5KB")
    return folder


def _pickled(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").touch()


def _alter(name: str, **given: Any) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **given}))

    return alter


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (_pickled, "has no model.safetensors, .* nothing is unpickled, .* of pytorch_model.bin"),
        (_alter(INDEX, weight_map={}), "names no file"),
        (lambda of: max(of.glob("*.safetensors")).write_bytes(b"cut"), "SafetensorError"),
        (lambda of: _of(of, GPT2), "weights of another model than its config.json"),
    ],
)
def test_a_folder_that_needs_code_pickles_or_other_files_is_refused(
    tmp_path: Path, alter: Callable[[Path], Any], told: str
) -> None:
    folder = _of(tmp_path / "m")
    assert bert(config=None, pretrained=str(folder)).hub.num_labels == 3
    config = (folder / "config.json").read_text()
    alter(folder)
    if "another model" in told:
        (folder / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=told) as error:
        bert(config=None, pretrained=str(folder))
    assert "\n" not in str(error.value)


def test_packs_of_several_rows_and_labels_without_classes_are_refused() -> None:
    packed = {"tokens": "uint8[8]", "tokens.positions": "int32[8]"}
    with pytest.raises(ConfigError, match="best_fit separates the rows"):
        CausalLM(packed, config=GPT2)
    with pytest.raises(ConfigError, match="without classes"):
        SequenceClassification(0, COLUMNS, config=BERT)
    with pytest.raises(ConfigError, match="has 64 values, expected at most 33"):
        CausalLM({"tokens": "uint8[64]"}, config=GPT2)


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'shardline\[huggingface\]'"):
        bert()


def test_a_head_that_is_not_trained_and_a_name_on_the_hub_are_refused_before_data(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match='did you mean "hf:AutoModelForCausalLM"'):
        check_hub_model("hf:AutoModelForCausaLM", "runs.tsv row 1: model")
    check_hub_model("hf:Net", "runs.tsv row 1: model")  # a class of a module `hf`
    path = "shardline.training.models.hf_causal_lm:CausalLM"
    with pytest.raises(ConfigError, match=r"row 1: model_args.pretrained=gpt2 has no config.json"):
        hub_files(path, {"pretrained": "gpt2"}, tmp_path, "row 1")
    assert hub_files("mypkg:Net", {"pretrained": "gpt2"}, tmp_path, "row 1") == []


def test_the_files_of_a_folder_count_by_what_is_read(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "README.md", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    path = "shardline.training.models.hf_causal_lm:CausalLM"
    for key, names in (
        ("pretrained", ["config.json", "model.safetensors"]),
        ("config", ["config.json"]),
    ):
        found = hub_files(path, {key: "."}, tmp_path, "row 1")
        assert [one.name for one in found] == names


def test_an_export_is_read_by_from_pretrained_and_trained_from(tmp_path: Path) -> None:
    rows = [{"text": "ab" * (1 + n % 9), "label": n % 3} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = {
        "type": "jsonl", "files": ["rows.jsonl"], "tokenize": {"tokens": "text"}, "label": "label",
        "num_classes": 3,
    }  # fmt: skip
    model = sealed(tmp_path, source, SequenceClassification, Data(), config=BERT)
    folder, config, check = model.exported("huggingface")
    assert check.max_difference < 1e-6
    assert [one["name"] for one in config["inputs"]] == ["tokens", "tokens.lengths"]

    read = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert read.config.id2label == {0: "0", 1: "1", 2: "2"}
    again = SequenceClassification(3, COLUMNS, pretrained=str(folder)).eval()
    weights = model.model.state_dict()
    assert weights.keys() == again.state_dict().keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in again.state_dict().items())
    tokens = torch.tensor([[97, 98]])
    expected = model.model({"tokens": tokens})
    # other computations than the model's: without a mask, and with weights at other places in memory
    torch.testing.assert_close(read(input_ids=tokens).logits, expected)
    torch.testing.assert_close(again({"tokens": tokens}), expected)


def test_another_model_is_not_exported_in_this_layout(tmp_path: Path) -> None:
    from shardline.training.models.gpt import GPT

    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": "abc"}) for _ in range(30)))
    source = {"type": "jsonl", "files": ["rows.jsonl"], "tokenize": {"tokens": "text"}}
    model = sealed(tmp_path, source, GPT, Data(), context=8, width=8, layers=1, heads=1)
    with pytest.raises(ConfigError, match="--to huggingface needs a model of transformers"):
        model.exported("huggingface")
