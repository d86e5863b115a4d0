"""What csv, TensorBoard and W&B without a key leave in the store, read back by their own readers."""

import json
import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from wandb.proto import wandb_internal_pb2

from shardline import tracking
from shardline.records.base import encode
from shardline.tracking.run_links import read_places
from tests.support.processes import descendants
from tests.support.tracked_training import PATIENT, Training

pytestmark = pytest.mark.usefixtures("no_login")
tracked = partial(tracking.tracked, limits_s=PATIENT)


def test_the_table_has_a_row_per_step_and_late_metrics_at_the_right(training):
    with tracked(["csv"], training.context):
        training.log(1, 2, 3)
        training.append({"step": 4, "epoch": 1, "wall_s": 0.4, "late": 7.0, "lost": None})
        training.seal()
    text = (training.work / "tracking/metrics.csv").read_text()
    assert text.splitlines()[0] == "step,wall_s,epoch,train_loss,val_loss,late"
    table = pd.read_csv(training.work / "tracking/metrics.csv", index_col="step")
    assert list(table.index) == [1, 2, 3, 4]
    assert table["train_loss"].dropna().to_dict() == {1: 1.0, 2: 0.5, 3: 1 / 3}
    assert table["val_loss"].dropna().to_dict() == {2: 1.0}
    assert table["late"].dropna().to_dict() == {4: 7.0}
    assert training.links("csv")["not_sent"] is None


def test_the_table_of_a_resumed_training_has_each_step_once(training):
    with suppress(ValueError), tracked(["csv"], training.context):
        training.log(1, 2, 3, 4)
        raise ValueError("ill")
    assert training.links("csv")["ended"] == "failed"
    training.rewind(2)
    with tracked(["csv"], training.context):
        training.log(3, 4, 5)
        training.seal()
    table = pd.read_csv(training.work / "tracking/metrics.csv")
    assert list(table["step"]) == [1, 2, 3, 4, 5]


def test_tensorboard_reads_curves_and_hyperparameters(training):
    with tracked(["tensorboard"], training.context):
        training.log(1, 2, 3)
        training.seal()
    events = board(training)
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("train_loss")] == [
        (1, 1.0), (2, 0.5), (3, 0.333333),
    ]  # fmt: skip
    times = [event.wall_time for event in events.Scalars("train_loss")]
    assert [round(time - times[0], 3) for time in times] == [0.0, 0.1, 0.2]
    assert [event.step for event in events.Scalars("val_loss")] == [2]
    plugin = events.PluginTagToContent("hparams")
    begun = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG])
    assert begun.hparams["optim.lr"].number_value == 0.1
    assert begun.hparams["model_args.a b(c)"].string_value == "[1]"
    ended = metadata.parse_session_end_info_plugin_data(plugin[metadata.SESSION_END_INFO_TAG])
    assert ended.status == 1  # STATUS_SUCCESS


def test_tensorboard_shows_a_resumed_training_once(training):
    with suppress(ValueError), tracked(["tensorboard"], training.context):
        training.log(1, 2, 3, 4)
        raise ValueError("ill")
    training.rewind(2)
    with tracked(["tensorboard"], training.context):
        training.log(3, 4, 5)
        training.seal()
    assert [event.step for event in board(training).Scalars("train_loss")] == [1, 2, 3, 4, 5]
    assert [event.step for event in board(training).Scalars("val_loss")] == [2, 4]


