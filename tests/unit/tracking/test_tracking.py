"""What tracking reads and refuses; what trackers are sent is in tests/workflow and tests/azureml."""

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shardline.errors import ConfigError
from shardline.records.metrics import Logged, MetricLine
from shardline.records.tracking import TrackingContext
from shardline.tracking import tracker_process
from shardline.tracking.backends.csv import CsvFile
from shardline.tracking.backends.mlflow import MlflowRun, _name
from shardline.tracking.backends.tensorboard import TensorBoardFolder
from shardline.tracking.backends.wandb import WandbRun, has_key
from shardline.tracking.logged_files import files_of, markdown_table, numbered
from shardline.tracking.metric_batches import MetricBatch, Records
from shardline.tracking.processes import check_packages, tracked
from shardline.tracking.run_links import RunLinks, read_places
from shardline.tracking.tracker import shorten
from shardline.training.metrics_file import JsonLinesLogger
from tests.support.tracked_training import Training

AZURE = "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/a"


def write(path: Path, *records: dict[str, Any], tail: str = "") -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)


def record(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "wall_s": float(step), **(values or {"loss": 1 / step})}


def read(
    records: Records, after: int = -1, *, is_whole: bool = False, size: int = 9
) -> list[MetricBatch]:
    return list(records.batches(after, is_whole=is_whole, size=size))


def steps(batches: list[MetricBatch]) -> list[int]:
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


def test_a_file_that_was_cut_back_and_has_grown_beyond_is_read_from_its_beginning(path):
    """A training goes back, and does the same steps again before anybody looks."""
    write(path, *(record(step, loss=1.0, note=step) for step in range(1, 6)))
    records = Records(path)
    assert steps(read(records)) == [1, 2, 3, 4]
    JsonLinesLogger(path).rewind(2)
    again = "".join(json.dumps(record(step)) + "\n" for step in range(3, 30))
    path.write_text(path.read_text() + again)
    assert steps(read(records, 4, is_whole=True)) == list(range(5, 30))


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
    ("tracker", "uri", "missing", "said"),
    [
        ("mlflow", "", "alembic", "MLFLOW_TRACKING_URI is not set), which is not installed"),
        ("mlflow", "", "alembic", "pip install 'shardline[mlflow]'"),
        ("mlflow", "https://host", "mlflow", "pip install 'shardline[mlflow]'"),
        ("mlflow", AZURE, "azureml.mlflow", "pip install 'shardline[azureml]'"),
        ("tensorboard", "", "tensorboard", "pip install 'shardline[tensorboard]'"),
        ("wandb", "", "wandb", "pip install 'shardline[wandb]'"),
    ],
)  # fmt: skip
def test_a_job_that_could_never_be_tracked_is_refused(tracker, uri, missing, said, monkeypatch):
    monkeypatch.setattr(
        "shardline.tracking.processes.find_spec",
        lambda module: None if module == missing else object(),
    )
    with pytest.raises(ConfigError, match=rf"runtime\.tracking=\[{tracker}\]") as error:
        check_packages(tracker, {"MLFLOW_TRACKING_URI": uri})
    assert said in str(error.value)


def test_a_table_needs_no_package(monkeypatch):
    monkeypatch.setattr("shardline.tracking.processes.find_spec", lambda module: None)
    check_packages("csv", {})


def test_a_package_whose_parent_is_missing_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "azureml", None)
    monkeypatch.setitem(sys.modules, "azureml.mlflow", None)
    with pytest.raises(ConfigError, match="which is not installed"):
        check_packages("mlflow", {"MLFLOW_TRACKING_URI": AZURE})


def test_without_a_tracker_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    nothing = dict.fromkeys(("run", "name", "dataset", "store", "work", "metrics", "model"), "")
    context = TrackingContext(**nothing, dataset_name="", params={}, tags={})
    with tracked([], context):
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
        "ValueError: no answer from https://***@host/p?*** with Bearer ***, token=*** ***"
    )
    assert len(shorten(ValueError("x" * 1000))) < 310


