"""Inputs of transformers models: checked tokens, and attention masks for padding."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from shardline.core.errors import ConfigError
from shardline.data.collate import NamedBatch
from shardline.training.models.model_inputs import SampleColumns, checked_tokens

# where the sizes of a transformers model are set, for messages
VOCAB_KEY = "vocab_size of the model's config"
POSITIONS_KEY = "max_position_embeddings of the model's config"


def check_no_packs(columns: SampleColumns, name: str) -> None:
    """Reject packs of several rows, since a transformers model would let their tokens attend to each other.

    Raises:
        ConfigError: The samples are packed by `best_fit`.
    """
    if columns is not None and f"{name}.positions" in columns:
        raise ConfigError(
            "data.pack.method=best_fit separates the rows of a pack, which transformers models do not support; use "
            "data.pack.method=concat, or leave data.pack out"
        )


@dataclass(frozen=True)
class Limits:
    """Limits of the tokens that a transformers model accepts.

    Attributes:
        vocab: Number of tokens in the vocabulary.
        most: Longest row in tokens; a large number if the config has no limit.
        most_key: Setting of `most`, for messages.
    """

    vocab: int
    most: int
    most_key: str = POSITIONS_KEY

    @classmethod
    def of(cls, hub: Any) -> "Limits":
        """Return the limits of a model; roberta and similar models reserve some positions."""
        text = hub.config.get_text_config()
        most = getattr(text, "max_position_embeddings", None)
        if not isinstance(most, int) or most < 1:
            return cls(text.vocab_size, 1 << 30)
        # their first token has the position after that of padding
        places = (of for name, of in hub.named_modules() if name.endswith("position_embeddings"))
        fills = (getattr(of, "padding_idx", None) for of in places)
        reserved = max((fill + 1 for fill in fills if fill is not None), default=0)
        key = f"{POSITIONS_KEY}, minus {reserved} reserved" if reserved else POSITIONS_KEY
        return cls(text.vocab_size, most - reserved, key)


def read_tokens(batch: NamedBatch, name: str, limits: Limits) -> torch.Tensor:
    """Return the tokens of a batch [B, L] as int64, see `checked_tokens`."""
    return checked_tokens(
        batch, name, vocab=limits.vocab, most=limits.most, vocab_key=VOCAB_KEY, most_key=limits.most_key,
    )  # fmt: skip


def row_mask(batch: NamedBatch, name: str) -> torch.Tensor | None:
    """Return a mask [B, L] with 1 for a row's tokens and 0 for padding; None if rows have one length."""
    lengths = batch.get(f"{name}.lengths")
    if lengths is None:
        return None
    places = torch.arange(batch[name].shape[1], device=lengths.device)
    mask: torch.Tensor = (places < lengths[:, None]).long()
    return mask


def sees_what_follows(hub: Any) -> bool:
    """Return whether a model attends to the tokens that it must predict, as an encoder does."""
    if getattr(hub.config, "is_decoder", None) is not False:
        return False  # in configs of decoders the key is missing or true
    was_training = hub.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        hub.eval()
        rows = torch.tensor([[1, 0], [1, 1]])
        first = hub(input_ids=rows, use_cache=False).logits[:, 0]
    hub.train(was_training)
    return not torch.equal(first[0], first[1])


def takes_last_token(hub: Any) -> bool:
    """Return whether a classifier uses the last token of a row alone.

    transformers uses the last token that is not `pad_token_id`. In many configs this id is missing,
    and rows may contain it as an ordinary token. So Shardline selects the last token itself.

    Raises:
        ConfigError: Padding would change the model's predictions.
    """
    forward = inspect.getsource(type(hub).forward)
    is_last = "last_non_pad_token" in forward
    is_filled = getattr(hub.config, "summary_type", None) == "last" and hasattr(
        hub, "sequence_summary"
    )
    if "eos_mask" in forward or is_filled or (is_last and not hasattr(hub, "score")):
        raise ConfigError(
            f"model_type={hub.config.model_type} needs end or padding tokens in each row to classify it, which "
            "Shardline's rows do not have; use an encoder such as bert, or a decoder such as gpt2 or llama"
        )
    return is_last
