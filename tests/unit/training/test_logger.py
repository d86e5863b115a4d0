"""What a model gives to `self.log` and `self.logger`: any names, recorded once, whatever kills the training."""

import base64
import io
import json
import math
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from pytorch_lightning.utilities import rank_zero_only

from shardline.core.errors import ConfigError
from shardline.core.png import COLOR_TYPES, png_bytes, png_size, reduced, reduced_png
from shardline.records.metrics import Logged, MetricLine
from shardline.training.logged_items import images_of, table_of, text_of
from shardline.training.metrics_file import JsonLinesLogger, NoWriterError
from shardline.training.unused_logger import UnusedLogger
from tests.support.simulated_kills import Case, Chain, Kill, Outcome, Trainings, build_trainings

NAMED = Case(
    name="Named",
    model="tests.support.logging_models:Named",
    settings={
        "checkpoint.monitor": "val/acc_best", "checkpoint.mode": "max", "early_stopping.monitor": "loss (val)",
        "early_stopping.patience": 3,
    },
    data="rows",
)  # fmt: skip


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def names(records: list[dict[str, object]]) -> set[str]:
    return {name for record in records for name in record} - {"step", "epoch", "wall_s"}


def at(place: str, *steps: int) -> Iterator[Kill]:
    return (Kill(place=place, step=step) for step in steps)


def test_metrics_of_any_name_are_monitored_recorded_and_resumed(trainings):
    unbroken, _ = trainings.unbroken(NAMED)
    assert {
        "train/acc_step", "train/acc_epoch", "loss (train)", "a.b c", "val/acc", "loss (val)", "val/acc_best",
    } <= names(unbroken.records)  # fmt: skip
    best = max(one["val/acc_best"] for one in unbroken.records if "val/acc_best" in one)
    assert unbroken.trained["best_score"] == pytest.approx(best)
    killed = trainings.killed(
        NAMED, [*at("model.training_step", 2, 4, 9), *at("model.validation_step", 12)]
    )
    assert killed.differences(unbroken) == []


DRAWING = replace(NAMED, name="Drawing", model="tests.support.logging_models:Drawing")
HOOKS = (
    "setup", "fit_start", "train_start", "epoch_start", "step", "batch_end", "validation", "epoch_end", "train_end",
    "fit_end",
)  # fmt: skip


def logged(outcome: Outcome) -> list[tuple[int, str]]:
    return [
        (one["step"], item["name"]) for one in outcome.records for item in one.get("logged", [])
    ]


@pytest.fixture(scope="module")
def drawn(trainings: Trainings) -> tuple[Outcome, dict[str, int], str]:
    """An unbroken training, the last step of each place where it can be killed, and what it printed."""
    told = io.StringIO()
    with redirect_stdout(told):
        unbroken, places = trainings.unbroken(DRAWING)
    return unbroken, places, told.getvalue()


def test_what_is_logged_in_any_hook_is_there_once_whatever_kills_the_training(trainings, drawn):
    unbroken, _, said = drawn
    found = logged(unbroken)
    assert {name for _, name in found} == {
        name for hook in HOOKS for name in (hook, f"{hook}/image", f"{hook} table")
    }
    assert [step for step, name in found if name == "validation"] == [4, 8, 12, 16]
    assert [step for step, name in found if name == "step"] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert [step for step, name in found if name in ("setup", "train_start")] == [0, 0]
    assert [step for step, _ in found] == sorted(step for step, _ in found)
    assert said.count("self.logger.log_hyperparams does nothing here: run.json") == 1
    assert said.count("self.logger.log_graph does nothing here") == 1
    kills = [
        *at("model.training_step", 2, 3), *at("model.on_validation_epoch_end", 4), *at("model.on_train_epoch_end", 8),
        *at("model.validation_step", 12), *at("callback.on_train_batch_end", 14), *at("model.on_fit_end", 16),
    ]  # fmt: skip
    for lateness in (0, 7):
        killed = trainings.killed(DRAWING, kills, lateness=lateness)
        assert killed.differences(unbroken) == []


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_chain_of_kills_leaves_the_same_entries(trainings, drawn, data):
    unbroken, places, _ = drawn
    places = {place: last for place, last in places.items() if last}
    kills = data.draw(
        st.lists(
            st.sampled_from(sorted(places)).flatmap(
                lambda place: st.builds(
                    Kill, place=st.just(place), step=st.integers(0, places[place]),
                    torn=st.none() | st.floats(0, 1),
                )
            ),
            max_size=4,
        )
    )  # fmt: skip
    killed = trainings.killed(DRAWING, kills, lateness=data.draw(st.integers(0, 9)))
    assert killed.differences(unbroken) == []


