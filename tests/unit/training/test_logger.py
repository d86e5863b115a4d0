"""What a model gives to `self.log` and `self.logger`: any names, recorded once, whatever kills the training."""

from collections.abc import Iterator

import pytest

from tests.support.simulated_kills import Case, Kill, Trainings, build_trainings

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