def test_places_are_awaited_until_the_tracker_answers_and_else_unknown(tmp_path):
    RunLinks(tmp_path, "csv").write(where={"file": "a"}, not_sent=None)
    assert read_places(tmp_path, []) == {}
    assert read_places(tmp_path, ["csv"], wait_s=3600) == {"csv": {"file": "a"}}
    assert read_places(tmp_path, ["csv", "mlflow"], wait_s=0) == {
        "csv": {"file": "a"},
        "mlflow": None,
    }
    RunLinks(tmp_path, "mlflow").write(where={"run_id": None, "uri": "b"})
    unknown = {"mlflow": {"run_id": None, "uri": "b"}}
    assert read_places(tmp_path, ["mlflow"], wait_s=0) == unknown
    RunLinks(tmp_path, "mlflow").write(failed=True)
    assert read_places(tmp_path, ["mlflow"], wait_s=3600) == unknown


def test_wandb_is_asked_only_where_there_is_a_key_for_it(tmp_path):
    logins = tmp_path / "netrc"
    nobody = {"NETRC": str(logins)}
    assert not has_key(nobody)
    assert has_key({**nobody, "WANDB_API_KEY": "k"})
    logins.write_text("machine api.wandb.ai login user password k\n")
    assert has_key(nobody)
    assert not has_key({**nobody, "WANDB_BASE_URL": "https://wandb.example.org"})
    logins.write_text("machine\n")  # which is not whole
    assert not has_key(nobody)


def test_a_tracker_that_does_not_take_the_end_is_told_of(tmp_path, monkeypatch):
    class Stuck(CsvFile):
        def close(self, how: str) -> None:
            raise ConnectionError("away")

    monkeypatch.setitem(tracker_process._TRACKERS, "csv", Stuck)
    write(tmp_path / "metrics.jsonl", record(1))
    said: list[str] = []
    texts = dict.fromkeys(("run", "name", "dataset", "dataset_name", "store", "model"), "")
    context = {**texts, "work": str(tmp_path), "metrics": str(tmp_path / "metrics.jsonl")}
    process = tracker_process.TrackerProcess(
        "csv",
        TrackingContext(**context, params={}, tags={}, look_s=0.0),
        lambda text, _: said.append(text),
    )
    process.end("sealed")
    process.run()
    process.report()
    assert said[1:] == ["not sent to CSV: the final status of the training: ConnectionError: away"]
    assert RunLinks(tmp_path, "csv").read()["not_sent"] == "the final status of the training"


PATHS = st.text(alphabet="ab/. ()-_é", max_size=10)


@given(PATHS)
def test_mlflow_accepts_every_name(name):
    _validate_metric_name(_name(name))


def test_metrics_whose_names_mlflow_does_not_accept_keep_apart_and_their_names(tmp_path):
    texts = dict.fromkeys(
        ("run", "name", "dataset", "dataset_name", "store", "model", "metrics"), ""
    )
    context = TrackingContext(**texts, work=str(tmp_path), params={}, tags={})

    def names(*metrics: str) -> list[str]:
        run = MlflowRun(context, RunLinks(tmp_path, "mlflow"))
        return [run._name_of(one) for one in metrics]

    first = names("val/acc", "loss (train)", "loss [train]")
    assert first[:2] == ["val/acc", "loss _train_"]
    assert len({*first}) == 3
    assert names("loss [train]", "loss (train)") == [first[2], first[1]]


def test_a_table_has_a_column_for_every_name(tmp_path):
    texts = dict.fromkeys(
        ("run", "name", "dataset", "dataset_name", "store", "model", "metrics"), ""
    )
    table = CsvFile(
        TrackingContext(**texts, work=str(tmp_path), params={}, tags={}), RunLinks(tmp_path, "csv")
    )
    table.open()
    write(tmp_path / "m", record(1, **{"val/acc": 0.5, 'loss (a, "b")': 2.0}))
    for batch in read(Records(tmp_path / "m"), is_whole=True):
        table.send(batch, None)
    (row,) = csv.DictReader((tmp_path / "tracking/metrics.csv").open(newline=""))
    assert (row["val/acc"], row['loss (a, "b")']) == ("0.5", "2.0")


