"""A longer training that continues a shorter one ends with the bits of one that began at step 0.

`SHARDLINE_CAMPAIGN_CHAINS=100 SHARDLINE_SEED=...` says how many chains of kills and extensions, and which.
"""

import os

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from shardline.checkpoints.continuing import states_to_continue, take_over
from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.manifest import Continued
from shardline.errors import DataError
from tests.support.campaigns import campaign_seed
from tests.support.longer_trainings import (
    EPOCHS,
    STEPS,
    bounds,
    continued,
    of_length,
    run_all,
    step_continued,
    without_ends,
    without_hooks_of_ends,
)
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings
from tests.unit.training.test_resume_chains import CASES, COUNTING, case

CHAINS = int(os.environ.get("SHARDLINE_CAMPAIGN_CHAINS", "3"))
SEED = campaign_seed()
# schedules over the length, early ends, and an intervention: none of these is continued
_OTHERS = (
    "Averaged",
    "one cycle of groups",
    "Stopping",
    "late stop",
    "StopsItself",
    "SkipsTheRest",
    "Wild",
)
LONGER = [one for one in CASES if one.name not in _OTHERS]
MODELS = "tests.support.longer_trainings"
READS = f"{MODELS}:ReadsLength"


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def lengths(of: Case) -> tuple[str, int, list[int]]:
    """Return the setting of the length, the whole length and shorter ones."""
    if STEPS in of.settings:
        whole = of.settings[STEPS]
        return STEPS, whole, list(range(2, whole))
    return EPOCHS, of.settings.get(EPOCHS, 4), [2, 3]  # some models validate in each second epoch


@settings(
    max_examples=CHAINS, deadline=None, database=None, print_blob=True,
    suppress_health_check=[*HealthCheck],
)  # fmt: skip
@seed(SEED)
@given(data=st.data())
def test_chains_of_extensions_and_kills_change_nothing(trainings, tmp_path_factory, data):
    note(f"SHARDLINE_SEED={SEED}")
    of = data.draw(st.sampled_from(LONGER), "case")
    if STEPS not in of.settings and (steps := data.draw(st.none() | st.integers(5, 15), "steps")):
        of = of_length(of_length(of, EPOCHS, -1), STEPS, steps)
    unbroken, places = trainings.unbroken(of)
    key, _, shorter = lengths(of)
    chosen = data.draw(st.sets(st.sampled_from(shorter), min_size=1, max_size=2), "shorter lengths")
    kill = st.builds(
        Kill, place=st.sampled_from(sorted(places)), step=st.integers(0, max(places.values())),
        torn=st.none() | st.floats(0, 1),
    )  # fmt: skip
    kills = st.lists(kill, max_size=2).map(lambda some: sorted(some, key=lambda one: one.step))
    cases = [
        (one, data.draw(kills, "kills"), data.draw(st.booleans(), "to the end"))
        for one in (*(of_length(of, key, length) for length in sorted(chosen)), of)
    ]
    outcome, chain = run_all(
        trainings,
        cases,
        tmp_path_factory.mktemp("chain"),
        every_steps=data.draw(st.integers(0, 5), "every_steps"),
        keep=data.draw(st.integers(1, 3), "keep"),
    )
    note(f"continued from step {step_continued(chain)}")
    assert without_hooks_of_ends(outcome).differences(without_hooks_of_ends(unbroken)) == []


# an epoch has four steps
@pytest.mark.parametrize(
    ("of", "key", "length", "step"),
    [
        (COUNTING, EPOCHS, 3, 12),
        (case("Counting", "every 3 steps", trainer__val_check_interval=3), EPOCHS, 3, 10),
        (
            case("Plateau", "10 steps", trainer__val_check_interval=2, trainer__max_steps=10),
            STEPS,
            9,
            8,
        ),
    ],
    ids=[
        "an epoch's end",
        "behind the last validation of both",
        "before the cut epoch",
    ],
)
def test_a_training_continues_from_the_last_state_that_both_have(
    trainings, tmp_path, of, key, length, step
):
    unbroken, _ = trainings.unbroken(of)
    cases = [(of_length(of, key, length), [], True), (of, [], True)]
    outcome, chain = run_all(trainings, cases, tmp_path, every_steps=2, keep=3)
    assert without_hooks_of_ends(outcome).differences(without_hooks_of_ends(unbroken)) == []
    assert step_continued(chain) == step


