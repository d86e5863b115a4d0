"""`hf:AutoModelForTokenClassification`: a class for each token, by a model of transformers."""

from collections.abc import Mapping
from typing import Any

from shardline.core.errors import ConfigError
from shardline.training.models.hf_tokens import TokenLabels
from shardline.training.models.model_inputs import SampleColumns


class TokenClassification(TokenLabels):
    """Gives each token a class; see `TokenLabels`.

    Args:
        num_classes: number of classes, from the dataset.
        classes: number of classes; left out, those of the dataset.

    Raises:
        ConfigError: neither is given; see `TokenLabels` as well.
    """

    def __init__(
        self, num_classes: int = 0, sample_columns: SampleColumns = None, *, classes: int | None = None,
        config: Mapping[str, Any] | str | None = None, pretrained: str | None = None,
        column: str = "tokens", labels: str = "labels",
    ) -> None:  # fmt: skip
        if not (classes or num_classes):
            raise ConfigError(
                "model=hf:AutoModelForTokenClassification was given a dataset that names no classes, expected "
                "their number; set model_args.classes"
            )
        super().__init__(
            "AutoModelForTokenClassification", sample_columns, config, pretrained, column, labels,
            num_labels=classes or num_classes,
        )  # fmt: skip