def test_images_tables_and_texts_go_with_their_step(tmp_path):
    training = Training(tmp_path)
    training.log(1)
    training.show(2)
    training.log(2)
    training.append(record(3, logged=[{"name": "a", "left_out": "bound"}]))
    batches = read(Records(training.metrics), is_whole=True)
    (line,) = (line for batch in batches for line in batch.logged)
    assert line.step == 2
    assert [(name, one.name) for name, one in numbered(line)] == [
        ("val/images/0", "val/images"), ("val/images/1", "val/images"), ("a table", "a table"), ("text", "text"),
    ]  # fmt: skip
    files = dict(files_of(line))
    assert [*files] == [
        "val/images/0/00000002.png", "val/images/1/00000002.png", "a table/00000002.csv", "text/00000002.txt",
    ]  # fmt: skip
    assert files["text/00000002.txt"] == b"at 2"
    assert markdown_table(["x"], [["a|b"], [None]]) == "| x |\n| --- |\n| a\\|b |\n|  |"
    assert len([value for batch in batches for value in batch.values if value.name == "epoch"]) == 3


@given(names=st.sets(st.text(alphabet="ab/.(_ ", max_size=6), min_size=1, max_size=4))
def test_entries_of_every_name_have_files_of_their_own_below_the_folder(names):
    line = MetricLine(step=1, values={}, logged=[Logged(name=one, text=one) for one in names])
    files = dict(files_of(line))
    assert len(files) == len(names)
    for path in files:
        assert os.path.normpath(path) == path
        assert not path.startswith((".", "/"))


def test_tensorboard_shows_images_tables_and_texts(tmp_path):
    training = Training(tmp_path)
    training.show(1)
    training.log(1)
    board = TensorBoardFolder(training.context, RunLinks(training.work, "tensorboard"))
    board.open()
    for batch in read(Records(training.metrics), is_whole=True):
        board.send(batch, None)
    board.close("sealed")
    events = EventAccumulator(str(Path(training.context.store, "tensorboard/0123456789ab")))
    events.Reload()
    assert sorted(events.Tags()["images"]) == ["val/images/0", "val/images/1"]
    (image,) = events.Images("val/images/0")
    assert (image.step, image.width, image.height) == (1, 3, 2)
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.PluginTagToContent("text")
    }
    assert texts == {
        "a table": "| x | y |\n| --- | --- |\n| 1 | a\\|b |\n|  | 2.5 |",
        "text": "at 1",
    }


@pytest.mark.parametrize(("group", "sent"), [("lr", "lr"), ("", None)])
def test_wandb_groups_the_trials_of_a_sweep(tmp_path, monkeypatch, group, sent):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    seen: dict[str, object] = {}
    monkeypatch.setattr(wandb, "init", lambda **given: seen.update(given))
    texts = dict.fromkeys(
        ("run", "name", "dataset", "dataset_name", "store", "model", "metrics"), ""
    )
    context = TrackingContext(**texts, work=str(tmp_path), params={}, tags={}, group=group)
    WandbRun(context, RunLinks(tmp_path, "wandb"))._init()
    assert seen["group"] == sent


def test_mlflow_finds_the_trials_of_a_sweep_by_their_tag(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    texts = dict.fromkeys(("name", "dataset", "dataset_name", "model", "metrics"), "n")
    runs = []
    for number, group in enumerate(["lr", "lr", ""]):
        tags = {"shardline.sweep": group} if group else {}
        own = {"run": str(number), "store": str(tmp_path), "work": str(tmp_path / str(number))}
        context = TrackingContext(**texts, **own, params={}, tags=tags, group=group)
        run = MlflowRun(context, RunLinks(tmp_path / str(number), "mlflow"))
        run.open()
        runs.append(run)
    client = runs[0]._client
    (experiment,) = {client.get_run(run.run_id).info.experiment_id for run in runs}
    found = client.search_runs([experiment], "tags.`shardline.sweep` = 'lr'")
    assert {one.info.run_id for one in found} == {run.run_id for run in runs[:2]}
