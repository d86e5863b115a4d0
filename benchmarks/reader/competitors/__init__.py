"""One module for each kind of competitor.

A module has `batches(task)`, an endless stream of (features, labels) in the
rank's own process, epoch after epoch, shuffled; `write(shards, folder)`, which
stores the rows in its own format; and, where it takes part in the measurement
of stalls, `boundaries(task, num_batches)`. It imports what only its own
environment has, so only the process that runs it imports it.
"""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """An entry of the tables.

    Attributes:
        module: the module of this package.
        format: whose files it reads; the name of a module.
        environment: name of its requirements file; None is Shardline's own.
        variants: choices of options; where there are several, a trial before
            the rounds finds the fastest, and that one takes part.
    """

    name: str
    module: str
    format: str
    environment: str | None = None
    variants: tuple[dict[str, Any], ...] = ({},)

    @property
    def slug(self) -> str:
        """The name as a file can have it."""
        return re.sub("[^a-z]+", "-", self.name.lower())


COMPETITORS = {
    competitor.name: competitor
    for competitor in (
        Competitor(name="memory copy", module="copy", format="shardline"),
        Competitor(name="file read", module="read", format="shardline"),
        Competitor(name="Shardline", module="ours", format="shardline"),
        Competitor(
            name="reference",
            module="reference",
            format="reference",
            variants=({"workers": 2},),
        ),
        Competitor(
            name="reference, no workers",
            module="reference",
            format="reference",
            variants=({"workers": 0},),
        ),
        Competitor(
            name="LitData",
            module="litdata",
            format="litdata",
            environment="litdata",
            variants=(
                {"workers": 0, "batch_decode": "all"},
                {"workers": 0, "batch_decode": 256},
                {"workers": 2, "batch_decode": "all"},
            ),
        ),
        Competitor(
            name="MosaicML Streaming",
            module="mosaicml",
            format="mosaicml",
            environment="mosaicml",
            variants=({"workers": 0}, {"workers": 2}),
        ),
        Competitor(
            name="WebDataset",
            module="webdataset",
            format="webdataset",
            environment="webdataset",
            variants=({"workers": 0}, {"workers": 2}),
        ),
        Competitor(
            name="HF Datasets",
            module="huggingface",
            format="huggingface",
            environment="huggingface",
            variants=(
                {"workers": 0, "format": "torch"},
                {"workers": 0, "format": "numpy"},
                {"workers": 2, "format": "torch"},
            ),
        ),
        Competitor(
            name="HF Datasets, Arrow by hand",
            module="huggingface",
            format="huggingface",
            environment="huggingface",
            variants=({"workers": 0, "format": "arrow"},),
        ),
    )
}
LIMITS = ("memory copy", "file read")
OURS = "Shardline"
REFERENCES = ("reference", "reference, no workers")
BY_HAND = ("HF Datasets, Arrow by hand",)  # no way that its documentation shows
PEERS = tuple(name for name, c in COMPETITORS.items() if c.environment and name not in BY_HAND)
