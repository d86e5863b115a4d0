"""`shardline find`: learning rates and global batches that a few steps try."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shardline.cli.display.curves import curve
from shardline.core.errors import ConfigError, ShardlineError
from shardline.pipeline.finding import largest_batch
from shardline.records.found import MeasuredBatch
from shardline.supervision.supervisor import RankError
from shardline.training.find import STEPS, find, rate_of, smoothed, steepest
from shardline.training.rank_task import Find
from tests.support.simulated_kills import ALONE, Case, Process, Trainings, build_trainings, process


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def found(trainings, folder, what, model="killed_models:RecordedModel", **changed):
    case = Case(name=model, model=f"tests.support.{model}", settings=changed)
    output = folder / "found.json"
    (folder / "work").mkdir(parents=True)
    given = trainings.rank_task(folder, case, every_steps=2, keep=2)
    with process(Process(folder, None, 0)):
        find(
            replace(given, action=Find(what=what, output=output)),
            Find(what=what, output=output),
            ALONE,
        )
    assert not [*folder.rglob("state.pt")]
    return json.loads(output.read_text())


@pytest.mark.parametrize(
    ("model", "changed", "key"),
    [
        ("killed_models:RecordedModel", {"trainer.accumulate": 2, "schedule.name": "cosine"}, "optim.lr"),
        ("killed_models:Plateau", {"callbacks": ["EarlyStopping"]}, ""),
        ("called_back_models:Rated", {}, "model_args.learning_rate"),
    ],
)  # fmt: skip
def test_a_range_test_trains_with_growing_rates_and_suggests_one(
    trainings, tmp_path, model, changed, key
):
    result = found(trainings, tmp_path, "lr", model, **changed)
    assert result["key"] == key
    assert len(result["rates"]) == len(result["losses"]) > 60
    assert result["rates"][0] == pytest.approx(1e-7)
    assert 1e-5 < result["suggested"] < 10


def test_a_range_test_needs_a_loss(trainings, tmp_path):
    with pytest.raises(ConfigError, match="training_step returns no loss, which the range test"):
        found(trainings, tmp_path, "lr", "killed_models:Duel")


def test_the_memory_of_a_batch_is_measured(trainings, tmp_path):
    result = found(trainings, tmp_path, "batch", global_batch=8)
    assert result["batch"] == 8
    assert 1 << 20 < result["peak_bytes"] < result["limit_bytes"]
    assert result["rows"] == 16, "two batches of the train rows"


@pytest.mark.parametrize(("best", "width"), [(1e-3, 40), (1e-1, 100), (1e-5, 200)])
def test_the_steepest_rate_of_a_curve_is_found_and_shown(best, width):
    rates = [rate_of(step) for step in range(STEPS)]
    losses = [1 / (1 + (rate / best)) for rate in rates]
    assert 0.5 < steepest(rates, losses) / best < 2
    assert steepest(rates, [2.0 + rate for rate in rates]) is None
    assert steepest(rates[:9], losses[:9]) is None
    lines = curve(rates, losses, best, width)
    assert max(map(len, lines)) <= max(20, width)
    assert lines[0].split()[0] == f"{losses[0]:.3g}"
    mark = lines[-1].index("^") - 10
    assert lines[-2].strip().startswith("1e-07")
    nearest = rates.index(min(rates, key=lambda rate: abs(rate - best)))
    assert abs(mark / (min(width, 100) - 10) - nearest / STEPS) < 0.1


def test_smoothing_has_no_bias_at_the_start():
    assert smoothed([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])


@settings(max_examples=200, deadline=None)
@given(
    fixed=st.integers(10, 10_000), slope=st.integers(0, 50), unit=st.sampled_from([1, 2, 6, 8]),
    start=st.integers(1, 5000), rows=st.integers(50, 20_000), is_safe=st.booleans(),
)  # fmt: skip
def test_the_largest_batch_is_found_in_a_few_tries(fixed, slope, unit, start, rows, is_safe):
    limit, start = 20_000, min(start, rows)

    def measure(batch: int) -> MeasuredBatch:
        assert batch % unit == 0
        assert batch <= max(rows, unit)
        peak = fixed + slope * batch
        if peak > limit:
            raise RankError("rank 0: CUDA out of memory")
        return MeasuredBatch(batch=batch, peak_bytes=peak, limit_bytes=limit, rows=rows // batch * batch)  # fmt: skip

    fits = [b for b in range(unit, rows + 1, unit) if fixed + slope * b <= limit]
    if not fits:
        with pytest.raises(ShardlineError, match="does not fit into the memory"):
            largest_batch(measure, unit, start, is_safe=is_safe)
        return
    result = largest_batch(measure, unit, start, is_safe=is_safe)
    assert result.largest in fits
    assert len(result.tried) <= 12
    known = rows // result.tried[0].batch * result.tried[0].batch  # batches leave out the last rows
    could = min(0.95 * (limit - fixed) / slope, known) if slope else known
    assert result.largest * 1.25 + unit >= could * 0.85
    if not is_safe:
        failed = [one.batch for one in result.tried if one.reason]
        assert not [b for b in failed if b > max(unit, start)], "no batch that may not fit is tried"


def test_another_failure_is_no_lack_of_memory():
    def fail(batch: int) -> MeasuredBatch:
        raise RankError("rank 0: model=x is wrong")

    with pytest.raises(RankError, match="model=x is wrong"):
        largest_batch(fail, 2, 8, is_safe=True)
