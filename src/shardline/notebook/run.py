"""A run opened in Python: settings, metrics, model, data, predictions."""

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.extras import naming_extras
from shardline.notebook.display import run_html
from shardline.notebook.listings import Checkpoints, Images, LoggedImage, Reason, Settings
from shardline.records.evaluations import EvaluationResult
from shardline.records.metrics import MetricLine
from shardline.records.trainings import TrainingProvenance
from shardline.results.states import sealed_names, state_of

if TYPE_CHECKING:
    import pandas as pd
    import pytorch_lightning as pl

    from shardline.notebook.samples import SplitData
    from shardline.results.sealed_run import SealedRun

CONFIG = Path("config/config.yaml")
_COMMAND = "from shardline.cli import main; main()"
# columns of `Run.summary` beside the held-out metrics
COSTS = ("best_score", "steps", "epochs", "attempts", "elapsed_s", "device_hours")


class Run:
    """A run of the config. Models and data are loaded when they are asked for.

    Attributes:
        plan: The run with everything that its identity covers.
    """

    def __init__(self, project: Project, plan: RunPlan, *, config: Path = CONFIG) -> None:
        self._project, self.plan, self._config = project, plan, config

    @property
    def folder(self) -> Path:
        """Folder of the project."""
        return self._project.workdir

    @property
    def name(self) -> str:
        """Name in the table; several names are separated by commas."""
        return self.plan.name

    @property
    def id(self) -> str:
        """Id: the first digits of the identity's digest."""
        return self.plan.id

    @property
    def state(self) -> str:
        """State, as `shardline ls` shows it."""
        return state_of(self.plan, sealed_names(self._project.layout)).value

    @property
    def settings(self) -> Settings:
        """All settings with their defaults, as nested tables."""
        return Settings(as_plain(self.plan.settings))

    @property
    def provenance(self) -> TrainingProvenance | None:
        """The sealed record of the training; None before it is sealed."""
        return self._sealed.provenance if self.plan.has_model else None

    @property
    def evaluation(self) -> EvaluationResult | None:
        """The record of the evaluation on held-out rows; None before it is sealed."""
        return self._sealed.evaluation

    @property
    def _sealed(self) -> "SealedRun":
        # the reader of sealed files needs NumPy, which opening a project does not
        from shardline.results.sealed_run import SealedRun

        # rows with one training and two evaluations have one id, so the evaluation is named here
        file = self.plan.evaluation if self.plan.evaluation.exists() else None
        return SealedRun(id=self.id, layout=self._project.layout, evaluation_file=file)

    def summary(self) -> dict[str, float | int | None]:
        """Return metrics and cost by name; empty before the training is sealed."""
        if (provenance := self.provenance) is None:
            return {}
        training, goodput = provenance.training, provenance.goodput
        elapsed_s = goodput.elapsed_s if goodput else provenance.duration_s
        devices = self.plan.settings.nodes * self.plan.settings.devices
        evaluation = self.evaluation
        costs = (
            *(None if one is UNSET else one for one in (training.best_score, training.steps, training.epochs)),
            provenance.attempts,
            elapsed_s, elapsed_s * devices / 3600 if elapsed_s is not None else None,
        )  # fmt: skip
        return {
            **(evaluation.metrics if evaluation else {}),
            **dict(zip(COSTS, costs, strict=True)),
        }

    def metrics(self) -> "pd.DataFrame":
        """Return the logged metrics: a row for each step, a column for each metric, NaN where it was not logged.

        A training that is not sealed has the metrics so far. `epoch` counts from 0, `wall_s` is in seconds over all
        attempts.

        Raises:
            DataError: A file of metrics cannot be read.
        """
        with naming_extras():
            import pandas as pd

        by_step: dict[int, dict[str, Any]] = {}
        for line in self._lines():
            if line.values:
                place = {"epoch": line.epoch, "wall_s": line.wall_s}
                by_step.setdefault(line.step, {}).update(place | line.values)
        frame = pd.DataFrame.from_dict(by_step, orient="index").rename_axis("step").sort_index()
        return frame.apply(pd.to_numeric)

    def images(self) -> Images:
        """Return the images that the model logged, in order of steps."""
        return Images(
            LoggedImage(name=one.name, step=line.step, caption=one.caption or "", png=base64.b64decode(one.png))
            for line in self._lines() for one in line.logged or () if one.png
        )  # fmt: skip

    def _lines(self) -> Iterator[MetricLine]:
        sealed = self.plan.folder / "metrics.jsonl"
        file = sealed if sealed.exists() else self.plan.layout.work(self.id) / "metrics.jsonl"
        if not file.exists():
            return
        for text in file.read_text().splitlines():
            try:
                line = MetricLine.of(json.loads(text))
            except ValueError:  # the last line of a training that writes it now
                continue
            if line is not None:
                yield line

    @property
    def checkpoints(self) -> Checkpoints:
        """The training checkpoints in the store, the newest first."""
        from shardline.checkpoints.folder import list_saved

        saved = list_saved(self.plan.layout.work(self.id) / "checkpoints")
        return Checkpoints(sorted(saved, key=lambda one: -one.step))

    def why(self) -> Reason:
        """Return the state of the run, then a line for each thing that changed since it was trained."""
        from shardline.results.staleness import explain

        found = explain(self._project, self.plan)
        failure = [found.failure.sentence] if found.failure else []
        causes = [cause.text for cause in found.causes]
        return Reason(
            "\n".join([f"{self.name} ({self.id}): {found.state.value}", *failure, *causes])
        )

    # --- model and data -------------------------------------------------------------------------

    def model(self) -> "pl.LightningModule":
        """Return the model with its sealed weights, in evaluation mode, on the CPU.

        `data` gives it the batches that it was trained on. Rows of your own must be normalised in the same way:
        `predict` reads and normalises them.

        Raises:
            ConfigError: The run has no result yet, or is a training script, whose model Shardline does not know.
        """
        from shardline.results.sealed_run import find_sealed_run

        recorded = find_sealed_run(self._project, self.id)
        self._load_code()
        from shardline.data.dataset import read_manifest
        from shardline.training.model import sealed_model

        schema = read_manifest(recorded.manifest).schema
        return sealed_model(self.plan.spec, schema, recorded.model)

    def data(self, split: str = "train") -> "SplitData":
        """Return the rows of a split, and the batches as the training read them.

        Args:
            split: `train`, `validation` or `test`.

        Raises:
            ConfigError: The dataset has no such split.
            DataError: The dataset is not sealed, or its shards are missing or damaged.
        """
        self._load_code()
        from shardline.notebook.samples import split_data
        from shardline.pipeline.started_ranks import places_of

        places = [
            structs.replace(one, manifest=self.folder / one.manifest, shards=self.folder / one.shards)
            for one in places_of(self.plan, {})
        ]  # fmt: skip
        return split_data(places, self.plan.settings, split)

    def predict(
        self, rows: "pd.DataFrame | Path | str | Sequence[Path | str]", *, split: str = "test"
    ) -> "pd.DataFrame":
        """Predict rows with the sealed model, as `shardline predict` does.

        Args:
            rows: Name of a dataset of the config; or files, relative to the project's folder; or a table with the
                columns that the source of the run's dataset reads, the label may be missing.
            split: Split of the dataset.

        Returns:
            A row for each row, in the same order: `id` and the columns of the prediction.

        Raises:
            ShardlineError: The rows cannot be predicted; the message is that of the command.
        """
        with naming_extras():
            import pandas as pd

        with tempfile.TemporaryDirectory() as folder:
            if isinstance(rows, pd.DataFrame):
                rows = self._written(rows, Path(folder))
            names = [rows] if isinstance(rows, str | Path) else [*rows]
            output = Path(folder) / "predictions.parquet"
            # the run of a trial is in no table, so it has an id only
            run = self.plan.names[0] if self.id in self._project.runs else self.id
            words = [
                "-c",
                _COMMAND,
                "--config",
                str(self._config),
                "predict",
                run,
                *map(str, names),
            ]
            done = subprocess.run(
                [sys.executable, *words, "--split", split, "--output", str(output)],
                cwd=self.folder, text=True, capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise ShardlineError(done.stderr.strip() or done.stdout.strip())
            return pd.read_parquet(output)

    def _written(self, rows: "pd.DataFrame", folder: Path) -> Path:
        """Write a table to a file that the source of the run's dataset reads."""
        source = self.plan.dataset.source
        kind = source["type"]
        if kind == "csv":
            signs = {"sep": source.get("delimiter", ","), "decimal": source.get("decimal", ".")}
            rows.to_csv(folder / "rows.csv", index=False, **signs)
        elif kind == "jsonl":
            rows.to_json(folder / "rows.jsonl", orient="records", lines=True)
        elif kind == "parquet":
            rows.to_parquet(folder / "rows.parquet", index=False)
        else:
            raise ConfigError(
                f"the source of {self.name} is {kind}, which reads no tables; pass files that it reads, or the name of "
                "a dataset of the config"
            )
        return folder / f"rows.{kind}"

    def _load_code(self) -> None:
        """Let the project's modules be imported, and load the Lightning that the model imports."""
        if (folder := str(self.folder)) not in sys.path:
            sys.path.insert(0, folder)
        from shardline.core.one_lightning import keep

        keep(self.plan.lightning)

    def __repr__(self) -> str:
        return f"<Shardline run {self.name} ({self.id}): {self.state}>"

    def _repr_html_(self) -> str:
        return run_html(self.name, self.id, self.state, self.summary(), self.metrics())
