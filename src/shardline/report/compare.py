"""Data of the page's comparison of two runs: only differing values, each once."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardline.core.intervals import t_quantile
from shardline.records.reported_runs import ReportedRun
from shardline.report.document import finite
from shardline.report.leaderboard import LeaderboardRow, Leaderboards

_MAX_DEGREES = 60  # of freedom in the page's table; Student's t hardly changes beyond
_ABSENT = -1
_DIGEST_SHOWN = 12
_Keys = Mapping[tuple[str, ...], Any]


def comparison(
    boards: Leaderboards, environments: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the data of the page's comparison.

    Args:
        boards: All runs; their order numbers the runs.
        environments: Installed packages by digest.

    Returns:
        `parts`: by kind (`settings`, `data`, `code`, `environment`), the `keys` that differ between any two
        runs, the distinct `values` of each key, and the distinct `rows` of positions in `values` (-1: no
        such key). `runs`: by element id, title, results, row in the leaderboard, and a row number per kind.
        `rows`: mean, standard deviation and number of seeds; over folds also the score by fold, and the
        number of folds. `t`: 97.5 % quantiles of Student's t by
        degrees of freedom, from 1.
    """
    runs, entries = boards.runs, boards.entries
    documents = {
        "settings": [_settings(run) for run in runs],
        "data": [_data(run) for run in runs],
        "code": [_code(run) for run in runs],
        "environment": [_environment(run, environments) for run in runs],
    }
    parts, places = {}, []
    for kind, found in documents.items():
        parts[kind], numbers = _part(found)
        places.append(numbers)
    rows = [row for group in boards.groups for row in group.rows]
    row_of = {entry.anchor: index for index, row in enumerate(rows) for entry in row.entries}
    document = {
        "parts": parts,
        "runs": {
            entry.anchor: {
                "title": entry.title,
                "dataset": entry.run.dataset,
                "headline": [entry.run.metric, entry.run.mode, entry.run.split],
                "interval": entry.run.interval,
                "results": _results(entry.run),
                "actions": [entry.run.actions["evaluate"], entry.run.actions["train"]],
                "row": row_of.get(entry.anchor),
                "parts": list(numbers),
            }
            for entry, numbers in zip(entries, zip(*places, strict=True), strict=True)
        },
        "rows": [_row(row) for row in rows],
        "t": [round(t_quantile(degrees), 4) for degrees in range(1, _MAX_DEGREES + 1)],
    }
    return dict(finite(document))


def _row(row: LeaderboardRow) -> list[Any]:
    repeats = row.repeats
    found: list[Any] = [repeats.mean, repeats.sd, len(repeats.values)]
    if repeats.folds:
        by_fold = {str(fold): value for fold, value in repeats.by_fold.items()}
        found += [by_fold, repeats.num_folds]
    return found


def _part(documents: Sequence[_Keys]) -> tuple[dict[str, Any], list[int]]:
    """Return differing keys with their values and rows, and the row of each document."""
    texts = [
        {key: json.dumps(value, sort_keys=True) for key, value in one.items()} for one in documents
    ]
    keys = sorted({key for one in texts for key in one})
    differing = [key for key in keys if len({one.get(key) for one in texts}) > 1]
    values = [list(dict.fromkeys(one[key] for one in texts if key in one)) for key in differing]
    numbers = [{text: index for index, text in enumerate(column)} for column in values]
    rows = [
        tuple(
            number[one[key]] if key in one else _ABSENT
            for key, number in zip(differing, numbers, strict=True)
        )
        for one in texts
    ]
    distinct = {row: index for index, row in enumerate(dict.fromkeys(rows))}
    part = {
        "keys": [list(key) for key in differing],
        "values": [[json.loads(text) for text in column] for column in values],
        "rows": [list(row) for row in distinct],
    }
    return part, [distinct[row] for row in rows]


def _settings(run: ReportedRun) -> _Keys:
    flat = {"model": run.model, **run.settings}
    return {(key,): value for key, value in flat.items()}


def _data(run: ReportedRun) -> _Keys:
    return {
        ("dataset",): run.dataset,
        ("manifest",): (run.manifest_sha256 or "")[:_DIGEST_SHOWN],
    }


def _code(run: ReportedRun) -> _Keys:
    """Return git commit, result versions and digests of the user's code."""
    return {
        ("git commit",): run.code.commit if run.code else None,
        **{("result version of", name): number for name, number in run.versions.items()},
        **{("code", part): str(digest)[:_DIGEST_SHOWN] for part, digest in run.definitions.items()},
    }


def _environment(run: ReportedRun, environments: Mapping[str, Mapping[str, str]]) -> _Keys:
    found, training = run.environment, run.training
    packages = environments.get(found.sha256 or "", {})
    return {
        ("host",): training.host,
        ("launcher",): training.launcher,
        ("devices",): training.devices,
        ("image",): found.image,
        ("python",): found.python,
        **{(name,): version for name, version in packages.items()},
    }


def _results(run: ReportedRun) -> dict[str, list[float | None]]:
    """Return numbers to compare by name: value, and 0 (evaluation) or 1 (training) as its action."""
    evaluated: dict[str, list[float | None]] = {
        f"held-out {key}": [value, 0] for key, value in run.held_out.items()
    }
    evaluated.setdefault(f"held-out {run.metric}", [run.value, 0])
    best = run.best_validation
    trained = {
        **({f"{best.metric} of the sealed weights": best.value} if best else {}),
        "steps": run.training.steps,
        "training time (s)": run.training.duration_s,
        "samples per second": run.throughput.samples_per_s if run.throughput else None,
        "goodput share": run.goodput.share if run.goodput else None,
    }
    return evaluated | {key: [value, 1] for key, value in trained.items() if value is not None}
