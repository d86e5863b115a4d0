"""Write `runs.csv`, the table of runs for programs, from the report document."""

import csv
import io
import json

from shardline.records.reported_runs import ReportedRun
from shardline.records.reports import Report


def write_csv(report: Report) -> str:
    """Return the text of `runs.csv`: one row per run, in the order of the report.

    Unknown values are empty cells. Lists are JSON.
    """
    rows = [_row(run) for run in report.runs]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    first = [column for column in columns if "." not in column]
    text = io.StringIO()
    writer = csv.DictWriter(text, first + sorted(set(columns) - set(first)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(run: ReportedRun) -> dict[str, object]:
    headline, training, best = run.headline, run.training, run.best_validation
    low, high = headline.interval or (None, None)
    flat: dict[str, object] = {
        "id": run.id,
        "name": run.name,
        "dataset": run.dataset,
        "model": run.model,
        "in_table": run.in_table,
        "metric": headline.metric,
        "value": headline.value,
        "interval_low": low,
        "interval_high": high,
        "num_samples": headline.num_samples,
        "split": headline.split,
        "steps": training.steps,
        "epochs": training.epochs,
        "duration_s": training.duration_s,
        "attempts": training.attempts,
        "world_size": training.world_size,
        "samples_per_s": run.throughput.samples_per_s if run.throughput else None,
        "goodput_share": run.goodput.share if run.goodput else None,
        "commit": run.code.commit if run.code else None,
        "identity": run.identity,
        "train_action": run.actions["train"],
        "evaluate_action": run.actions["evaluate"],
        **{f"settings.{key}": value for key, value in run.settings.items()},
        **{f"metrics.{key}": value for key, value in run.held_out.items()},
    }
    if best:
        values = {"metric": best.metric, "value": best.value, "step": best.step}
        flat |= {f"best_validation.{key}": value for key, value in values.items()}
    return {key: _cell(value) for key, value in flat.items()}


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
