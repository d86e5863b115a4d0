"""`hf:AutoModelForMaskedLM`: a transformers model that predicts masked tokens."""

from shardline.training.models.hf_tokens import TokenLabels
from shardline.training.models.huggingface import HubConfig
from shardline.training.models.model_inputs import SampleColumns


class MaskedLM(TokenLabels):
    """Predicts masked tokens; see `TokenLabels`.

    A transform masks tokens; the label of a masked token is the token itself, all other labels are
    -100. The transform's generator depends on seed, pass and row. So a row has the same mask on any
    number of ranks and after a resume, and a new mask in each pass.
    """

    def __init__(
        self, sample_columns: SampleColumns = None, *, config: HubConfig = None,
        pretrained: str | None = None, column: str = "tokens", labels: str = "labels",
    ) -> None:  # fmt: skip
        super().__init__("AutoModelForMaskedLM", sample_columns, config, pretrained, column, labels)
