"""What was understood of datasets, as text."""

from collections.abc import Sequence

from shardline.cli.display.terminal import say
from shardline.records.understood import block
from shardline.results.data_show import ShownDataset


def show_datasets(datasets: Sequence[ShownDataset]) -> None:
    """Print a block for each dataset, or why it cannot be read."""
    for place, one in enumerate(datasets):
        if place:
            say("")
        if one.problem:
            say(f"{one.dataset} cannot be read: {one.problem}", style="bold red")
            continue
        state = f"{one.id}, built" if one.is_built else f"{one.id}, not built yet"
        say(block(one.dataset, {"dataset": state, **one.read}))