def test_checkpoints_of_the_models_own_are_written_into_the_runs_work_folder(
    trainings, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    saving = replace(NAMED, name="Saving", model="tests.support.logging_models:Saving")
    folder = tmp_path / "chain"
    chain = Chain(trainings, saving, folder)
    assert chain.attempt(Kill(place="model.training_step", step=9)) is None
    assert chain.attempt(None) is not None
    assert [*(chain.root / "work").glob("**/*.ckpt")]
    assert [path.name for path in tmp_path.iterdir()] == ["chain"]


# ---- the file


class Training:
    """A logger as a trainer has it, at a step that the test sets."""

    def __init__(self, path: Path) -> None:
        epochs = SimpleNamespace(total=SimpleNamespace(started=1, processed=0))
        self.loop = SimpleNamespace(_batches_that_stepped=0)
        fit_loop = SimpleNamespace(epoch_progress=epochs, epoch_loop=self.loop)
        module = SimpleNamespace(_current_fx_name="training_step")
        self.logger = JsonLinesLogger(path)
        self.logger.trainer = SimpleNamespace(
            fit_loop=fit_loop, lightning_module=module, current_epoch=2
        )  # type: ignore[assignment]
        self.path = path

    def at(self, step: int) -> JsonLinesLogger:
        self.loop._batches_that_stepped = step - 1
        return self.logger

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    found = Training(tmp_path / "metrics.jsonl")
    found.logger.rewind(0, 0)
    return found


def test_a_models_own_metrics_have_the_step_and_epoch_of_the_training(training):
    training.at(7).log_metrics({"a/b": torch.tensor(1.0), "c": math.inf}, step=900)
    training.at(7).log_metrics({"lightning": 1.0, "epoch": 5}, step=3)
    first, second = training.lines
    assert (first["step"], first["epoch"], first["a/b"], first["c"]) == (7, 2, 1.0, None)
    assert (second["step"], second["epoch"]) == (4, 5)
    with pytest.raises(
        ConfigError, match=r"log_metrics got text='a', expected a number; call .*log_text"
    ):
        training.logger.log_metrics({"text": "a"})


def test_a_step_of_the_models_own_is_told(training, capsys):
    for step in (None, 6, 7):
        training.at(7).log_text("a", "b", step=step)
    assert "warning" not in capsys.readouterr().out
    training.at(7).log_text("a", "b", step=900)
    assert "step=900 entries have the training's optimiser steps, here 7" in capsys.readouterr().out
    assert {line["step"] for line in training.lines} == {7}


def test_the_bound_is_met_once_said_and_stays_met_in_a_resumed_training(
    training, monkeypatch, capsys
):
    monkeypatch.setattr("shardline.training.metrics_file.MAX_ITEMS", 3)
    for step in range(1, 4):
        training.at(step).log_image("images", torch.zeros(2, 1, 4, 4))
    logged = [
        (line["step"], len(line["logged"]), line["logged"][0].get("left_out"))
        for line in training.lines
    ]
    assert logged == [(1, 2, None), (2, 1, "bound")]
    assert capsys.readouterr().out.count("all later images, tables and texts are left out") == 1
    resumed = Training(training.path)
    resumed.logger.rewind(2, 2)
    resumed.logger.continue_training()
    resumed.at(3).log_text("text", "a")
    assert len(training.lines) == 2
    resumed.logger.rewind(1, 1)
    resumed.logger.continue_training()
    resumed.at(2).log_text("text", "a")
    assert [line["logged"][0].get("text") for line in training.lines] == [None, "a"]


def test_bytes_are_bounded_for_an_entry_and_for_the_run(training, monkeypatch, capsys):
    monkeypatch.setattr("shardline.training.metrics_file.MAX_BYTES", 2500)
    monkeypatch.setattr("shardline.training.metrics_file.MAX_ENTRY_BYTES", 1000)
    for step, length in enumerate((1500, 900, 900, 900, 1), 1):
        training.at(step).log_text("text", length * "x")
    left_out = [line["logged"][0].get("left_out") for line in training.lines]
    assert left_out == ["size", None, None, "bound"]
    said = capsys.readouterr().out
    assert "'text' of step 1 is left out, since it has" in said
    assert "of step 4 and all later" in said
    assert training.path.stat().st_size < 2500


def test_states_without_the_number_of_records_keep_those_up_to_their_step(training):
    for step in range(1, 5):
        training.at(step).log_metrics({"epoch": 0, "loss": step}, step - 1)
    training.logger.rewind(2)
    assert [line["step"] for line in training.lines] == [1, 2]


def test_only_rank_0_records(training, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    training.at(1).log_metrics({"a": 1.0})
    training.at(1).log_image("a", torch.zeros(4, 4))
    training.at(1).log_table("a", ["x"], [[1]])
    training.at(1).log_text("a", "b")
    assert training.lines == []
    with pytest.raises(
        NoWriterError, match=r"self\.logger\.log_video, expected self\.log for numbers"
    ):
        training.logger.log_video("a")


def test_an_evaluation_takes_the_calls_and_says_that_it_keeps_nothing(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    logger = UnusedLogger()
    for _ in range(2):
        logger.log_image("images", torch.zeros(4, 4))
        logger.log_metrics({"a": 1.0})
        logger.log_hyperparams({})
    said = capsys.readouterr().out
    assert said.count("'images' is not recorded: an evaluation keeps no images") == 1
    assert [*tmp_path.iterdir()] == []


# ---- images, tables and texts


def pixels(item: Logged) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(item.png))))