@pytest.mark.parametrize(
    ("of", "length"),
    [
        (case("Averaged", "15 steps", trainer__max_steps=15), 11),
        (case("Plateau", "to 16", trainer__max_steps=16, trainer__val_check_interval=3), 7),
        (case("Counting", "in parts", trainer__max_steps=9, trainer__accumulate=2), 7),
    ],
    ids=["both ends cut the epoch", "the shorter end cuts it", "accumulation"],
)
def test_a_training_that_ends_within_an_epoch_leaves_the_state_before_its_end(
    trainings, tmp_path, of, length
):
    unbroken, _ = trainings.unbroken(of)
    cases = [(of_length(of, STEPS, length), [], True), (of, [], True)]
    outcome, chain = run_all(trainings, cases, tmp_path, every_steps=0, keep=3)
    assert without_hooks_of_ends(outcome).differences(without_hooks_of_ends(unbroken)) == []
    assert step_continued(chain) == length - 1


END = "on_train_end changes the state at the end of a training"


@pytest.mark.parametrize(
    ("of", "reasons"),
    [
        (COUNTING, {4: [], 14: [], 16: [f"Recorder.{END}", f"Counting.{END}"]}),
        (Case(name="reads", model=READS), {2: [f"{READS}.loss reads trainer.max_epochs"]}),
        (
            Case(name="estimates", model=f"{MODELS}:Estimates"),
            {2: [], 4: [f"{MODELS}:Estimates.training_step reads trainer.estimated_stepping_batches"]},
        ),
    ],
    ids=["ends", "reads", "reads late"],
)  # fmt: skip
def test_a_state_says_what_depends_on_the_length(trainings, tmp_path, of, reasons):
    found = bounds(trainings, of, tmp_path)
    changes = ", which a longer training changes"
    plain = {step: [one.removesuffix(changes) for one in found[step].reasons] for step in reasons}
    assert plain == reasons


def test_averages_over_a_share_of_the_training_are_not_continued(trainings, tmp_path):
    found = bounds(trainings, Case(name="averages", model=f"{MODELS}:Averages"), tmp_path)
    assert all("StochasticWeightAveraging" in one.reasons[0] for one in found.values())


def test_what_a_killed_attempt_has_read_counts_after_it(trainings, tmp_path):
    chain = Chain(
        trainings, Case(name="estimates", model=f"{MODELS}:Estimates"), tmp_path, every_steps=2
    )
    chain.attempt(Kill(place="model.training_step", step=5))
    chain.attempt(None)
    newest = list_saved(chain.root / "work/checkpoints")[0]
    assert "reads trainer.estimated_stepping_batches" in newest.bound.reasons[0]


def test_ranks_begin_at_step_0_if_the_data_shows_other_learning_rates(trainings, tmp_path, capsys):
    """As where the job, which does not read the data, took another number of steps for an epoch's."""
    of = case("Counting", "decays", schedule__name="linear")
    shorter = Chain(trainings, of_length(of, EPOCHS, 3), tmp_path / "a", every_steps=2, keep=3)
    shorter.attempt(None)
    found = states_to_continue(shorter.root / "work/checkpoints", world_size=1)
    saved = next(saved for saved, why in found if not why)
    longer = Chain(trainings, of, tmp_path / "b")
    settings = {"trainer": {"max_epochs": 3}, "schedule": {"name": "linear", "warmup_steps": 0}}
    record = Continued(
        run="0" * 12, identity="0" * 64, step=saved.step, seconds=1.0, ranks=1, settings=settings
    )
    take_over(
        saved, longer.root / "work", identity=trainings.spec_of(of).identity, continued=record
    )
    outcome = longer.run([])
    assert (
        "is not continued from step 10, since the learning rates differ" in capsys.readouterr().out
    )
    assert outcome.differences(trainings.unbroken(of)[0]) == []
    assert step_continued(longer) == 0


def test_a_damaged_state_is_named_and_nothing_is_taken(trainings, tmp_path):
    with without_ends():
        shorter = Chain(trainings, of_length(COUNTING, EPOCHS, 2), tmp_path / "a")
        shorter.attempt(None)
    newest = list_saved(shorter.root / "work/checkpoints")[0]
    state = newest.path / "state.pt"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"state\.pt has BLAKE3 digest"):
        continued(trainings, shorter, COUNTING, tmp_path / "b")
    assert not list((tmp_path / "b").rglob("step-*"))


def test_a_kill_while_a_state_is_taken_over_leaves_none(trainings, tmp_path, monkeypatch):
    with without_ends():
        shorter = Chain(trainings, of_length(COUNTING, EPOCHS, 2), tmp_path / "a")
        shorter.attempt(None)
    saved, _ = next(states_to_continue(shorter.root / "work/checkpoints", world_size=1))
    work = tmp_path / "b/work"
    of = list_saved(shorter.root / "work/checkpoints")[0].continued
    monkeypatch.setattr("shardline.checkpoints.continuing._link", _killed)
    with pytest.raises(KeyboardInterrupt):
        take_over(saved, work, identity="b" * 64, continued=of)
    assert list_saved(work / "checkpoints") == []


def _killed(*_):
    raise KeyboardInterrupt
