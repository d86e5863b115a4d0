"""The runs as a table for programs: `runs.csv`, made of the report's document."""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any


def write_csv(document: Mapping[str, Any]) -> str:
    """Return `runs.csv`: a row for each run, in the document's order.

    What is not known is an empty cell; a list is JSON.
    """
    rows = [_row(run) for run in document["runs"]]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    first = [column for column in columns if "." not in column]
    text = io.StringIO()
    writer = csv.DictWriter(text, first + sorted(set(columns) - set(first)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(run: Mapping[str, Any]) -> dict[str, Any]:
    headline, training = run["headline"], run["training"]
    low, high = headline["interval"] or (None, None)
    flat = {
        "id": run["id"],
        "name": run["name"],
        "dataset": run["dataset"],
        "model": run["model"],
        "in_table": run["in_table"],
        "metric": headline["metric"],
        "value": headline["value"],
        "interval_low": low,
        "interval_high": high,
        "num_samples": headline["num_samples"],
        "split": headline["split"],
        **{
            key: training[key]
            for key in ("steps", "epochs", "duration_s", "attempts", "world_size")
        },
        "samples_per_s": (run["throughput"] or {}).get("samples_per_s"),
        "goodput_share": (run["goodput"] or {}).get("share"),
        "commit": (run["code"] or {}).get("commit"),
        "identity": run["identity"],
        "train_action": run["actions"]["train"]["id"],
        "evaluate_action": run["actions"]["evaluate"]["id"],
        **{f"settings.{key}": value for key, value in run["settings"].items()},
        **{f"metrics.{key}": value for key, value in run["metrics"].items() if key != "action"},
        **{
            f"best_validation.{key}": value
            for key, value in (run["best_validation"] or {}).items()
            if key != "action"
        },
    }
    return {key: _cell(value) for key, value in flat.items()}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
