"""A program of any framework reads what a Lightning run reads, resumes where it saved, and is stopped in time."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import shardline_io as io
from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, RunSettings, Trainer
from shardline.core.errors import Stopped
from shardline.data.dataset import Dataset
from shardline.ledger import read_ledger
from shardline.sources import Schema
from shardline.training import script
from shardline_io import heartbeat_memory, order, own_run
from shardline_io.errors import ConfigError, DataError
from shardline_io.streams import read_ahead
from tests.support.columns import Given, manifest_of, sources
from tests.support.labelled_rows import Labelled
from tests.support.script_rank import Project, as_rank, world_of, write_run


@settings(max_examples=40, deadline=None, print_blob=True)
@given(
    source=sources(),
    world_size=st.sampled_from([1, 2, 3]),
    accumulate=st.sampled_from([1, 2]),
    streams=st.sampled_from([1, 2]),
    window_bytes=st.integers(1, 4000),
    is_padded=st.booleans(),
    epochs=st.integers(1, 3),
    data=st.data(),
)
def test_batches_are_those_of_a_lightning_run_from_any_step_on(
    source: Given,
    world_size: int,
    accumulate: int,
    streams: int,
    window_bytes: int,
    is_padded: bool,
    epochs: int,
    data: st.DataObject,
) -> None:
    size = world_size * accumulate * streams
    wanted = RunSettings(
        global_batch=size,
        seed=3,
        data=Data(window_bytes=window_bytes, streams=streams, last_batch="pad"),
        trainer=Trainer(accumulate=accumulate, max_epochs=epochs),
    )
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest = manifest_of(source, folder)
        dataset = Dataset(folder / "manifest.json", folder, verify="off")
        rows = manifest.splits["train"]
        if not is_padded and rows >= size:
            wanted = msgspec.structs.replace(
                wanted, data=msgspec.structs.replace(wanted.data, last_batch="drop")
            )
        write_run(folder, wanted)
        total = sum(
            dataset.train_order(wanted, world_of(0, 1)).steps(epoch) for epoch in range(epochs)
        )
        done = data.draw(st.integers(0, total), label="steps that are done")
        for rank in range(world_size):
            own = dataset.train_order(wanted, world_of(rank, world_size))
            stream = dataset.stream(own)
            expected = [
                (stream.batch_ids.tolist(), batch)
                for epoch in range(epochs)
                for batch in stream.batches(epoch)
            ]
            window = str(dataset.window_rows(window_bytes))
            with as_rank(folder, rank, world_size, WINDOW_ROWS=window):
                assert io.num_steps() == total
                found = list(io.train(done))
            assert len(found) == len(expected) - done * accumulate
            for place, (batch, (ids, other)) in enumerate(
                zip(found, expected[done * accumulate :], strict=True)
            ):
                assert batch.step == done + place // accumulate + 1
                assert batch.ids.tolist() == ids
                assert batch.keys() == other.keys()
                for column, values in other.items():
                    if isinstance(values, list):
                        assert batch[column] == values
                    else:
                        np.testing.assert_array_equal(batch[column], values.numpy())
                        assert batch[column].dtype == values.numpy().dtype


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (2, 2)])
def test_weights_of_rows_come_with_their_sum_in_the_global_batch(
    ranks: int, accumulate: int, last_batch: Any, tmp_path: Path
) -> None:
    generator = np.random.default_rng(4)
    columns = {
        "features": generator.normal(size=(45, 2)).astype(np.float32),
        "labels": generator.integers(0, 2, 45),
        "weight": generator.random(45).astype(np.float32),
    }
    schema = Schema(feature_shape=(2,), classes=("a", "b"), weighted=True)
    manifest_of(Labelled(schema, np.repeat(0, 45), num_shards=3, **columns), tmp_path)
    wanted = RunSettings(
        global_batch=8, data=Data(last_batch=last_batch), trainer=Trainer(accumulate=accumulate, max_epochs=2),
    )  # fmt: skip
    write_run(tmp_path, wanted)
    dataset = Dataset(tmp_path / "manifest.json", tmp_path, verify="off")
    means, sums = set(), 0.0
    for rank in range(ranks):
        stream = dataset.stream(dataset.train_order(wanted, world_of(rank, ranks)))
        expected = [batch for epoch in range(2) for batch in stream.batches(epoch)]
        with as_rank(
            tmp_path, rank, ranks, WINDOW_ROWS=str(dataset.window_rows(wanted.data.window_bytes))
        ):
            found = list(io.train(0))
        assert len(found) == len(expected)
        for batch, other in zip(found, expected, strict=True):
            assert batch.keys() == other.keys()
            for name, values in other.items():
                np.testing.assert_array_equal(batch[name], values.numpy())
            means.add((batch.step, float(batch["weight.mean_count"])))
            sums += float((batch["weight"] * batch.get("weights", np.ones(1)).clip(max=1)).sum())
    steps = {step for step, _ in means}
    assert len(means) == len(steps), "all batches of a step have one mean"
    assert sum(mean for _, mean in means) * ranks * accumulate == pytest.approx(sums, rel=1e-5)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_killed_program_resumes_behind_its_last_whole_checkpoint(project: Project) -> None:
    with as_rank(project.folder):
        assert io.resume() is None
        whole = [batch.ids.tolist() for batch in io.train()]
        for batch in io.train():
            io.log(batch.step, train_loss=1 / batch.step)
            if batch.step == 3:
                with io.checkpoint(3) as folder:
                    (folder / "state").write_text("3")
            if batch.step == 5:
                with suppress(KeyboardInterrupt), io.checkpoint(5) as folder:
                    (folder / "state").write_text("half")
                    raise KeyboardInterrupt
                break
    with as_rank(project.folder):
        saved = io.resume()
        assert saved is not None
        assert (saved.step, (saved.folder / "state").read_text()) == (3, "3")
        assert [batch.ids.tolist() for batch in io.train()] == whole[3:]
        io.log(4, train_loss=0.5)
        with io.checkpoint(4):
            pass
        assert [
            path.name
            for path in (project.folder / "work").glob("step-*")
            if "partial" not in path.name
        ] == ["step-000000004"]
    lines = (project.folder / "output/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    seconds = [json.loads(line)["wall_s"] for line in lines]
    assert seconds == sorted(seconds)


def test_every_held_out_row_comes_once_over_all_ranks(project: Project) -> None:
    found = []
    for rank in range(3):
        with as_rank(project.folder, rank, 3):
            found += [
                row for batch in io.held_out("validation", batch=4) for row in batch.ids.tolist()
            ]
    assert sorted(found) == [row for row in range(24) if row % 3]
    with as_rank(project.folder), pytest.raises(DataError, match="no rows in the split 'tset'"):
        list(io.held_out("tset"))


def test_one_window_is_read_ahead_and_an_error_comes_at_its_place() -> None:
    begun: list[int] = []
    may_read = [threading.Semaphore(0) for _ in range(5)]

    def read(key: int) -> int:
        begun.append(key)
        assert may_read[key].acquire(timeout=30)
        if key == 3:
            raise DataError("key 3")
        return key

    reading = read_ahead(range(5), read)
    for key in range(3):
        may_read[key].release()
        assert next(reading) == key
        assert max(begun) <= key + 1, (
            "the present window and the next one are in memory, and no other"
        )
    may_read[3].release()
    with pytest.raises(DataError, match="key 3"):
        next(reading)
    assert list(read_ahead([], read)) == []


def test_a_program_that_stops_early_does_not_wait_for_the_window_that_is_read() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def read(key: int) -> int:
        if key:
            begun.set()
            assert may_end.wait(30)
        return key

    before = threading.enumerate()
    reading = read_ahead(range(9), read)
    assert next(reading) == 0
    assert begun.wait(30)
    reading.close()  # type: ignore[attr-defined]
    (thread,) = [one for one in threading.enumerate() if one not in before]
    may_end.set()
    thread.join(30)
    assert not thread.is_alive()


def test_another_version_of_the_order_is_refused(project: Project) -> None:
    write_run(project.folder, RunSettings(), order=order.VERSION + 1)
    with (
        as_rank(project.folder),
        pytest.raises(DataError, match="version 2 of the sample order, expected 1"),
    ):
        next(io.train())


def test_what_is_written_is_what_shardline_seals(project: Project) -> None:
    weights = {"b": np.arange(3, dtype=np.int32), "a": np.ones((2, 2)), "n": np.float32(4)}
    with as_rank(project.folder):
        io.save_model(weights)
        io.write_evaluation({"f1": 0.5}, 8, headline=("f1", "max"))
    found = load_file(project.folder / "output/model.safetensors")
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], value) for name, value in weights.items())
    assert found["n"].shape == ()
    evaluation = json.loads((project.folder / "output/evaluation.json").read_text())
    assert evaluation == {
        "metrics": {"f1": 0.5},
        "num_samples": 8,
        "headline": {"metric": "f1", "mode": "max"},
    }
    with as_rank(project.folder, 1, 2):
        (project.folder / "output/model.safetensors").unlink()
        io.save_model(weights)
        assert not (project.folder / "output/model.safetensors").exists()


def test_a_program_is_watched_until_it_has_ended_and_what_it_does_by_io_is_a_heartbeat(
    project: Project,
) -> None:
    with as_rank(project.folder):
        memory = heartbeat_memory.mine()
        list(io.validation())
        assert memory.read().phase == "startup", "nothing is watched before the first batch"
        list(io.train())

        def save() -> None:
            with io.checkpoint(4):
                pass

        for action in (
            lambda: list(io.validation()),
            save,
            lambda: io.log(4, train_loss=1.0),
            lambda: io.write_evaluation({"f1": 0.5}, 8),
            lambda: io.save_model({"a": np.ones(2)}),
            io.alive,
        ):
            before = memory.read().ticks
            action()
            assert memory.read().ticks > before
        assert memory.read().phase == "end"


def test_several_ranks_stop_by_agreement_alone(project: Project) -> None:
    with as_rank(project.folder, 0, 2):
        assert io.should_stop(lambda asked: asked) is False
        assert io.should_stop(lambda asked: 1) is True
        heartbeat_memory.mine().request_stop("preempted")
        assert io.should_stop(lambda asked: asked) is True
        with pytest.raises(
            ConfigError, match="without max_over_ranks, expected it since world_size=2"
        ):
            io.should_stop()


def test_a_process_that_shardline_has_not_started_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_run.settings.cache_clear()
    monkeypatch.delenv("SHARDLINE_RUN_JSON", raising=False)
    with pytest.raises(ConfigError, match="SHARDLINE_RUN_JSON is not set, expected"):
        io.settings()
    assert "train" in dir(io)
    with pytest.raises(AttributeError, match="no attribute nothing"):
        _ = io.nothing  # type: ignore[attr-defined]


def test_the_package_needs_numpy_alone() -> None:
    code = """
    import sys
    import shardline_io.batches, shardline_io.results, shardline_io.stopping, shardline_io.order.mix
    tops = {name.partition(".")[0] for name in sys.modules}
    print(sorted(tops - sys.stdlib_module_names - {"numpy", "shardline_io", "__main__", "sitecustomize"}))
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(code)],
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.stdout.strip() == "[]"


