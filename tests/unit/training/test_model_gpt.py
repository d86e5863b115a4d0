"""The shipped language model: what a token is predicted from, packs, sizes from the data, continuation."""

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.data import DataLoader

from shardline.errors import ConfigError, DataError
from shardline.training.models.gpt import GPT

VOCAB, LENGTH = 11, 12
PACKED = {
    "tokens": f"uint16[{LENGTH}]",
    "tokens.positions": f"int32[{LENGTH}]",
    "tokens.cu_seqlens": "int32[*]",
}
ROWS = st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda rows: sum(rows) <= LENGTH)


def gpt(seed: int = 0, **given: Any) -> GPT:
    torch.manual_seed(seed)
    made = {"vocab": VOCAB, "context": LENGTH, "layers": 2, "heads": 2, "width": 8, **given}
    return GPT(**made).double().eval()


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def packed(rows: list[int], values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a pack of rows of these lengths."""
    used = sum(rows)
    positions = torch.cat([torch.arange(n) for n in rows] + [torch.zeros(LENGTH - used).long()])
    filled = torch.where(torch.arange(LENGTH) < used, values, 0)
    return {"tokens": filled[None], "tokens.positions": positions.int()[None]}


@settings(max_examples=20, deadline=None)
@given(place=st.integers(0, LENGTH - 1), seed=st.integers(0, 9))
def test_a_later_token_changes_no_earlier_logits(place: int, seed: int) -> None:
    model, before = gpt(seed), tokens(2, LENGTH, seed=seed)
    after = before.clone()
    after[:, place] = (after[:, place] + 1) % VOCAB
    with torch.no_grad():
        differs = (model(before) - model(after)).abs().amax(dim=(0, 2)) > 0
    assert not differs[:place].any()
    assert differs[place:].any(), "what is seen counts"


@settings(max_examples=20, deadline=None)
@given(rows=ROWS, place=st.integers(0, LENGTH - 1), seed=st.integers(0, 9))
def test_a_row_of_a_pack_changes_no_other_rows_logits(
    rows: list[int], place: int, seed: int
) -> None:
    model, values = gpt(seed), tokens(LENGTH, seed=seed)
    place %= sum(rows)
    changed = values.clone()
    changed[place] = (changed[place] + 1) % VOCAB
    row_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))
    with torch.no_grad():
        one, other = (
            model(pack["tokens"], pack["tokens.positions"])[0]
            for pack in (packed(rows, values), packed(rows, changed))
        )
    differs = (one - other).abs().amax(dim=1) > 0
    others = torch.nonzero(row_of != row_of[place]).flatten()
    assert not differs[others].any()
    assert differs[place]
    assert torch.isfinite(one).all()


@settings(max_examples=10, deadline=None)
@given(rows=ROWS.filter(lambda rows: max(rows) > 1), seed=st.integers(0, 9))
def test_a_pack_has_the_gradients_of_its_rows_apart(rows: list[int], seed: int) -> None:
    values = tokens(LENGTH, seed=seed)
    model, apart = gpt(seed), gpt(seed)
    losses, counts = model.losses(packed(rows, values))
    (losses * counts).sum().backward()
    total = 0
    for row in values[: sum(rows)].split(rows):
        if len(row) > 1:
            logits = apart(row[None, :-1])[0]
            functional.cross_entropy(logits, row[1:], reduction="sum").backward()
        total += len(row) - 1
    assert counts.sum() == total
    for one, other in zip(model.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=1e-9)


def test_what_fills_up_rows_and_batches_does_not_count() -> None:
    model, values = gpt(), tokens(2, 6)
    lengths = torch.tensor([6, 3])
    losses, counts = model.losses({"tokens": values, "tokens.lengths": lengths})
    assert counts.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    alone, _ = model.losses({"tokens": values[1:, :3], "tokens.lengths": lengths[1:]})
    torch.testing.assert_close(losses[1, :2], alone[0])
    _, counts = model.losses({"tokens": values, "weights": torch.tensor([2.0, 0.0])})
    assert counts.sum(dim=1).tolist() == [5, 0]


@pytest.mark.parametrize("form", ["blocks", "packs"])
def test_tokens_of_a_step_weigh_alike_however_it_is_split(form: str) -> None:
    values, logged = tokens(4, LENGTH), []
    batch = {"tokens": values}
    if form == "packs":  # of which the last has no second half
        rows = torch.tensor([[12, 0], [4, 8], [6, 6], [5, 1]])
        places = torch.arange(LENGTH).expand(4, LENGTH)
        first, both = rows[:, :1], rows.sum(dim=1, keepdim=True)
        places = torch.where(places < first, places, places - first) * (places < both)
        batch["tokens.positions"] = places.int()
    whole, split = gpt(), gpt()
    losses, counts = whole.losses(batch)
    total = 42 if form == "packs" else counts.sum()
    ((losses * counts).sum() / total).backward()
    split.log = lambda name, value, **_: logged.append(value)  # type: ignore[method-assign, assignment]
    for part in ([0, 1], [2, 3]):
        of_part = {name: value[part] for name, value in batch.items()}
        if form == "packs":
            of_part["tokens.mean_count"] = torch.tensor(42 / 2)
        (split.training_step(of_part, 0) / 2).backward()
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=1e-6)
    kept = losses[:2][counts[:2] > 0]
    torch.testing.assert_close(logged[0], kept.mean())


@settings(max_examples=20, deadline=None)
@given(
    rows=ROWS,
    seed=st.integers(0, 99),
    number=st.sampled_from([torch.bool, torch.int64, torch.float32]),
)
def test_tokens_that_the_loss_mask_leaves_out_do_not_count(
    rows: list[int], seed: int, number: torch.dtype
) -> None:
    model, pack = gpt(loss_mask="mask"), packed(rows, tokens(LENGTH, seed=seed))
    mask = torch.rand(1, LENGTH, generator=torch.Generator().manual_seed(seed)) > 0.5
    plain, counts = gpt().losses(pack)
    losses, masked = model.losses({**pack, "mask": mask.to(number)})
    assert torch.equal(losses, plain)
    assert torch.equal(masked > 0, (counts > 0) & mask[:, 1:])


@settings(max_examples=20, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 9), form=st.sampled_from(["pack", "lengths", "block"]))
def test_a_described_sample_is_the_first_text_with_as_many_tokens_predicted(
    rows: list[int], seed: int, form: str
) -> None:
    values = tokens(LENGTH, seed=seed)
    batch, length = {"tokens": values[None]}, LENGTH
    if form == "pack":
        batch, length = packed(rows, values), rows[0]
    if form == "lengths":
        length = sum(rows)
        batch["tokens.lengths"] = torch.tensor([length])
    model = gpt(seed)
    text = model.describe_sample(batch)["text"]
    whole = torch.cat([text["prompt"], text.get("true", text["prompt"][:0])])
    assert torch.equal(whole, values[:length])
    assert len(text["prompt"]) >= 1
    if length > 1:
        expected = model.generate(text["prompt"][None], length - len(text["prompt"]))
        assert torch.equal(torch.cat([text["prompt"], text["predicted"]])[None], expected)


def test_an_empty_row_is_described() -> None:
    batch = {"tokens": torch.zeros(1, 3).long(), "tokens.lengths": torch.tensor([0])}
    assert len(gpt().describe_sample(batch)["text"]["prompt"]) == 0


def trainer(**options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


class Overfit(GPT):
    """With an optimiser."""

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


@pytest.mark.parametrize("column", ["uint8[*]", "packs"])
def test_a_tiny_set_is_learnt_and_continued(column: str) -> None:
    torch.manual_seed(0)
    text = torch.arange(LENGTH) * 3 % VOCAB  # each token follows from the one before
    batch = {"tokens": text.to(torch.uint8).repeat(4, 1)}
    if column == "packs":
        batch["tokens.positions"] = (torch.arange(LENGTH) % 6).int().repeat(4, 1)
    model = Overfit(
        {"tokens": f"uint8[{LENGTH}]"}, vocab=VOCAB, layers=1, heads=2, width=16, dropout=0.0
    )
    batches, many = (DataLoader([batch] * times, batch_size=None) for times in (1, 50))
    (before,) = trainer().test(model, batches, verbose=False)
    ran = trainer(max_epochs=1)
    ran.fit(model, many, batches)
    (after,) = trainer().test(model, batches, verbose=False)
    assert before["test_perplexity"] == pytest.approx(VOCAB, rel=0.2)
    assert after["test_perplexity"] < 1.2
    assert after["test_perplexity"] == pytest.approx(torch.tensor(after["test_loss"]).exp())
    assert {"train_loss", "val_loss", "val_perplexity"} <= ran.callback_metrics.keys()
    assert model.generate(text[None, :2], 4).tolist() == [text[:6].tolist()]


def test_a_continuation_is_drawn_by_its_generator_and_sees_the_context_alone() -> None:
    model, start = gpt(context=4), tokens(3, 2)
    drawn = [model.generate(start, 20, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert drawn[0].shape == (3, 22)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[0][:, :2], start)
    model.train()
    greedy = model.generate(start, 9)
    assert model.training
    with torch.no_grad():
        last = model.eval()(greedy[:, -5:-1])[:, -1]
    assert torch.equal(last.argmax(dim=1), greedy[:, -1])


def test_sizes_come_from_the_data() -> None:
    of_bytes = GPT({"tokens": "uint8[64]"}, width=8, heads=2, layers=1)
    assert (of_bytes.vocab, of_bytes.context) == (256, 64)
    assert GPT(PACKED, vocab=VOCAB, width=8, heads=2).context == LENGTH
    other = GPT({"text": "uint16[*]"}, column="text", vocab=9, context=5, width=8, heads=2)
    assert (other.vocab, other.context) == (9, 5)


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (
            {"image": "bytes", "labels": "int64"}, {},
            r"model_args\.column=tokens is not a column of the samples, which have image, labels; set",
        ),
        ({"token": "uint8[8]"}, {}, 'did you mean "token"'),
        ({"tokens": "float32[*]"}, {}, r"model_args\.column=tokens is float32\[\*\], expected integers"),
        ({"tokens": "uint8[8,8]"}, {}, r"is uint8\[8,8\], expected integers"),
        ({"tokens": "text"}, {}, r"tokens is text, .*data\.pack: \{column: tokens, length: 256\}"),
        (
            {"features": "uint8[8]", "labels": "int64"}, {"column": "features"},
            r"is uint8\[8\] \(features of a table\), expected integers",
        ),
        ({"tokens": "uint16[8]"}, {}, r"model_args\.vocab is not set.*tokenizer's number of tokens"),
        ({"tokens": "uint8[*]"}, {}, r"model_args\.context is not set.*data\.pack"),
        ({"tokens": "uint8[8]"}, {"context": 7}, r"context=7 is shorter than a sample's tokens \(8 values\)"),
        ({"tokens": "uint8[8]"}, {"width": 10, "heads": 4}, r"width=10 .*heads=4; use model_args.width=12"),
        ({"tokens": "uint8[8]"}, {"loss_mask": "mask"}, r"model_args\.loss_mask=mask is not a column of the samples"),
        (
            {"tokens": "uint8[8]", "mask": "bool[*]"}, {"loss_mask": "mask"},
            r"loss_mask=mask is bool\[\*\], expected .* for each value of tokens, .* add mask to data\.pack\.with",
        ),
    ],
)  # fmt: skip
def test_data_and_settings_that_do_not_fit_are_named(
    columns: dict[str, str | None], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        GPT(columns, **given)


def test_tokens_and_rows_beyond_the_models_sizes_are_named() -> None:
    model = gpt()
    with pytest.raises(
        DataError, match=r"has the token 11, expected 0 to 10; set model_args\.vocab"
    ):
        model.losses({"tokens": torch.tensor([[1, VOCAB]])})
    with pytest.raises(DataError, match="has the token -1, expected"):
        model.losses({"tokens": torch.tensor([[1, -1]])})
    with pytest.raises(
        DataError, match=r"a row of 14 values, expected at most 13 \(model_args\.context\)"
    ):
        model.losses({"tokens": tokens(1, LENGTH + 2)})


def test_the_output_layer_is_the_embedding_and_weights_are_restored() -> None:
    model = gpt()
    assert model.head.weight is model.embed.weight
    other = gpt(seed=5)
    other.load_state_dict(model.state_dict())
    values = tokens(2, LENGTH)
    assert torch.equal(model(values), other(values))
