"""What the page shows of one run, derived from its sealed files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from shardline.config.model_warnings import ModelWarning
from shardline.core.intervals import Interval, wilson_interval
from shardline.records.acceptances import Accepted
from shardline.report.charts.series import Curve

GroupKey = tuple[str, str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """What the run table and the notes beside it say of a run; its sealed files hold none of it.

    Attributes:
        key: Tells it from all other runs of the report; its id where that alone does.
        names: Its names in the table.
        dataset_names: Its dataset's names in the config; of a mix, the one text for all.
        datasets: Names of its datasets by id; those of one dataset may be left out.
        varied: The settings that vary within a grid of the table, by dotted key.
        in_table: Whether it has a place in the leaderboard; a scaling study's run has none.
        notes: The text of `config/notes/{name}.md` by name.
        tags: The tags in these files.
    """

    key: str
    names: tuple[str, ...]
    dataset_names: tuple[str, ...]
    datasets: Mapping[str, str] = field(default_factory=dict)
    varied: Mapping[str, Any] = field(default_factory=dict)
    in_table: bool = True
    notes: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        spec: run.json.
        identity: identity.json, all that the training depends on.
        evaluation: The evaluation's file.
        evaluation_id: Its name, the digest of what it depends on.
        provenance: provenance.json.
        curves: Metric name to its curve, from metrics.jsonl.
        confusion: Its confusion matrix for the template, if it has one.
        files: Name of each file read to its SHA-256.
        asked: What the run table holds of it.
        accepted: accepted.json, where an earlier result stands for it.
        warnings: What makes its model suspect.
    """

    spec: Mapping[str, Any]
    identity: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    evaluation_id: str
    provenance: Mapping[str, Any]
    curves: Mapping[str, Curve]
    confusion: Mapping[str, Any] | None
    files: Mapping[str, str]
    asked: TableEntry
    accepted: Accepted | None = None
    warnings: Sequence[ModelWarning] = ()

    @property
    def id(self) -> str:
        """The digest of the training's identity."""
        return str(self.spec["run"])

    @property
    def key(self) -> str:
        """The run's id, with the evaluation's where the report has two evaluations of it."""
        return self.asked.key

    @property
    def name(self) -> str:
        """The run's names in the run table."""
        return ", ".join(self.asked.names)

    @property
    def in_table(self) -> bool:
        """Whether it has a place in the leaderboard."""
        return self.asked.in_table

    @property
    def dataset_name(self) -> str:
        """The dataset's names in the config."""
        return ", ".join(self.asked.dataset_names)

    @property
    def actions(self) -> dict[str, str]:
        """Rule to the id of the action that made this run's files by it."""
        trained = self.provenance.get("run", self.id) if self.accepted else self.id
        return {
            "resolve_run": f"resolve_run/{self.id}" if not self.accepted else f"accept/{self.id}",
            "train": f"train/{trained}",
            "evaluate": f"evaluate/{self.id}/{self.evaluation_id}",
        }

    @property
    def _mix(self) -> dict[str, str]:
        if "datasets" in self.spec:
            return {part["id"]: part["weight"] for part in self.spec["datasets"]}
        return {self.spec["dataset"]["id"]: "1"}

    @property
    def dataset_id(self) -> str:
        """The digest of the dataset's identity; of a mix, those of all."""
        return ", ".join(self._mix)

    @property
    def datasets(self) -> dict[str, str]:
        """Names of its datasets by id."""
        return {key: self.asked.datasets.get(key, self.dataset_name) for key in self._mix}

    @property
    def weights(self) -> dict[str, str]:
        """Weights of its datasets by id, in the order in which they are mixed."""
        return {key: f"{float(Fraction(weight)):g}" for key, weight in self._mix.items()}

    @property
    def manifests(self) -> dict[str, str]:
        """The checksums of the manifests that it was trained on, by its datasets of now."""
        if "datasets" in self.provenance:
            return {part["id"]: part["manifest_sha256"] for part in self.provenance["datasets"]}
        then = self.provenance.get("manifest_sha256")
        return {self.dataset_id: then} if then else {}

    @property
    def group_key(self) -> GroupKey:
        """Dataset, its id, split, metric and mode: runs of equal ones are ranked against each other."""
        return self.dataset_name, self.dataset_id, self.split, self.metric, self.mode

    @property
    def split(self) -> str:
        """The held-out split that the run was evaluated on."""
        return str(self.evaluation.get("split", "test"))

    @property
    def metric(self) -> str:
        """Name of the headline metric."""
        return str(self.evaluation["headline"]["metric"])

    @property
    def mode(self) -> str:
        """ "max" if a higher headline metric is better, else "min"."""
        return "min" if self.evaluation["headline"].get("mode", "max") == "min" else "max"

    @property
    def value(self) -> float:
        """The held-out headline metric; NaN where none could be computed."""
        value = self.evaluation["headline"]["value"]
        return math.nan if value is None else float(value)

    @property
    def is_measured(self) -> bool:
        """Whether there is a headline metric to speak of: a training script need not give one."""
        is_given = self.evaluation["headline"]["value"] is not None
        return is_given or not self.is_measured_by_script

    @property
    def is_measured_by_script(self) -> bool:
        """Whether the held-out figures are the training script's own."""
        return self.evaluation.get("measured_by") == "script"

    @property
    def num_samples(self) -> int | None:
        """Held-out samples behind the headline metric, if the file tells."""
        return self.evaluation.get("num_samples")

    @property
    def is_measured_by_model(self) -> bool:
        """Whether the held-out figures are what the model's own step logs."""
        return self.evaluation.get("measured_by") == "model"

    @cached_property
    def interval(self) -> Interval | None:
        """The 95 % interval of the headline metric by the choice of samples; None where it is not known."""
        return self.interval_of(self.value)

    @property
    def interval_method(self) -> str | None:
        """How `interval` was found: `wilson` of an accuracy, else as the evaluation has it."""
        recorded: str | None = self.evaluation["headline"].get("interval_method")
        return recorded or ("wilson" if self.interval else None)

    def interval_of(self, value: float) -> Interval | None:
        """Return the interval of another value of its metric, such as a mean over seeds, as of one so measured."""
        if recorded := self.evaluation["headline"].get("interval"):
            return tuple(recorded) if value == self.value else None
        # what a model logs as accuracy may count pixels or tokens, and not the samples
        if self.metric != "accuracy" or self.is_measured_by_model:
            return None
        if not (self.num_samples and 0 <= value <= 1):
            return None
        return wilson_interval(value, self.num_samples)

    @property
    def num_steps(self) -> int | None:
        """Steps trained, as sealed, else the last step that any metric was recorded at."""
        last = max((curve.steps[-1] for curve in self.curves.values() if curve.steps), default=None)
        sealed: int | None = self.provenance.get("training", {}).get("steps")
        return last if sealed is None else sealed

    @property
    def validation_metric(self) -> str:
        """What the headline metric is called where it is measured on the validation split."""
        return f"val_{self.metric.removeprefix('test_').removeprefix('val_')}"

    @property
    def sealed_step(self) -> int | None:
        """The step of the sealed weights: where the monitored metric had its sealed score; None if not known."""
        curve = self.curves.get(str(self.setting("checkpoint.monitor")))
        sealed = (self.provenance.get("training") or {}).get("best_score")
        if sealed is None or not (curve and curve.values):
            return None
        return min(zip(curve.values, curve.steps, strict=True), key=lambda at: abs(at[0] - sealed))[
            1
        ]

    @property
    def best_validation(self) -> tuple[str, float, int] | None:
        """Metric, value and step of the sealed weights' validation: of the headline metric, else of the loss.

        Where their step is not known, as in a training script, the best value and its first step.
        """
        best, step = max if self.mode == "max" else min, self.sealed_step
        for metric, best_of in ((self.validation_metric, best), ("val_loss", min)):
            curve = self.curves.get(metric)
            if curve and curve.values:
                if step is not None:
                    return metric, curve.at(step), step
                value = best_of(curve.values)
                return metric, value, curve.steps[curve.values.index(value)]
        return None

    def setting(self, key: str) -> Any:
        """Return a setting by its dotted key; None where the run has none of that name."""
        if key in self.asked.varied:
            return self.asked.varied[key]
        value: Any = self.spec.get("settings", {})
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def is_share(metric: str) -> bool:
    """Return whether a metric is an accuracy by its name, which is shown in percent."""
    return metric.removeprefix("test_").removeprefix("val_") in ("acc", "accuracy")
