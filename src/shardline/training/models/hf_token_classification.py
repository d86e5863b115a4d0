"""`hf:AutoModelForTokenClassification`: a transformers model that classifies tokens."""

from shardline.core.errors import ConfigError
from shardline.training.models.hf_tokens import TokenLabels
from shardline.training.models.huggingface import HubConfig
from shardline.training.models.model_inputs import SampleColumns


class TokenClassification(TokenLabels):
    """Predicts a class for each token; see `TokenLabels`.

    Args:
        num_classes: Number of classes, from the dataset.
        classes: Number of classes; default: that of the dataset.

    Raises:
        ConfigError: The number of classes is unknown; see `TokenLabels` for other errors.
    """

    def __init__(
        self, num_classes: int = 0, sample_columns: SampleColumns = None, *, classes: int | None = None,
        config: HubConfig = None, pretrained: str | None = None,
        column: str = "tokens", labels: str = "labels",
    ) -> None:  # fmt: skip
        if not (classes or num_classes):
            raise ConfigError(
                "model=hf:AutoModelForTokenClassification has a dataset without classes, expected a number of "
                "classes; set model_args.classes"
            )
        super().__init__(
            "AutoModelForTokenClassification", sample_columns, config, pretrained, column, labels,
            num_labels=classes or num_classes,
        )  # fmt: skip