def test_wandb_without_a_key_writes_a_run_that_can_be_sent_later(training, caplog):
    with caplog.at_level(logging.INFO), tracked(["wandb"], training.context):
        training.log(1, 2, 3)
        training.save("best-1.safetensors")
        training.seal()
    run, rows, (artifact,) = wandb_run(training)
    assert (artifact.type, artifact.manifest.contents[0].local_path) == (
        "model",
        str(training.model),
    )
    assert (run.run_id, run.project, run.display_name) == ("0123456789ab", "shardline", "net")
    config = {item.key or ".".join(item.nested_key): item.value_json for item in run.config.update}
    assert (config["optim.lr"], config["shardline.identity"]) == ("0.1", '"abc"')
    assert {row["_step"]: row["train_loss"] for row in rows} == {1: 1.0, 2: 0.5, 3: 1 / 3}
    assert {row["_step"]: row["val_loss"] for row in rows if "val_loss" in row} == {2: 1.0}
    (said,) = caplog.messages
    assert said.startswith("W&B run 0123456789ab (offline; to send it, run `wandb sync ")
    assert Path(said.partition("sync ")[2].partition("`")[0]).is_dir()


def test_wandb_has_a_resumed_training_as_one_whole_run(training):
    with suppress(ValueError), tracked(["wandb"], training.context):
        training.log(1)
        training.show(2)
        training.log(2, 3, 4)
        raise ValueError("ill")
    training.rewind(2)
    with tracked(["wandb"], training.context):
        training.log(3, 4)
        training.show(5)
        training.log(5)
        training.seal()
    run, rows, _ = wandb_run(training)
    assert run.run_id == "0123456789ab"
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5]
    shown = {row["_step"]: row for row in rows if "text" in row or "text._type" in row}
    assert [*shown] == [2, 5]
    assert shown[5]["train_loss"] == 1 / 5
    images = {key: value for key, value in shown[2].items() if key.startswith("val/images")}
    assert "images/separated" in json.dumps(images)
    assert any(key.startswith("a table") for key in shown[2])


def test_what_a_tracker_leaves_running_ends_with_a_job_that_is_killed(training, tmp_path):
    program = tmp_path / "job.py"
    program.write_text(
        "import json, sys, time\n"
        "from shardline.tracking import TrackingContext, tracked\n"
        "context = TrackingContext(**json.loads(sys.argv[1]))\n"
        "with tracked(['wandb'], context):\n"
        "    time.sleep(600)\n"
    )
    job = subprocess.Popen([sys.executable, str(program), json.dumps(encode(training.context))])
    training.log(1, 2, 3)
    while not descendants(job.pid, lambda child: "wandb-core" in child.name()):
        assert job.poll() is None
    children = psutil.Process(job.pid).children(recursive=True)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    _, left = psutil.wait_procs(children, timeout=60)
    assert left == []


def test_provenance_says_where_a_training_is_shown(training):
    trackers = ["csv", "tensorboard", "wandb", "mlflow"]
    with tracked(trackers[:3], training.context):
        read_places(training.work, trackers[:3], wait_s=60)
        places = read_places(training.work, trackers, wait_s=0)
    assert places == {
        "csv": {"file": str(training.work / "tracking/metrics.csv")},
        "tensorboard": {"folder": training.context.store + "/tensorboard/0123456789ab"},
        "wandb": {"id": "0123456789ab"},
        "mlflow": None,
    }


def board(training: Training) -> EventAccumulator:
    """Read what TensorBoard would show of the training."""
    events = EventAccumulator(f"{training.context.store}/tensorboard/0123456789ab")
    events.Reload()
    return events


def wandb_run(training: Training) -> tuple[Any, list[dict[str, Any]], list[Any]]:
    """Read the one run of W&B, its rows and its artifacts."""
    (file,) = Path(training.context.store).glob("wandb/offline-run-*/*.wandb")
    run, rows, artifacts = None, [], []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run = record.run
        elif record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
        elif record.WhichOneof("record_type") == "artifact":
            artifacts.append(record.artifact)
    return run, rows, artifacts


def records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file, which is LevelDB's log format after 7 bytes of W&B's own.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    assert log[:4] == b":W&B"
    place, whole = 7, b""
    while place + 7 <= len(log):
        if (left := 32768 - place % 32768) < 7:  # the rest of a block, too small for a header
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", log, place)
        whole += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole of a record, or the end of one
            yield whole
            whole = b""