IMAGE = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


@pytest.mark.parametrize(
    "image",
    [
        IMAGE, torch.from_numpy(IMAGE).permute(2, 0, 1), IMAGE.astype(np.int64), IMAGE / 255,
        torch.from_numpy(IMAGE).permute(2, 0, 1)[None] / 255, Image.fromarray(IMAGE), [IMAGE], (IMAGE,),
        torch.from_numpy(IMAGE).permute(2, 0, 1).div(255).requires_grad_(),
    ],
)  # fmt: skip
def test_images_of_every_form_have_their_pixels(image):
    (item,) = images_of("a", image)
    assert np.array_equal(pixels(item), IMAGE)


def test_grey_transparent_and_boolean_images_and_batches():
    assert len(images_of("a", torch.zeros(3, 1, 4, 5))) == 3
    assert pixels(images_of("a", torch.ones(4, 5, dtype=torch.bfloat16))[0]).tolist() == 4 * [
        5 * [255]
    ]
    assert pixels(images_of("a", np.eye(2, dtype=bool))[0]).tolist() == [[255, 0], [0, 255]]
    clear = np.zeros((4, 4, 4), np.uint8)
    assert pixels(images_of("a", clear)[0]).min() == 255
    wrong = np.array([[math.nan, -3.0], [2.0, math.inf]])
    assert pixels(images_of("a", wrong)[0]).tolist() == [[0, 0], [255, 255]]


def test_figures_are_drawn():
    figure = Figure(figsize=(1.31, 0.77), dpi=50)
    figure.subplots().plot([0, 1])
    drawn = pixels(images_of("a", figure)[0])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert np.array_equal(drawn, np.asarray(canvas.buffer_rgba())[:, :, :3])


@pytest.mark.parametrize(
    "image", [np.zeros((2, 5, 5)), np.zeros((0, 4)), np.array([["a"]]), np.zeros(3), "a.png", None, Path("a.png")]
)  # fmt: skip
def test_what_is_no_image_is_told_with_what_is(image):
    with pytest.raises(
        ConfigError, match=r"log_image\('a'\) got an? .*expected images of .*convert it"
    ):
        images_of("a", [image])


def test_each_image_has_a_caption_or_none():
    assert [one.caption for one in images_of("a", [IMAGE, IMAGE], ["b", 3])] == ["b", "3"]
    with pytest.raises(
        ConfigError, match=r"got 1 images and 2 captions; give one caption for each"
    ):
        images_of("a", IMAGE, ["b", "c"])


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))),
    st.integers(1, 12),
)
def test_a_small_image_is_that_of_the_pixels(image, side):
    png = png_bytes(image, COLOR_TYPES[image.shape[2]])
    small = reduced_png(png, side)
    expected = reduced(image.transpose(2, 0, 1), side).transpose(1, 2, 0)
    found = np.asarray(Image.open(io.BytesIO(small)))
    assert np.array_equal(found.reshape(expected.shape), expected)
    assert max(png_size(small)) <= max(side, 2 * side - 1)


def test_tables_have_plain_cells_and_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "s3cret-s3cret-s3cret")
    row = [
        1,
        2.5,
        True,
        None,
        "s3cret-s3cret-s3cret",
        math.nan,
        torch.tensor(3),
        np.float32(0.5),
        Path("a"),
    ]
    table = table_of("a", [f"c{i}" for i in range(9)], [row], None, "log_table")
    assert table.rows == [[1, 2.5, True, None, "***", "nan", 3, 0.5, "a"]]
    assert text_of("a", "token s3cret-s3cret-s3cret").text == "token ***"
    frame = pd.DataFrame({"x": [1, 2], "y": ["a", "b"]})
    table = table_of("a", None, None, frame, "log_table")
    assert (table.columns, table.rows) == (["x", "y"], [[1, "a"], [2, "b"]])
    with pytest.raises(ConfigError, match=r"log_table\('a'\) got 2 columns and rows of 1 cells"):
        table_of("a", ["x", "y"], [[1]], None, "log_table")
    with pytest.raises(ConfigError, match=r"log_text\('a'\) got no rows"):
        table_of("a", ["x"], None, None, "log_text")


def test_lines_are_read_as_they_were_written_and_those_of_scripts_stay_what_they_were(training):
    training.at(1).log_image("a", IMAGE, caption="b")
    training.at(2).log_table("t", ["x"], [[1]])
    for document in training.lines:
        line = MetricLine.of(document)
        assert line
        assert line.to_json() == document
        assert not line.values
    assert MetricLine.of({"step": 1, "logged": 0.5}).values == {"logged": 0.5}
    assert not MetricLine.of({"step": 1, "logged": [{"b": 1}]}).logged
