"""`hf:AutoModelForMaskedLM`: finds the tokens that a transform has hidden, by a model of transformers."""

from collections.abc import Mapping
from typing import Any

from shardline.training.models.hf_tokens import TokenLabels
from shardline.training.models.model_inputs import SampleColumns


class MaskedLM(TokenLabels):
    """Predicts hidden tokens; see `TokenLabels`.

    A transform hides tokens and gives each its own as a label, -100 to all others: its generator is a
    function of seed, pass and row, so that a row has the same mask on any number of ranks and after
    any resume, and another one in each pass.
    """

    def __init__(
        self, sample_columns: SampleColumns = None, *, config: Mapping[str, Any] | str | None = None,
        pretrained: str | None = None, column: str = "tokens", labels: str = "labels",
    ) -> None:  # fmt: skip
        super().__init__("AutoModelForMaskedLM", sample_columns, config, pretrained, column, labels)
