"""A decoder-only transformer: a language model."""

import math
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.core.errors import ConfigError, DataError
from shardline.training.losses import token_mean
from shardline.training.models.inputs import SampleColumns, column_of
from shardline.training.models.metrics import Perplexity

_BYTES = 256  # tokens of a column of bytes
_CONTINUED = 64  # tokens of the text that continues a sample's first half, at most
_PROMPT = (
    256  # tokens that the model continues, at most: each new one is an evaluation of all of them
)


class GPT(LightningModule):
    """The transformer of Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

    Normalisation comes before attention and multilayer perceptron, positions are learned, and the
    output layer has the weights of the embedding. It logs train_loss, val_loss, val_perplexity,
    test_loss and test_perplexity: the mean loss in nats of a token, and its exponential.

    A batch has the tokens [B, L] under `column`. Where `{column}.positions` is there, as of
    `best_fit` packs, tokens see those of their own row alone; where `{column}.lengths` is there,
    values behind a row's end do not count. A token whose place in `loss_mask` is 0 or false does
    not count either, and is only read.

    Args:
        sample_columns: columns of the samples, from dataset and settings.
        column: integers or bytes.
        loss_mask: column beside the tokens, of numbers or booleans, such as of `data.pack.with`;
            left out, all tokens count.
        vocab: number of tokens; left out, 256 for bytes.
        context: most tokens that one is predicted from; left out, the samples' length.
        layers: blocks of attention and multilayer perceptron.
        heads: of the attention, which divide the width.
        width: of the embedding; the multilayer perceptron has four times as many.
        dropout: share of units dropped in training.

    Raises:
        ConfigError: the dataset has no such tokens, or a setting is missing or out of range.
    """

    def __init__(
        self, sample_columns: SampleColumns = None, *, column: str = "tokens", loss_mask: str | None = None,
        vocab: int | None = None, context: int | None = None, layers: int = 4, heads: int = 4, width: int = 128,
        dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        known_vocab, length = _sizes(sample_columns, column)
        if width % heads:
            raise ConfigError(
                f"model_args.width={width} cannot be shared by model_args.heads={heads}; use "
                f"{-(-width // heads) * heads}"
            )
        if loss_mask is not None:
            _check_loss_mask(sample_columns, column, loss_mask)
        self.column, self.loss_mask = column, loss_mask
        self.vocab = _given("vocab", vocab, known_vocab, "the tokenizer's number of tokens")
        self.context = _given("context", context, length, "or data.pack, for samples of one length")
        if length and length > self.context:
            raise ConfigError(
                f"model_args.context={context} is less than the {length} values of a sample's {column}; leave it "
                "out, or use a smaller data.pack.length"
            )
        self.embed = nn.Embedding(self.vocab, width)
        self.places = nn.Embedding(self.context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.vocab, bias=False)
        self.apply(_initialize)
        for name, weight in self.blocks.named_parameters():
            if name.endswith(("join.weight", "narrow.weight")):  # what blocks add, by their number
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))
        self.head.weight = self.embed.weight
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        self.val_perplexity, self.test_perplexity = Perplexity(), Perplexity()

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits [B, L, vocab] of what follows each token.

        Args:
            tokens: integers [B, L], L at most `context`.
            positions: place of each token in its row [B, L], 0 for a row's first; left out, a row
                is one text.
        """
        tokens = tokens.long()
        mask = None
        if positions is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        else:
            places = positions.long()
            rows = (places == 0).cumsum(dim=1)  # what fills up is at 0: a row of its own each
            mask = (rows[:, :, None] == rows[:, None, :]).tril().unsqueeze(1)
        hidden = self.drop(self.embed(tokens) + self.places(places))
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits

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
            counts = counts * (
                batch["weights"][:, None] > 0
            )  # rows that only fill up count nothing
        logits = self(tokens[:, :-1], positions)
        # flat: the loss of [B, vocab, L] is not deterministic on a GPU
        losses = functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        return losses.view(counts.shape), counts

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Return a loss whose gradient weighs the global batch's tokens alike, see `token_mean`.

        `train_loss` is the mean over the tokens of this rank's batch that count.
        """
        losses, counts = self.losses(batch)
        mean = (losses.detach() * counts).sum() / counts.sum().clamp(min=1)
        self.log("train_loss", mean, batch_size=len(losses))
        mean_count = batch.get(f"{self.column}.mean_count")
        if mean_count is None and "weights" not in batch:
            mean_count = losses.numel()  # blocks are full, on each rank
        return token_mean(losses, counts, mean_count=mean_count)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Log loss and perplexity, each token of all ranks counting once."""
        losses, counts = self.losses(batch)
        self.val_loss.update(losses, counts)
        self.val_perplexity.update(losses, counts)
        self.log_dict(
            {"val_loss": self.val_loss, "val_perplexity": self.val_perplexity},
            batch_size=len(losses),
        )

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, torch.Tensor]:
        """Log loss and perplexity of held-out data, likewise, and return the mean loss of each sample [B]."""
        losses, counts = self.losses(batch)
        self.test_loss.update(losses, counts)
        self.test_perplexity.update(losses, counts)
        self.log_dict(
            {"test_perplexity": self.test_perplexity, "test_loss": self.test_loss},
            batch_size=len(losses),
        )
        return {"sample_losses": (losses * counts).sum(1) / counts.sum(1).clamp(min=1)}

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
        tokens: torch.Tensor = batch[self.column].long()
        if tokens.shape[1] - 1 > self.context:
            raise DataError(
                f"column {self.column} has a row of {tokens.shape[1]:,} values, expected at most {self.context + 1:,} "
                "by model_args.context; raise it, or cut the rows by data.pack"
            )
        # on a GPU the embedding's own check would end the process, and this one costs a wait
        least, most = (int(of) for of in tokens.aminmax())
        if least < 0 or most >= self.vocab:
            raise DataError(
                f"column {self.column} has the token {least if least < 0 else most}, expected 0 to "
                f"{self.vocab - 1:,} by model_args.vocab; set it to the tokenizer's number of tokens"
            )
        return tokens


class _Block(nn.Module):
    """Attention and multilayer perceptron, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return [B, L, width].

        Args:
            mask: which tokens each token sees [B, 1, L, L]; None for all before it.
        """
        batch, length, width = hidden.shape
        parts = self.split(self.norm_1(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None,
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.drop(self.join(attended))
        wide = functional.gelu(self.widen(self.norm_2(hidden)), approximate="tanh")
        added: torch.Tensor = hidden + self.drop(self.narrow(wide))
        return added


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _sizes(columns: SampleColumns, name: str) -> tuple[int | None, int | None]:
    """Return the number of tokens and the values of a sample, where the settings tell them."""
    column = column_of(columns, name, "model_args.column")
    if column is None:
        return None, None
    dimensions = column.varies + len(column.shape)
    is_number = column.dtype.removeprefix("u").startswith("int")
    is_table = columns is not None and columns.keys() == {"features", "labels"}
    if dimensions != 1 or not is_number or column.kind != "array" or is_table:
        remedy = "name a column of tokens in model_args.column"
        if column.kind != "array":
            remedy = f"make samples of it by data.pack: {{column: {name}, length: 256}}"
        raise ConfigError(
            f"model_args.column={name} is {column}{', as features of a table' if is_table else ''}, expected integers "
            f"such as uint16[*]; {remedy}"
        )
    vocab = _BYTES if column.dtype == "uint8" else None
    return vocab, None if column.varies else column.shape[0]


def _check_loss_mask(columns: SampleColumns, tokens: str, name: str) -> None:
    column = column_of(columns, name, "model_args.loss_mask")
    of = column_of(columns, tokens, "model_args.column")
    if column is None or of is None:
        return
    if column.kind != "array" or (column.varies, column.shape) != (of.varies, of.shape):
        raise ConfigError(
            f"model_args.loss_mask={name} is {column}, expected a number or boolean for each value of {tokens}, which "
            f"is {of}; name {name} in data.pack.with, or another column"
        )


def _given(key: str, value: int | None, known: int | None, what: str) -> int:
    found = value or known
    if found is None:
        raise ConfigError(
            f"model_args.{key} is not given, and the dataset does not tell it; set it ({what})"
        )
    return found
