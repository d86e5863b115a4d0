"""A decoder-only transformer language model."""

import math

import torch
from torch import nn
from torch.nn import functional

from shardline.core.errors import ConfigError
from shardline.training.models.language import LanguageModel, check_loss_mask, token_sizes
from shardline.training.models.model_inputs import SampleColumns


class GPT(LanguageModel):
    """The GPT-2 transformer (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

    Normalisation comes before attention and multilayer perceptron, positions are learned, and the
    output layer shares its weights with the embedding. The model logs train_loss, val_loss,
    val_perplexity, test_loss and test_perplexity (mean loss of a token in nats, and its exponential).

    A batch contains the tokens [B, L] in `column`. Further columns change which tokens count:

    - `{column}.positions` (from `best_fit` packs): tokens attend only to tokens of their own row.
    - `{column}.lengths`: values after the end of a row do not count.
    - `loss_mask`: tokens with 0 or false are read, but their loss does not count.

    Args:
        sample_columns: Columns of the samples, from dataset and settings.
        column: Column of the tokens, integers or bytes.
        loss_mask: Column with a number or boolean for each token; None: all tokens count.
        vocab: Number of tokens in the vocabulary; default for bytes: 256.
        context: Longest input in tokens; default: length of the samples.
        layers: Number of blocks of attention and multilayer perceptron.
        heads: Number of attention heads; must divide `width`.
        width: Width of the embedding; the multilayer perceptron is four times as wide.
        dropout: Probability of dropping a unit in training.

    Raises:
        ConfigError: The dataset has no such tokens, or a setting is missing or out of range.
    """

    def __init__(
        self, sample_columns: SampleColumns = None, *, column: str = "tokens", loss_mask: str | None = None,
        vocab: int | None = None, context: int | None = None, layers: int = 4, heads: int = 4, width: int = 128,
        dropout: float = 0.1,
    ) -> None:  # fmt: skip
        known_vocab, length = token_sizes(sample_columns, column)
        if width % heads:
            raise ConfigError(
                f"model_args.width={width} is not divisible by model_args.heads={heads}; use "
                f"model_args.width={-(-width // heads) * heads}"
            )
        if loss_mask is not None:
            check_loss_mask(sample_columns, column, loss_mask)
        super().__init__(
            column,
            loss_mask,
            _given("vocab", vocab, known_vocab, "the tokenizer's number of tokens"),
            _given("context", context, length, "or data.pack, for samples of one length"),
        )
        if length and length > self.context:
            raise ConfigError(
                f"model_args.context={context} is shorter than a sample's {column} ({length} values); leave "
                "model_args.context out, or use a smaller data.pack.length"
            )
        self.embed = nn.Embedding(self.vocab, width)
        self.places = nn.Embedding(self.context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.vocab, bias=False)
        self.apply(_initialize)
        for name, weight in self.blocks.named_parameters():
            if name.endswith(("join.weight", "narrow.weight")):  # scaled by depth, as in GPT-2
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits [B, L, vocab] of the token after each position.

        Args:
            tokens: Integers [B, L] with L <= `context`.
            positions: Position of each token in its row [B, L], 0 for the first token; None: all
                tokens [L] form one row.
        """
        tokens = tokens.long()
        mask = None
        if positions is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        else:
            places = positions.long()
            rows = (places == 0).cumsum(dim=1)  # padding has position 0: each value is its own row
            mask = (rows[:, :, None] == rows[:, None, :]).tril().unsqueeze(1)
        hidden = self.drop(self.embed(tokens) + self.places(places))
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


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
            hidden: Input [B, L, width].
            mask: Tokens that each token attends to [B, 1, L, L]; None: all tokens up to itself.
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


def _given(key: str, value: int | None, known: int | None, what: str) -> int:
    found = value or known
    if found is None:
        raise ConfigError(
            f"model_args.{key} is not set, and the dataset does not determine it; set model_args.{key} ({what})"
        )
    return found
