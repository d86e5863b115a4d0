"""What tracking reads and refuses; what it sends is in tests/azureml, where MLflow is installed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shardline.errors import ConfigError
from shardline.tracking.beside import Story, check_mlflow, tracked
from shardline.tracking.follow import shorten
from shardline.tracking.records import Batch, Records

AZURE = "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/a"


def write(path: Path, *records: dict[str, Any], tail: str = "") -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)


def record(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "wall_s": float(step), **(values or {"loss": 1 / step})}


def read(
    records: Records, after: int = -1, *, is_whole: bool = False, size: int = 9
) -> list[Batch]:
    return list(records.batches(after, is_whole=is_whole, size=size))


def steps(batches: list[Batch]) -> list[int]:
    return sorted({value.step for batch in batches for value in batch.values})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_the_newest_step_waits_for_its_validation(path):
    records = Records(path)
    assert read(records) == []  # nothing is logged yet
    write(path, record(1), record(2))
    assert steps(read(records)) == [1]
    write(path, record(1), record(2), record(2, val_loss=0.5), record(3))
    (batch,) = read(records, 1)
    assert [(value.name, value.step) for value in batch.values] == [
        ("epoch", 2), ("loss", 2), ("epoch", 2), ("val_loss", 2),
    ]  # fmt: skip
    assert (batch.step, batch.records) == (2, 2)
    assert steps(read(records, 2, is_whole=True)) == [3]
    assert read(records, 3, is_whole=True) == []


def test_a_line_that_is_still_written_is_read_once_it_is_whole(path):
    records = Records(path)
    write(path, record(1), record(2), tail='{"step": 3')
    assert steps(read(records)) == [1]
    write(path, record(1), record(2), record(3), record(4))
    assert steps(read(records, 1)) == [2, 3]


def test_a_file_that_was_cut_back_is_read_from_its_beginning(path):
    records = Records(path)
    write(path, *map(record, range(1, 8)))
    assert steps(read(records)) == [1, 2, 3, 4, 5, 6]
    write(path, *map(record, range(1, 4)))
    assert read(records, 6) == []
    write(path, *map(record, range(1, 10)))
    assert steps(read(records, 6)) == [7, 8]


def test_batches_hold_whole_steps(path):
    write(path, *map(record, range(1, 8)))
    batches = read(Records(path), is_whole=True, size=4)
    assert [(batch.step, len(batch.values)) for batch in batches] == [
        (2, 4),
        (4, 4),
        (6, 4),
        (7, 2),
    ]
    write(path, record(1), record(2, **{f"m{i}": i for i in range(20)}), record(3))
    batches = read(Records(path), is_whole=True, size=4)
    assert [(batch.step, len(batch.values)) for batch in batches] == [(1, 2), (2, 21), (3, 2)]


def test_a_batch_counts_as_read_when_the_next_is_asked_for(path):
    records = Records(path)
    write(path, *map(record, range(1, 8)))
    first = next(records.batches(-1, is_whole=True, size=4))
    assert steps([first, *read(records, first.step, is_whole=True)]) == [1, 2, 3, 4, 5, 6, 7]


def test_what_is_no_finite_number_is_left_out(path):
    write(path, record(1, a=None, b="c", d=True, e=2), tail='{"step": 2, "a": NaN}\n[]\n{"a": 1}\n')
    (batch,) = read(Records(path), is_whole=True)
    assert [(value.name, value.value) for value in batch.values] == [("epoch", 0.0), ("e", 2.0)]


def test_times_are_those_of_training(path):
    records = Records(path)
    assert records.started() is None
    write(path, record(1), record(90), tail='{"step": 3')
    assert records.started() == path.stat().st_mtime - 90


@pytest.mark.parametrize(
    ("variables", "missing", "said"),
    [
        ({}, "", "MLFLOW_TRACKING_URI is not set; Azure ML sets it"),
        ({"MLFLOW_TRACKING_URI": "https://host"}, "mlflow", "pip install 'shardline[mlflow]'"),
        ({"MLFLOW_TRACKING_URI": AZURE}, "azureml.mlflow", "pip install 'shardline[azureml]'"),
    ],
)
def test_a_job_that_could_never_be_tracked_is_refused(variables, missing, said, monkeypatch):
    monkeypatch.setattr(
        "shardline.tracking.beside.find_spec",
        lambda module: None if module == missing else object(),
    )
    with pytest.raises(ConfigError, match=r"runtime\.tracking=\[mlflow\]") as error:
        check_mlflow(variables)
    assert said in str(error.value)


def test_a_package_whose_parent_is_missing_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "azureml", None)
    monkeypatch.setitem(sys.modules, "azureml.mlflow", None)
    with pytest.raises(ConfigError, match="which is not installed"):
        check_mlflow({"MLFLOW_TRACKING_URI": AZURE})


def test_without_a_tracker_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    story = Story(run="a", name="a", work="", metrics="", model="", params={}, tags={})
    with tracked([], story):
        pass


def test_errors_are_one_short_line_without_secrets(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    text = shorten(
        ValueError(
            "no answer\nfrom https://me:pass1@host/p?sv=1&sig=pass2&x=1 with Bearer pass3, "
            "token=pass4 t0ken"
        )
    )
    assert text == (
        "ValueError: no answer from https://***host/p?sv=1&sig=***&x=1 with Bearer *** token=*** ***"
    )
    assert len(shorten(ValueError("x" * 1000))) < 310
