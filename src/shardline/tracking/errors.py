"""Messages about a tracker that fails, without secrets."""

import os
from collections.abc import Callable

from shardline.core.redaction import mask

Say = Callable[[str, bool], None]  # text, whether it is a warning

_SECRET_VARIABLES = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "AZUREML_RUN_TOKEN",
    "WANDB_API_KEY",
)
_REASON_CHARACTERS = 300


class SendErrors:
    """Reports once that sending fails, and once that it works again.

    Args:
        what: what cannot be sent.
        label: where to.
    """

    def __init__(self, what: str, label: str, say: Say) -> None:
        self._what, self._label, self._say = what, label, say
        self.reason = ""
        self.count = 0  # failures in a row

    def failed(self, error: Exception) -> None:
        """Record a failure."""
        self.reason = shorten(error)
        self.count += 1
        if self.count == 1:
            self._say(
                f"{self._what} cannot be sent to {self._label} at present, and will be tried again "
                f"until the training ends: {self.reason}",
                True,
            )

    def succeeded(self) -> None:
        """Record a success."""
        if self.count:
            self._say(f"{self._what} can be sent to {self._label} again", True)
        self.count, self.reason = 0, ""


def shorten(error: Exception) -> str:
    """Return an error as one line of limited length, without secrets."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    # of any length, which of other variables would hide ordinary words
    text = mask(text, [os.environ.get(name, "") for name in _SECRET_VARIABLES])
    half = _REASON_CHARACTERS // 2  # the cause stands at the end
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"
