"""`hf:AutoModelForCausalLM`: a transformers language model."""

import torch

from shardline.core.errors import ConfigError
from shardline.training.models.hf_inputs import (
    VOCAB_KEY,
    Limits,
    check_no_packs,
    sees_what_follows,
)
from shardline.training.models.huggingface import HubConfig, make_hub_model
from shardline.training.models.language import LanguageModel, check_loss_mask, token_sizes
from shardline.training.models.model_inputs import SampleColumns


class CausalLM(LanguageModel):
    """Predicts each next token with a transformers model; logs the same metrics as `gpt`.

    Args:
        sample_columns: Columns of the samples, from dataset and settings.
        config: Table with `model_type`, or folder with a `config.json`.
        pretrained: Folder with a `config.json` and the initial weights.
        column: Column of the tokens, integers or bytes.
        loss_mask: Column with a number or boolean for each token; None: all tokens count.

    Attributes:
        hub: The transformers model.

    Raises:
        ConfigError: See `make_hub_model`; or the dataset has no such tokens, or its samples are
            longer than the model's positions.
    """

    vocab_key = VOCAB_KEY

    def __init__(
        self, sample_columns: SampleColumns = None, *, config: HubConfig = None,
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
                f"model_type={hub.config.model_type} with is_decoder=False attends to the tokens that it must predict, "
                "expected a decoder; set model_args.config.is_decoder to true, or use gpt2 or llama"
            )
        limits = Limits.of(hub)
        if length and length > limits.most + 1:
            raise ConfigError(
                f"a sample's {column} has {length} values, expected at most {limits.most + 1} (1 + "
                f"{limits.most_key}); raise this limit, or use a smaller data.pack.length"
            )
        super().__init__(column, loss_mask, limits.vocab, limits.most)
        self.context_key = limits.most_key
        self.hub = hub

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, L, vocab] of the token after each position of tokens [B, L]."""
        # no attention mask: padding comes last, so no token of a row attends to it
        logits: torch.Tensor = self.hub(input_ids=tokens.long(), use_cache=False).logits
        return logits
