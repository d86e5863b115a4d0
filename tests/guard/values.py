"""What a finished project holds that identities vouch for, read from its files alone.

There is a reader for each format of the config, `format-1` among the cases' folders. It reads what any
version wrote that takes this format, so it uses no code of Shardline, which would be the present one.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

Values = dict[str, Any]

_ID = re.compile(r"[0-9a-f]{12,64}")
# of what a report tells: clocks, hosts, versions, what is named after them or follows from them, and
# settings, which are no results, and to which a later version adds
_UNSTABLE = frozenset({
    "accepted", "action", "actions", "attempt_log", "attempts", "changed", "code", "device_hours", "devices",
    "duration_s", "ended", "environment", "files", "generated_from", "goodput", "history", "host", "id", "identity",
    "launcher", "manifest_sha256", "newest", "project", "resources", "samples_per_s", "seconds", "settings", "started",
    "throughput", "tracking", "warnings", "workflow",
}) | {
    # what the page shows beside, which the results before it hold
    "all_but_seed", "certificate", "confusion", "curves", "dataset_names", "definitions", "device_names",
    "environments", "epoch_ends", "held_out_task", "images", "interventions", "is_logged_by_model", "known_value",
    "picture", "reliability", "residuals", "samples", "seed", "software", "stopped_early", "trained_on", "training_id",
    "understood", "varied_values", "versions",
}  # fmt: skip
_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Result:
    """A sealed result.

    Attributes:
        stage: `data`, `train`, `evaluate` or `report`.
        case: the dataset's or run's name.
        identity: what its identity document holds under `versions` and `environment`, and `inputs`.
        inputs: keys of the results that it was made from.
        values: by name; JSON.
    """

    stage: str
    case: str
    identity: dict[str, Any]
    inputs: list[str]
    values: Values

    @property
    def key(self) -> str:
        """How it is named in messages."""
        return f"{self.stage} {self.case}"


def read_project(folder: Path, fmt: str, lock: Path) -> dict[str, Result]:
    """Return the results of a finished project, by key.

    Args:
        fmt: format of its config, as the folders of the cases are named.
        lock: that it was made with.
    """
    return {result.key: result for result in _FORMATS[fmt](folder, lock)}


def to_json(results: Mapping[str, Result]) -> str:
    """Return results as text, for the cache."""
    return json.dumps([asdict(result) for result in results.values()], indent=1)


def from_json(text: str) -> dict[str, Result]:
    """Return results that were written by `to_json`."""
    return {result.key: result for result in (Result(**found) for found in json.loads(text))}


def _read_1(folder: Path, lock: Path) -> list[Result]:
    report = _json(
        next(folder.glob("results/reports/*/report.json"), folder / "results/report/report.json")
    )
    names = {dataset["id"]: dataset["name"] for dataset in report["datasets"]}
    found = [read_dataset(folder, id, name) for id, name in names.items()]
    for run in report["runs"]:
        datasets = [names[id] for id in run["dataset"].split(", ")]  # several of a mix
        found += read_run(folder, run["id"], run["names"][0], *datasets)
    inputs = [result.key for result in found if result.stage == "evaluate"]
    # its identity document is kept nowhere; these packages decide its figures
    pins = re.findall(r"^(?:numpy|scipy)==.*", lock.read_text(), re.MULTILINE)
    identity = {"environment": pins}
    return [
        *found,
        Result(
            stage="report", case="all", identity=identity, inputs=inputs, values=_stable(report)
        ),
    ]


def read_dataset(folder: Path, id: str, name: str) -> Result:
    """Return a dataset that was sealed under an id."""
    manifest = _json(folder / "results/datasets" / id / "manifest.json")
    values = {k: manifest[k] for k in manifest.keys() - {"dataset", "identity"}}
    for path in sorted((folder / "store/datasets" / id).glob("*.safetensors")):
        values[path.name] = tensors(path)
    return Result(stage="data", case=name, identity=manifest["identity"], inputs=[], values=values)


def read_run(folder: Path, id: str, name: str, *datasets: str) -> list[Result]:
    """Return a training and its evaluation."""
    results, work = folder / "results/runs" / id, folder / "store/work" / id
    ended = _json(results / "provenance.json")["training"]
    # where it resumed from is progress, what it consumed is in the ledger, causes are told in words, and whose
    # optimiser it was is the model's
    unstable = {"checkpoint_s", "consumed", "own_optimizer", "resumed_step"}
    told = {k: ended[k] for k in ended.keys() - unstable}
    for one in told.get("interventions", []):
        del one["cause"]
    # the weights that it began with are a result of their own, and a state contains more than weights
    told.get("init", {}).pop("sha256", None)
    trained = {
        "tensors": tensors(results / "model.safetensors"),
        "metrics": [
            {key: value for key, value in line.items() if key != "wall_s"}
            for line in _lines(results / "metrics.jsonl")
        ],
        "rows": _consumed(work / "ledger"),
        "ended": told,
    }
    evaluation = _json(next((results / "evaluations").glob("*.json")))
    unstable = {"run", "identity", "action", "files", "sha256"}
    evaluated = {k: evaluation[k] for k in evaluation.keys() - unstable}
    train = _json(results / "identity.json")
    return [
        Result(stage="train", case=name, identity=train, inputs=[f"data {of}" for of in datasets], values=trained),
        Result(
            stage="evaluate", case=name, identity=evaluation["identity"], inputs=[f"train {name}"], values=evaluated
        ),
    ]  # fmt: skip


def _consumed(ledger: Path) -> dict[str, list[int]]:
    """Return the row ids of each step, by rank and batch; what was done again takes the place of before.

    An attempt after a rollback may begin before the attempts that are older than it.
    """
    attempts: dict[int, list[Path]] = {}
    for path in sorted(ledger.glob("*.jsonl")):
        attempts.setdefault(int(re.findall(r"\d+", path.name)[0]), []).append(path)
    steps: dict[int, list[int]] = {}
    for start in sorted(attempts, key=lambda one: max(p.stat().st_mtime_ns for p in attempts[one])):
        steps = {step: rows for step, rows in steps.items() if step <= start}
        for line in (line for path in attempts[start] for line in _lines(path)):
            steps.setdefault(line["step"], []).extend(line["ids"])
    return {str(step): rows for step, rows in steps.items()}


def tensors(path: Path) -> Values:
    """Return what a safetensors file holds, sorted by name: type, shape, digest of the bytes, and how they begin."""
    found = {}
    with safe_open(path, framework="numpy") as file:
        for name in sorted(file.keys()):
            array = np.ascontiguousarray(file.get_tensor(name))
            found[name] = {
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "begins": array.reshape(-1)[:_SHOWN].tolist(),
                "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            }
    return found


def _stable(value: Any) -> Any:
    """Return what a report tells without what differs each time."""
    if isinstance(value, Mapping):
        return {key: _stable(item) for key, item in value.items() if key not in _UNSTABLE}
    if isinstance(value, list):
        return [_stable(item) for item in value]
    return _ID.sub("ID", value) if isinstance(value, str) else value


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text().splitlines()))


_FORMATS: dict[str, Callable[[Path, Path], list[Result]]] = {"format-1": _read_1}
