"""Arguments of Lightning's Trainer as settings: what they do, and that a training with them resumes with its bits."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, note, seed, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.torch import load_file
from torchmetrics import MeanMetric

from shardline.checkpoints.folder import list_saved
from shardline.config.checked_trainer import check_trainer
from shardline.errors import ConfigError, Stopped
from shardline.training.evaluate import evaluate
from shardline.training.observed_files import profiled
from shardline_io import heartbeat_memory
from tests.support.campaigns import campaign_seed
from tests.support.killed_models import Counting
from tests.support.simulated_kills import Case, Chain, Kill, Outcome, Trainings, build_trainings

SEED = campaign_seed()
MODELS = "tests.support.killed_models"


def case(model: str = f"{MODELS}:Counting", name: str = "", **changes: object) -> Case:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return Case(name=name or f"{model} {dotted}", model=model, settings=dotted)


def at(*steps: int) -> list[Kill]:
    return [Kill(place="model.training_step", step=step) for step in steps]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


# --- lengths and validations: an epoch has four steps, and a training four epochs


def validations(outcome: Outcome) -> list[int]:
    """Return the steps after which a training validated."""
    return [event[1] for event in outcome.events if event[0] == "model.on_validation_end"]


LENGTHS = {
    "interval": (case(trainer__val_check_interval=3), [3, 7, 11, 15, 16], 16),
    "share": (case(trainer__val_check_interval=0.5), [2, 4, 6, 8, 10, 12, 14, 16], 16),
    "some epochs": (
        case(trainer__val_check_interval=2, trainer__validate_every_epochs=2), [6, 8, 14, 16], 16,
    ),
    "parts": (
        case(f"{MODELS}:Plateau", trainer__val_check_interval=2, trainer__max_steps=10, trainer__accumulate=2),
        [2, 4, 6, 8, 10], 10,
    ),
    "own steps": (case(f"{MODELS}:Duel", trainer__val_check_interval=1, trainer__max_epochs=2), [*range(1, 9)], 8),
    "limited": (
        case(
            f"{MODELS}:OwnOptimizer", trainer__limit_train_batches=3, trainer__limit_val_batches=1,
            trainer__max_steps=7,
        ),
        [3, 6, 7], 7,
    ),
    "overfit": (
        case(f"{MODELS}:Averaged", trainer__overfit_batches=2, trainer__max_epochs=-1, trainer__max_steps=9),
        [2, 4, 6, 8, 9], 9,
    ),
    "late stop": (
        case(
            f"{MODELS}:Stopping", early_stopping__monitor="score", early_stopping__patience=1,
            checkpoint__monitor="score", trainer__max_epochs=8, trainer__min_steps=19, trainer__min_epochs=2,
        ),
        [4, 8, 12, 16, 19], 19,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_a_training_has_its_length_and_validations_and_resumes_with_its_bits(trainings, name):
    of, expected, steps = LENGTHS[name]
    unbroken, _ = trainings.unbroken(of)
    assert len(unbroken.ledger) == steps or "Duel" in of.model
    if "Duel" in of.model:  # counts the steps of two optimisers
        assert len(validations(unbroken)) == len(expected)
    else:
        assert validations(unbroken) == expected
    behind = [Kill(place="model.on_validation_end", step=step) for step in (3, 7)]
    kills = sorted([*at(1, 4, 5), *behind], key=lambda kill: kill.step)
    assert trainings.killed(of, kills, every_steps=1).differences(unbroken) == []


def test_an_overfitted_training_repeats_its_first_steps(trainings):
    ledger = trainings.unbroken(LENGTHS["overfit"][0])[0].ledger
    rows = [[row for _, _, row in ledger[step]] for step in sorted(ledger)]
    assert rows == [*rows[:2], *rows[:2], *rows[:2], *rows[:2], rows[0]]
    assert rows[0] != rows[1]


def test_a_state_is_saved_behind_a_validation_and_not_before_it(trainings, tmp_path):
    of = LENGTHS["interval"][0]
    for name, place, saved in (
        ("a", "model.on_validation_end", 2),
        ("b", "model.training_step", 3),
    ):
        chain = Chain(trainings, of, tmp_path / name, every_steps=1)
        assert chain.attempt(Kill(place=place, step=3)) is None
        assert list_saved(chain.root / "work/checkpoints")[0].step == saved


class Asked(Counting):
    """Is asked to stop in its sixth step, after which it validates."""

    def training_step(self, batch, batch_idx):
        if self.global_step == 5:
            heartbeat_memory.mine().request_stop("preempted")
        return super().training_step(batch, batch_idx)


def test_a_training_that_is_asked_to_stop_stops_behind_the_validation(
    trainings, tmp_path, monkeypatch
):
    monkeypatch.setattr(heartbeat_memory, "_mine", heartbeat_memory.HeartbeatMemory())
    chain = Chain(trainings, case(f"{__name__}:Asked", trainer__val_check_interval=1), tmp_path)
    with pytest.raises(Stopped):
        chain.attempt(None)
    assert list_saved(chain.root / "work/checkpoints")[0].step == 6


TOO_LONG = {
    "is not reached in trainer.max_epochs=4 epochs, which have 16 steps; set trainer.max_epochs=-1": {
        "trainer__max_steps": 17
    },
    "is more than the 4 steps of an epoch; use at most 4": {"trainer__val_check_interval": 5},
    "trainer.gradient_clip=1 has no effect on Duel, which takes its optimiser steps itself": {
        "model": f"{MODELS}:Duel", "trainer__gradient_clip": 1.0,
    },
    "trainer.accumulate=2 has no effect on Duel": {"model": f"{MODELS}:Duel", "trainer__accumulate": 2},
}  # fmt: skip


@pytest.mark.parametrize("message", TOO_LONG)
def test_what_cannot_be_trained_is_told_before_the_first_step(trainings, tmp_path, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Chain(trainings, case(**TOO_LONG[message]), tmp_path).attempt(None)


class Planned(Counting):
    """Looks at the number of its steps."""

    seen: ClassVar[list[object]] = []

    def configure_optimizers(self):
        Planned.seen.append(self.trainer.estimated_stepping_batches)
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_model_sees_the_number_of_steps(trainings, tmp_path):
    chain = Chain(trainings, case(f"{__name__}:Planned", trainer__max_steps=7), tmp_path)
    chain.attempt(Kill(place="model.training_step", step=5))
    chain.attempt(None)
    assert Planned.seen == [7, 7]


# --- the other arguments

VALUES = {
    "trainer.val_check_interval": st.integers(1, 4) | st.sampled_from([0.25, 0.5, 1.0]),
    "trainer.limit_train_batches": st.integers(1, 5) | st.sampled_from([0.3, 1.0]),
    "trainer.limit_val_batches": st.integers(1, 3) | st.sampled_from([0.3, 1.0]),
    "trainer.max_steps": st.integers(5, 9) | st.just(-1),
    "trainer.min_steps": st.integers(0, 5),
    "trainer.min_epochs": st.integers(0, 2),
    "trainer.gradient_clip": st.sampled_from([0.0, 0.1]),
    "trainer.gradient_clip_algorithm": st.sampled_from(["norm", "value"]),
    "trainer.accumulate": st.sampled_from([1, 2]),
    "trainer.inference_mode": st.booleans(),
    "trainer.benchmark": st.booleans(),
    "ddp.static_graph": st.booleans(),
    "deterministic": st.booleans(),
    "precision": st.sampled_from(["32-true", "64-true", "bf16-true", "16-true", "bf16-mixed"]),
}


@settings(
    max_examples=3, deadline=None, database=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate],
)  # fmt: skip
@seed(SEED)
@given(values=st.fixed_dictionaries(VALUES), step=st.integers(1, 8))
def test_a_training_with_any_values_resumes_with_its_bits(trainings, values, step):
    note(f"SHARDLINE_SEED={SEED}")
    # sgd: adam's epsilon is 0 in 16 bits
    of = Case(
        name=str(values), model=f"{MODELS}:Counting", settings={**values, "optim.name": "sgd"}
    )
    try:
        check_trainer(trainings.spec_of(of).settings, "")
    except ConfigError:
        assume(False)
    limit, every = values["trainer.limit_train_batches"], values["trainer.val_check_interval"]
    epoch = min(4, limit) if isinstance(limit, int) else max(1, int(4 * limit))
    assume(not isinstance(every, int) or every <= epoch)
    assume(values["trainer.max_steps"] <= 4 * epoch)
    unbroken, _ = trainings.unbroken(of)
    assert trainings.killed(of, at(step), every_steps=1).differences(unbroken) == []


class Compiled(Counting):
    """Compiles a part when a training begins, as templates do."""

    def setup(self, stage):
        super().setup(stage)
        if stage == "fit":
            self.head = torch.compile(self.head, backend="eager")


@pytest.mark.parametrize(
    "of",
    [case(f"{__name__}:Compiled"), case(trainer__compile={"backend": "eager"})],
    ids=["by the model", "by the setting"],
)
def test_a_compiled_model_is_sealed_under_plain_names_with_the_weights_of_a_plain_one(
    trainings, tmp_path, of
):
    plain, _ = trainings.unbroken(case())
    chain = Chain(trainings, of, tmp_path, every_steps=2)
    chain.run(at(6))
    found = load_file(chain.root / "results/model.safetensors")
    assert not [name for name in found if "_orig_mod" in name]
    (tmp_path / "plain.safetensors").write_bytes(plain.model)
    for name, value in load_file(tmp_path / "plain.safetensors").items():
        torch.testing.assert_close(found[name], value)


class Typed(Counting):
    """Notes the types of what it computes with."""

    seen: ClassVar[list[torch.dtype]] = []

    def forward(self, features):
        Typed.seen += [features.dtype, self.head.weight.dtype]
        return super().forward(features)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-true", torch.bfloat16), ("16-true", torch.float16)]
)
def test_a_model_of_16_bits_is_trained_and_evaluated_in_them(trainings, tmp_path, precision, dtype):
    of = case(f"{__name__}:Typed", precision=precision, optim__name="sgd")
    chain = Chain(trainings, of, tmp_path)
    Typed.seen = []
    chain.attempt(None)
    sealed = chain.root / "results/model.safetensors"
    assert {value.dtype for name, value in load_file(sealed).items() if "num_" not in name} == {
        dtype
    }
    found = evaluate(trainings.spec_of(of), model_file=sealed, datasets=trainings.places(of))
    assert set(Typed.seen) == {dtype}
    assert 0 < found.metrics["loss"] < 5


class Summed(Counting):
    """Sums more ones than a float of 8 bits of mantissa can count."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.mean = MeanMetric()

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        for value in [1.0] * 300 + [0.0] * 300:
            self.mean.update(value)
        self.log("mean", self.mean)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true"])
