"""Real ranks evaluate one model together: built-in metrics have the same bytes on any number of them."""

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassF1Score

from shardline.core.errors import ConfigError
from shardline.core.world import World
from shardline.records.base import encode
from shardline.training.evaluate import evaluate
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline_io.order.blocks import BlockOrder
from shardline_io.order.pieces import Piece
from tests.support.evaluated_model import Flat, Rows, sealed_model
from tests.support.processes import free_port
from tests.support.rotation import rotating

F1 = {"type": "torchmetrics.classification:MulticlassF1Score", "num_classes": 3, "name": "f1"}


class Tested(Flat):
    """Logs a number by rows and a metric of torchmetrics."""

    def __init__(self, feature_shape: Any, num_classes: int) -> None:
        super().__init__(feature_shape, num_classes)
        self.f1 = MulticlassF1Score(num_classes)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        features, labels = batch
        logits = self(features)
        self.f1.update(logits, labels)
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        self.log("test_loss", losses.mean())
        self.log("test_f1", self.f1)
        return {"sample_losses": losses}

    def describe_sample(self, batch: Any) -> dict[str, Any]:
        return {"label": batch[1], "text": {"predicted": str(self(batch[0]).tolist())}}


class Waiting(Tested):
    """Waits for the other ranks at each step."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        torch.distributed.all_reduce(torch.ones(1))


class Gathering(Tested):
    """Waits for the other ranks by Lightning's own call."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.all_gather(torch.ones(1))


class Unequal(Tested):
    """Logs at the end what it has of its own blocks alone."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.first = float(batch[0].sum())

    def on_test_epoch_end(self) -> None:
        self.log("loss", self.first)


def _rank(given: dict[str, Any], rank: int, size: int, port: int, output: Path) -> None:
    torch.set_num_threads(1)
    world = World(
        rank=rank, local_rank=rank, world_size=size, local_world_size=size, master_addr="127.0.0.1",
        master_port=port, launcher="test",
    )  # fmt: skip
    try:
        result = evaluate(**given, world=world)
        found = encode(result) if result else {}
    except ConfigError as error:
        found = {"error": str(error)}
    output.with_suffix(f".{rank}").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def evaluated_on(given: dict[str, Any], size: int, folder: Path) -> list[dict[str, Any]]:
    """Return what each of some ranks found."""
    port = free_port()
    context, output = multiprocessing.get_context("spawn"), folder / f"on-{size}"
    processes = [
        context.Process(target=_rank, args=(given, rank, size, port, output))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [json.loads(output.with_suffix(f".{rank}").read_text()) for rank in range(size)]


@pytest.mark.slow
def test_two_and_three_ranks_find_what_one_does(tmp_path: Path) -> None:
    given, _ = sealed_model(
        tmp_path, Rows(num_shards=2, shape=(3,), dtype="float32"), 3, metrics=[F1]
    )
    torch.set_num_threads(1)
    alone = json.loads(json.dumps(encode(evaluate(**given))))
    f1 = alone["metrics"].pop("f1")
    for size in (2, 3):
        first, *others = evaluated_on(given, size, tmp_path)
        assert others == [{}] * (size - 1)
        assert first["metrics"].pop("f1") == pytest.approx(f1, rel=1e-6)
        assert first == alone, "the same bytes"


@pytest.mark.slow
@pytest.mark.parametrize("batch", [16, *rotating(60)])
def test_what_a_test_step_logs_is_combined_over_ranks(tmp_path: Path, batch: int) -> None:
    """Of two blocks the third rank has none."""
    source = Rows(num_shards=2, shape=(3,), dtype="float32")
    given, _ = sealed_model(tmp_path, source, 3, Tested, batch=batch)
    alone = json.loads(json.dumps(encode(evaluate(**given))))
    first, *others = evaluated_on(given, 3, tmp_path)
    assert others == [{}, {}]
    assert first["metrics"]["test_loss"] == alone["metrics"]["test_loss"], "the sum is exact"
    assert first["metrics"]["test_f1"] == pytest.approx(alone["metrics"]["test_f1"], rel=1e-6)
    assert first["num_samples"] == alone["num_samples"]
    assert first["samples"] == alone["samples"], "the same bytes"
    assert len(alone["samples"]["hardest"]) == len(alone["samples"]["typical"]) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Waiting, "test_step waits for other ranks"),
        (Gathering, "test_step waits for other ranks"),
        (Unequal, "on_test_epoch_end logs loss as .* on different ranks"),
    ],
)
def test_a_step_that_waits_for_other_ranks_is_a_sentence(
    tmp_path: Path, model: type[Flat], message: str
) -> None:
    given, _ = sealed_model(tmp_path, Rows(num_shards=1, shape=(3,), dtype="float32"), 0, model)
    for found in evaluated_on(given, 2, tmp_path):
        with pytest.raises(ConfigError, match=message):
            raise ConfigError(found["error"])


# --- in process ---------------------------------------------------------------------------------


class Threads(EvaluationRanks):
    """Ranks that are threads of this process."""

    shared = None

    def _collect(self, sent: torch.Tensor) -> list[torch.Tensor]:
        barrier, slots = Threads.shared
        slots[self.rank] = sent
        barrier.wait()
        found = list(slots) if self.rank == 0 else []
        barrier.wait()
        return found


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(1, 60), batch=st.integers(1, 20), wanted=st.integers(1, 5))
def test_columns_of_all_ranks_come_by_block(rows: int, batch: int, wanted: int) -> None:
    generator = np.random.default_rng(rows)
    values = generator.normal(size=rows)
    labels = generator.integers(0, 2**50, rows)
    order = BlockOrder(pieces=(Piece(0, 0, rows),), global_batch=batch, window_rows=rows)
    size = min(wanted, order.num_blocks)
    Threads.shared = (threading.Barrier(size), [None] * size)

    def run(rank: int) -> list[Any]:
        own = np.arange(rank, order.num_blocks, size)
        cuts = zip(*order.bounds(own), strict=True)
        columns = ({"label": labels[a:b], "loss": values[a:b]} for a, b in cuts)
        return list(Threads(rank=rank, size=size).in_order(columns, order))

    with ThreadPoolExecutor(size) as pool:
        first, *others = pool.map(run, range(size))
    assert others == [[]] * (size - 1)
    for name, expected in (("label", labels), ("loss", values)):
        whole = np.concatenate([columns[name] for columns in first])
        assert whole.dtype == expected.dtype
        assert whole.tobytes() == expected.tobytes()