PROGRAM = """
import os, signal, sys
import shardline_io as io
for batch in io.train():
    if batch.step == 5 and "ask" in sys.argv:
        os.kill(os.getppid(), signal.SIGTERM)
        while not io.should_stop():
            pass
    if io.should_stop():
        with io.checkpoint(batch.step) as folder:
            (folder / "state").write_text("here")
        io.stop()
io.save_model({"w": [1.0]})
"""


def test_a_stop_reaches_a_script_which_saves_and_ends_in_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = project.folder / "run"
    script.prepare(work)
    program = project.folder / "train.py"
    program.write_text(PROGRAM)
    memory = heartbeat_memory.HeartbeatMemory(heartbeat_memory.shared_file())
    monkeypatch.setattr(heartbeat_memory, "_mine", memory)
    place = DatasetPlace(manifest=project.folder / "manifest.json", shards=project.folder)
    options: dict[str, Any] = {
        "run_json": project.folder / "run.json",
        "dataset": place,
        "work": work,
        "window_rows": 100,
        "ledger": True,
    }
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="saved at step 5") as stopped:
        script.run_script(f"script: {program} ask", world_of(0, 1), **options)
    assert (stopped.value.reason, stopped.value.step) == ("preempted", 5)
    assert signal.getsignal(signal.SIGTERM) is before
    os.close(memory.descriptor)

    memory = heartbeat_memory.HeartbeatMemory(heartbeat_memory.shared_file())
    monkeypatch.setattr(heartbeat_memory, "_mine", memory)
    script.prepare(work)
    script.run_script(f"script: {program}", world_of(0, 1), **options)
    assert memory.read().phase == "script", "the watchdog does not wait for a step any more"
    steps = read_ledger(work / "ledger")
    dataset = Dataset(project.folder / "manifest.json", project.folder, verify="off")
    wanted = RunSettings(global_batch=2, trainer=Trainer(max_epochs=2))
    stream = dataset.stream(dataset.train_order(wanted, world_of(0, 1), window_rows=100))
    assert [*steps.values()] == [
        stream.batch_ids.tolist() for epoch in (0, 1) for _ in stream.batches(epoch)
    ]