def test_metrics_are_not_summed_in_16_bits(trainings, tmp_path, precision):
    of = case(f"{__name__}:Summed", precision=precision, optim__name="sgd")
    unbroken = Chain(trainings, of, tmp_path).run([])
    assert [line["mean"] for line in unbroken.records if "mean" in line] == [0.5] * 4
    assert trainings.killed(of, at(6)).differences(unbroken) == []


def test_an_evaluation_reads_the_first_rows_it_is_limited_to(trainings, tmp_path):
    of = case(evaluation__batch=2)
    chain = Chain(trainings, of, tmp_path)
    chain.attempt(None)
    sealed = chain.root / "results/model.safetensors"
    rows = [
        evaluate(
            trainings.spec_of(case(evaluation__batch=2, evaluation__limit_test_batches=limit)),
            model_file=sealed, datasets=trainings.places(of),
        ).num_samples
        for limit in (1.0, 1, 0.5)
    ]  # fmt: skip
    assert rows == [rows[0], 2, rows[0] // 2]


def shown(folder: Path) -> Iterator[str]:
    yield from (path.read_text() for path in sorted(folder.iterdir()))


def test_profile_and_summary_are_shown_and_change_nothing(trainings, tmp_path, capsys, monkeypatch):
    plain, _ = trainings.unbroken(case())
    given = trainings.rank_task

    def observed(*args, **options):
        task = given(*args, **options)
        more = {"profiler": "simple", "model_summary": True, "detect_anomaly": True}
        return replace(task, runtime=replace(task.runtime, **more))

    monkeypatch.setattr(trainings, "rank_task", observed)
    chain = Chain(trainings, case(), tmp_path)
    assert chain.run([]).differences(plain) == []
    assert "run_training_batch" in "".join(shown(chain.root / "work/profiler"))
    assert re.search(r"body *\| Sequential", capsys.readouterr().out)
    assert profiled(chain.root / "work") == {
        "profiler": {"folder": "work/work/profiler in the store"}
    }
    monkeypatch.chdir(chain.root)
    assert profiled(chain.root / "work") == {"profiler": {"folder": "work/profiler"}}
    assert profiled(tmp_path) == {}
