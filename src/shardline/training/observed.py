"""What a training shows of itself on request: the profile of its time, its anomalies and its layers."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.model_summary.model_summary import summarize

from shardline.core.files import make_folder
from shardline.training.observed_files import FOLDER
from shardline.training.rank_task import RankRuntime

_PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}


def observers(runtime: RankRuntime, work: Path, attempt: int) -> dict[str, Any]:
    """Return the arguments of the Trainer for `runtime.profiler` and `runtime.detect_anomaly`.

    Args:
        work: The run's folder of the store.
        attempt: Number of the attempt, which is part of the names of the profiler's files.
    """
    given: dict[str, Any] = {"detect_anomaly": runtime.detect_anomaly}
    if runtime.profiler != "off":
        folder = work / FOLDER
        make_folder(folder)
        name = f"{runtime.profiler}-attempt-{attempt}"
        given["profiler"] = _PROFILERS[runtime.profiler](dirpath=folder, filename=name)
        print(
            f"profiler: {folder} gets the files of the profiler at the end of the training",
            flush=True,
        )
    return given


class ModelSummary(Callback):
    """Prints the layers of the model and their sizes."""

    @rank_zero_only
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the table."""
        print(summarize(pl_module), flush=True)
