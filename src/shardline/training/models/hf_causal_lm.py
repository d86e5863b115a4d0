"""`hf:AutoModelForCausalLM`: a language model of transformers."""

from collections.abc import Mapping
from typing import Any

import torch

from shardline.core.errors import ConfigError
from shardline.training.models.hf_inputs import (
    VOCAB_KEY,
    Limits,
    check_no_packs,
    sees_what_follows,
)
from shardline.training.models.huggingface import make_hub_model
from shardline.training.models.language import LanguageModel, check_loss_mask, token_sizes
from shardline.training.models.model_inputs import SampleColumns


class CausalLM(LanguageModel):
    """Predicts each next token by a model of transformers; logs what the shipped `gpt` does.

    Args:
        sample_columns: columns of the samples, from dataset and settings.
        config: of the model: a table with `model_type`, or a folder with a `config.json`.
        pretrained: a folder with a `config.json` and the weights that the training begins from.
        column: integers or bytes.
        loss_mask: column beside the tokens; left out, all tokens count.

    Attributes:
        hub: the model of transformers.

    Raises:
        ConfigError: see `make_hub_model`; or the dataset has no such tokens, or longer samples than
            the model has positions.
    """

    vocab_key = VOCAB_KEY

    def __init__(
        self, sample_columns: SampleColumns = None, *, config: Mapping[str, Any] | str | None = None,
        pretrained: str | None = None, column: str = "tokens", loss_mask: str | None = None,
    ) -> None:  # fmt: skip
        known_vocab, length = token_sizes(sample_columns, column)
        check_no_packs(sample_columns, column)
        if loss_mask is not None:
            check_loss_mask(sample_columns, column, loss_mask)
        sizes = {"vocab_size": known_vocab} if known_vocab else {}
        hub = make_hub_model("AutoModelForCausalLM", config, pretrained, **sizes)
        if sees_what_follows(hub):
            raise ConfigError(
                f"model_type={hub.config.model_type} with is_decoder=False sees the tokens that it is to predict, "
                "expected a decoder; set model_args.config.is_decoder to true, or use gpt2 or llama"
            )
        limits = Limits.of(hub)
        if length and length > limits.most + 1:
            raise ConfigError(
                f"a sample's {column} has {length} values, expected at most {limits.most + 1}, one more than "
                f"{limits.most_key}; raise it, or use a smaller data.pack.length"
            )
        super().__init__(column, loss_mask, limits.vocab, limits.most)
        self.context_key = limits.most_key
        self.hub = hub

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, L, vocab] of what follows each token of [B, L]."""
        # rows end with what fills them up, which no token of a row sees
        logits: torch.Tensor = self.hub(input_ids=tokens.long(), use_cache=False).logits
        return logits
