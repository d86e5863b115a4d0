"""What language models share: losses of next tokens, their mean and perplexity, and texts that are continued."""

from typing import Any

import torch
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError
from shardline.training.models.model_inputs import (
    SampleColumns,
    checked_tokens,
    column_of,
    token_column,
)
from shardline.training.models.token_steps import MeasuredModel

_BYTES = 256  # tokens of a column of bytes
_CONTINUED = 64  # tokens of the text that continues a sample's first half, at most
_PROMPT = (
    256  # tokens that the model continues, at most: each new one is an evaluation of all of them
)


class Perplexity(MeanMetric):
    """exp of the mean loss: the losses are there already, and torchmetrics' own takes logits."""

    def compute(self) -> torch.Tensor:
        """Return the perplexity of all tokens that were given."""
        return super().compute().exp()


class LanguageModel(MeasuredModel):
    """Logs train_loss, val_loss, val_perplexity, test_loss and test_perplexity; a subclass defines `forward`.

    `forward` takes tokens [B, L] and, of `best_fit` packs, their positions [B, L], and gives the
    logits [B, L, vocab] of what follows each token.

    Attributes:
        column: the tokens of a batch.
        loss_mask: column beside the tokens; None where all tokens count.
        vocab: number of tokens.
        context: most tokens that one is predicted from.
        vocab_key: what sets `vocab`, for messages.
        context_key: what sets `context`, likewise.
    """

    measure = logged_as = "perplexity"
    vocab_key, context_key = "model_args.vocab", "model_args.context"

    def __init__(self, column: str, loss_mask: str | None, vocab: int, context: int) -> None:
        super().__init__()
        self.column = self._column = column
        self.loss_mask = loss_mask
        self.vocab, self.context = vocab, context
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        self.val_perplexity, self.test_perplexity = Perplexity(), Perplexity()

    def losses(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each next token [B, L - 1], and what it counts, 0 for none.

        Raises:
            DataError: a token is not in the vocabulary, or a row is longer than the context.
        """
        tokens = self._tokens(batch)
        positions = batch.get(f"{self.column}.positions")
        counts = torch.ones_like(tokens[:, 1:], dtype=torch.float32)
        if positions is not None:
            counts = (positions[:, 1:] > 0).float()
            positions = positions[:, :-1]
        elif f"{self.column}.lengths" in batch:
            places = torch.arange(1, tokens.shape[1], device=tokens.device)
            counts = (places < batch[f"{self.column}.lengths"][:, None]).float()
        if self.loss_mask is not None:
            counts = counts * (batch[self.loss_mask][:, 1:] != 0)
        if "weights" in batch:
            # rows that only fill up count nothing
            counts = counts * (batch["weights"][:, None] > 0)
        seen = tokens[:, :-1]
        logits = self(seen) if positions is None else self(seen, positions)
        # flat: the loss of [B, vocab, L] is not deterministic on a GPU
        losses = functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        return losses.view(counts.shape), counts

    def measured(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `losses`, which the perplexity is of as well."""
        losses, counts = self.losses(batch)
        return losses, losses, counts

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Refuse: scores of each next token are no prediction of a row; a subclass may have one.

        Raises:
            ConfigError: in any case.
        """
        raise ConfigError(
            "a language model scores what follows each token, which is no prediction of a row; read the texts that the "
            "report continues, export the model, or subclass it with a predict_step of your own"
        )

    def describe_sample(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the first text of a sample: how it begins, how it continues, and how the model continues it.

        Args:
            batch: of one sample.
        """
        tokens, length = self._tokens(batch)[0], batch[self.column].shape[1]
        if f"{self.column}.positions" in batch:  # of a pack, whose first row begins at 0
            begins = torch.nonzero(batch[f"{self.column}.positions"][0] == 0).flatten().tolist()
            length = next((place for place in begins if place), length)
        elif f"{self.column}.lengths" in batch:
            length = int(batch[f"{self.column}.lengths"][0])
        begin = max(length // 2, length - _CONTINUED, min(length, 1))
        prompt, following = tokens[:begin], tokens[begin:length]
        if not len(following):
            return {"text": {"prompt": prompt}}
        predicted = self.generate(prompt[None, -_PROMPT:], len(following))
        return {
            "text": {
                "prompt": prompt,
                "true": following,
                "predicted": predicted[0, -len(following) :],
            }
        }

    @torch.no_grad()
    def generate(
        self, tokens: torch.Tensor, count: int, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Continue texts, from the last `context` tokens each time.

        Args:
            tokens: integers [B, L], L at least 1.
            count: tokens to add.
            generator: draws each token by its probability; left out, the likeliest is taken.

        Returns:
            [B, L + count] int64.
        """
        was_training, tokens = self.training, tokens.long()
        self.eval()
        for _ in range(count):
            logits = self(tokens[:, -self.context :])[:, -1]
            if generator is None:
                following = logits.argmax(dim=1, keepdim=True)
            else:
                shares = logits.float().softmax(dim=1)
                following = torch.multinomial(shares, 1, generator=generator)
            tokens = torch.cat([tokens, following], dim=1)
        self.train(was_training)
        return tokens

    def _tokens(self, batch: dict[str, Any]) -> torch.Tensor:
        return checked_tokens(
            batch, self.column, vocab=self.vocab, most=self.context + 1,
            vocab_key=self.vocab_key, most_key=self.context_key,
        )  # fmt: skip


def token_sizes(columns: SampleColumns, name: str) -> tuple[int | None, int | None]:
    """Return the number of tokens and the values of a sample, where the settings tell them."""
    remedy = f"make samples of it by data.pack: {{column: {name}, length: 256}}"
    column = token_column(columns, name, "uint16[*]", remedy)
    if column is None:
        return None, None
    vocab = _BYTES if column.dtype == "uint8" else None
    return vocab, None if column.varies else column.shape[0]


def check_loss_mask(columns: SampleColumns, tokens: str, name: str) -> None:
    """Refuse a column that has no number for each token.

    Raises:
        ConfigError: its shape is not that of the tokens.
    """
    column = column_of(columns, name, "model_args.loss_mask")
    of = column_of(columns, tokens, "model_args.column")
    if column is None or of is None:
        return
    if column.kind != "array" or (column.varies, column.shape) != (of.varies, of.shape):
        raise ConfigError(
            f"model_args.loss_mask={name} is {column}, expected a number or boolean for each value of {tokens}, which "
            f"is {of}; name {name} in data.pack.with, or another column"
        )
