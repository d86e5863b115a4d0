"""Sizes of a shipped model that come from the data: the vocabulary of a tokenizer."""

from collections.abc import Mapping
from typing import Any

from shardline.config.checks import SHIPPED_MODELS
from shardline.config.hub_models import open_tokenizer
from shardline.config.plans import WeightedDataset

_OF_TEXTS = {
    class_path for name, class_path in SHIPPED_MODELS.items() if name.startswith("hf:") and "Image" not in name
}  # fmt: skip


def with_vocabulary(
    settings: Mapping[str, Any], model_class: str, parts: tuple[WeightedDataset, ...]
) -> dict[str, Any]:
    """Return a run's settings with the size of the vocabulary where a tokenizer made the tokens.

    That is `model_args.vocab` of `gpt`, and `model_args.config.vocab_size` of a model of transformers whose
    config is a table; neither where the config names it. The setting is resolved here, so that `run.json`
    and the identity hold the number as if it had been written. That of bytes is left to the model.

    Args:
        settings: as the config has them.

    Raises:
        DataError: a tokenizer's file cannot be read.
    """
    given = settings.get("model_args", {})
    if model_class == SHIPPED_MODELS["gpt"]:
        sizes, key = given, "vocab"
    else:
        sizes, key = given.get("config"), "vocab_size"
        if model_class not in _OF_TEXTS or not isinstance(sizes, Mapping):
            return dict(settings)
    if sizes.get(key) is not None:
        return dict(settings)
    column = given.get("column", "tokens")
    files = [part.dataset.tokenizer for part in parts if column in _made(part.dataset.source)]
    if not files or None in files:
        return dict(settings)
    vocab = max(open_tokenizer(file).num_tokens for file in files if file)
    sized = {**sizes, key: vocab}
    return {**settings, "model_args": sized if sizes is given else {**given, "config": sized}}


def _made(source: Mapping[str, Any]) -> set[str]:
    """Return the columns that a source makes of texts by its tokenizer."""
    return {"tokens"} if source.get("type") == "text" else set(source.get("tokenize") or ())
