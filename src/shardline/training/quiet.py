"""Which hints of Lightning's do not apply here."""

import logging
import warnings


def quieten_lightning() -> None:
    """Silence hints that do not apply: loading is ours, and the trainer is fully set."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*isinstance.treespec.*",
        ".*exists and is not empty.*",
        ".*smaller than the logging interval.*",
        # a batch has scalars, `{name}.mean_count`, behind its columns; the first column's size is right
        ".*`batch_size` from an ambiguous collection.*",
    ):
        warnings.filterwarnings("ignore", message)
