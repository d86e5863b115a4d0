"""What models of transformers take of a batch: tokens that they know, and a mask of what fills rows up."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from shardline.core.errors import ConfigError
from shardline.training.models.model_inputs import SampleColumns, checked_tokens

# what sets the sizes of a model of transformers, for messages
VOCAB_KEY = "vocab_size of the model's config"
POSITIONS_KEY = "max_position_embeddings of the model's config"


def check_no_packs(columns: SampleColumns, name: str) -> None:
    """Refuse packs of several rows, whose tokens a model of transformers would let see each other.

    Raises:
        ConfigError: the samples are packed by `best_fit`.
    """
    if columns is not None and f"{name}.positions" in columns:
        raise ConfigError(
            "data.pack.method=best_fit keeps the rows of a pack apart, which a model of transformers does not do; use "
            "data.pack.method=concat, or leave data.pack out"
        )


@dataclass(frozen=True)
class Limits:
    """What tokens a model of transformers takes.

    Attributes:
        vocab: number of tokens.
        most: tokens of a row; a large number where the config has none.
        most_key: what sets `most`, for messages.
    """

    vocab: int
    most: int
    most_key: str = POSITIONS_KEY

    @classmethod
    def of(cls, hub: Any) -> "Limits":
        """Return the limits of a model: of roberta and its like, some positions are reserved."""
        text = hub.config.get_text_config()
        most = getattr(text, "max_position_embeddings", None)
        if not isinstance(most, int) or most < 1:
            return cls(text.vocab_size, 1 << 30)
        # they number the tokens from the one behind that of what fills rows up
        places = (of for name, of in hub.named_modules() if name.endswith("position_embeddings"))
        fills = (getattr(of, "padding_idx", None) for of in places)
        reserved = max((fill + 1 for fill in fills if fill is not None), default=0)
        key = f"{POSITIONS_KEY} less {reserved} that are reserved" if reserved else POSITIONS_KEY
        return cls(text.vocab_size, most - reserved, key)


def read_tokens(batch: dict[str, Any], name: str, limits: Limits) -> torch.Tensor:
    """Return the tokens of a batch [B, L] as int64, see `checked_tokens`."""
    return checked_tokens(
        batch, name, vocab=limits.vocab, most=limits.most, vocab_key=VOCAB_KEY, most_key=limits.most_key,
    )  # fmt: skip


def row_mask(batch: dict[str, Any], name: str) -> torch.Tensor | None:
    """Return what is a row's own [B, L], 0 where it is filled up; None where rows are of one length."""
    lengths = batch.get(f"{name}.lengths")
    if lengths is None:
        return None
    places = torch.arange(batch[name].shape[1], device=lengths.device)
    mask: torch.Tensor = (places < lengths[:, None]).long()
    return mask


def sees_what_follows(hub: Any) -> bool:
    """Return whether a model sees the tokens that it is to predict, as an encoder does."""
    if getattr(hub.config, "is_decoder", None) is not False:
        return False  # decoders have no such key, or true
    was_training = hub.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        hub.eval()
        rows = torch.tensor([[1, 0], [1, 1]])
        first = hub(input_ids=rows, use_cache=False).logits[:, 0]
    hub.train(was_training)
    return not torch.equal(first[0], first[1])


def takes_last_token(hub: Any) -> bool:
    """Return whether a classifier reads a row's class off its last token.

    transformers looks for the last one that is not `pad_token_id`, which is a row's own token as well
    and has no default in many configs.

    Raises:
        ConfigError: rows that are filled up behind their end change its classes.
    """
    forward = inspect.getsource(type(hub).forward)
    is_last = "last_non_pad_token" in forward
    is_filled = getattr(hub.config, "summary_type", None) == "last" and hasattr(
        hub, "sequence_summary"
    )
    if "eos_mask" in forward or is_filled or (is_last and not hasattr(hub, "score")):
        raise ConfigError(
            f"model_type={hub.config.model_type} finds a row's class by tokens that mark its end or fill it up, which "
            "rows of Shardline do not have; use an encoder such as bert, or a decoder such as gpt2 or llama"
        )
    return is_last
