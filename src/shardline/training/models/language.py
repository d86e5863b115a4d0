"""The base class of language models: next-token losses, perplexity and text generation."""

from typing import Any

import torch
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError
from shardline.data.collate import NamedBatch
from shardline.training.models.model_inputs import (
    SampleColumns,
    checked_tokens,
    column_of,
    token_column,
)
from shardline.training.models.token_steps import MeasuredModel

_BYTES = 256  # vocabulary of a column of bytes
_CONTINUED = 64  # generated tokens of a described sample, at most
_PROMPT = 256  # prompt tokens, at most: each new token costs a forward pass over all of them


class Perplexity(MeanMetric):
    """The exponential of the mean loss; torchmetrics' own class needs logits instead of losses."""

    def compute(self) -> torch.Tensor:
        """Return the perplexity of all tokens so far."""
        return super().compute().exp()


class LanguageModel(MeasuredModel):
    """A language model that logs losses and perplexities of train, val and test; subclasses define `forward`.

    `forward` maps tokens [B, L] and, for `best_fit` packs, their positions [B, L] to the logits
    [B, L, vocab] of the token after each position.

    Attributes:
        column: Column of the tokens in a batch.
        loss_mask: Column with a weight for each token; None if all tokens count.
        vocab: Number of tokens in the vocabulary.
        context: Longest input in tokens.
        vocab_key: Setting of `vocab`, for messages.
        context_key: Setting of `context`, for messages.
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

    def losses(self, batch: NamedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each next token [B, L - 1] and its weight, 0 for none.

        Raises:
            DataError: A token is not in the vocabulary, or a row is longer than the context.
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
            # padding rows do not count
            counts = counts * (batch["weights"][:, None] > 0)
        seen = tokens[:, :-1]
        logits = self(seen) if positions is None else self(seen, positions)
        # flat: the loss of [B, vocab, L] is not deterministic on a GPU
        losses = functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        return losses.view(counts.shape), counts

    def measured(self, batch: NamedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return losses, losses and weights: the perplexity is computed from the losses too."""
        losses, counts = self.losses(batch)
        return losses, losses, counts

    def predict_step(self, batch: NamedBatch, batch_idx: int) -> torch.Tensor:
        """Reject predictions, which a subclass may define.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "a language model scores the next tokens and makes no prediction of a row; read the generated texts in the "
            "report, export the model, or define predict_step in a subclass of the model"
        )

    def describe_sample(self, batch: NamedBatch) -> dict[str, Any]:
        """Return a sample's first text: its beginning, its continuation and the model's continuation.

        Args:
            batch: Batch of one sample.
        """
        tokens, length = self._tokens(batch)[0], batch[self.column].shape[1]
        if f"{self.column}.positions" in batch:  # a pack; its second row begins at the next 0
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
        """Continue texts token by token, each from the last `context` tokens.

        Args:
            tokens: Integers [B, L] with L >= 1.
            count: Number of tokens to add.
            generator: Generator that samples tokens by probability; None: the likeliest token is used.

        Returns:
            Prompts and new tokens [B, L + count] int64.
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

    def _tokens(self, batch: NamedBatch) -> torch.Tensor:
        return checked_tokens(
            batch, self.column, vocab=self.vocab, most=self.context + 1,
            vocab_key=self.vocab_key, most_key=self.context_key,
        )  # fmt: skip


def token_sizes(columns: SampleColumns, name: str) -> tuple[int | None, int | None]:
    """Return the vocabulary size and the length of a sample; None for each that is not known yet."""
    remedy = f"make samples of it by data.pack: {{column: {name}, length: 256}}"
    column = token_column(columns, name, "uint16[*]", remedy)
    if column is None:
        return None, None
    vocab = _BYTES if column.dtype == "uint8" else None
    return vocab, None if column.varies else column.shape[0]


def check_loss_mask(columns: SampleColumns, tokens: str, name: str) -> None:
    """Reject a loss mask that does not have one number for each token.

    Raises:
        ConfigError: The column has another shape than the tokens.
    """
    column = column_of(columns, name, "model_args.loss_mask")
    of = column_of(columns, tokens, "model_args.column")
    if column is None or of is None:
        return
    if column.kind != "array" or (column.varies, column.shape) != (of.varies, of.shape):
        raise ConfigError(
            f"model_args.loss_mask={name} is {column}, expected one number or boolean for each value of {tokens}, "
            f"which is {of}; add {name} to data.pack.with, or use another column"
        )
