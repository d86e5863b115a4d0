"""Milestones: states that stay, as those that a training saves anyway, whatever kills it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from shardline.checkpoints.continuing import take_over
from shardline.checkpoints.folder import find_damage, list_saved
from shardline.checkpoints.kept import prune_sealed, superfluous
from shardline.checkpoints.manifest import Continued
from tests.support.rotation import rotating
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings, flat

EPOCH, EPOCHS = 4, 4  # steps of an epoch, and epochs


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def case(milestones: Any = (), model: str = "Counting", **more: Any) -> Case:
    listed = [*milestones] if isinstance(milestones, tuple) else milestones
    given = {"checkpoint.milestones": listed, **{k.replace("__", "."): v for k, v in more.items()}}
    return Case(
        name=f"{model} {given}", model=f"tests.support.killed_models:{model}", settings=given
    )


def saved_in(chain: Chain) -> dict[int, Path]:
    """Return the milestones of a training by step, all of them intact."""
    folder = chain.root / "work/checkpoints"
    found = list_saved(folder)
    assert find_damage(folder, found[0].identity) == (len(found), [])
    return {one.step: one.path for one in found if one.milestone}


def state_at(path: Path) -> dict[str, Any]:
    state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    state["callbacks"] = {k: v for k, v in state["callbacks"].items() if k != "Stopwatch"}
    return flat(state)


def weights_of(model: bytes) -> dict[str, bytes]:
    """Return the weights of a sealed model, without the identity beside them."""
    return {name: one.numpy().tobytes() for name, one in load(model).items()}


@pytest.fixture(scope="module")
def every(
    trainings: Trainings, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    """The states of a training that saves each step and keeps all."""
    chain = Chain(trainings, case(), tmp_path_factory.mktemp("every"), every_steps=1, keep=99)
    chain.attempt(None)
    return {one.step: state_at(one.path) for one in list_saved(chain.root / "work/checkpoints")}


@pytest.mark.parametrize(
    ("milestones", "steps"),
    [((1, 3), {4, 12}), ({"steps": [4, 6]}, {4, 6}), ((4,), {16}), ((9,), set()), ({"steps": [99]}, set())],
)  # fmt: skip
def test_milestones_are_the_states_that_a_training_saves(
    trainings, tmp_path, every, milestones, steps
) -> None:
    chain = Chain(trainings, case(milestones), tmp_path, every_steps=5, keep=1)
    outcome = chain.run([])
    found = saved_in(chain)
    assert found.keys() == steps
    for step, path in found.items():
        assert state_at(path) == every[step]
    plain = Chain(trainings, case(), tmp_path / "plain", every_steps=5, keep=1).run([])
    assert outcome.differences(replace(plain, model=outcome.model)) == []
    assert weights_of(outcome.model) == weights_of(plain.model)


@settings(max_examples=3, deadline=None, database=None, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_milestones_are_whole_whatever_kills_the_training(
    trainings, every, tmp_path_factory, data
) -> None:
    steps = data.draw(st.sets(st.integers(1, 16), min_size=1, max_size=4), "milestones")
    own = case({"steps": sorted(steps)})
    unbroken, places = trainings.unbroken(own)
    # every second one while a state is being written
    of_files = [
        place for place in places if place.partition(" ")[0] in ("open", "rename", "make", "remove")
    ]
    place = st.sampled_from(sorted(places)) | st.sampled_from(sorted(of_files))
    kill = st.builds(Kill, place=place, step=st.integers(0, 16), torn=st.none() | st.floats(0, 1))
    kills = sorted(
        data.draw(st.lists(kill, min_size=1, max_size=6), "kills"), key=lambda one: one.step
    )
    chain = Chain(
        trainings, own, tmp_path_factory.mktemp("killed"), every_steps=data.draw(st.integers(0, 5)),
        keep=1, lateness=data.draw(st.integers(0, 40)),
    )  # fmt: skip
    assert chain.run(kills).differences(unbroken) == []
    found = saved_in(chain)
    assert found.keys() == steps
    for step, path in found.items():
        assert state_at(path) == every[step]


def test_a_state_from_before_its_milestone_was_named_becomes_one(trainings, tmp_path) -> None:
    kill = Kill(place="model.training_step", step=4)
    chain = Chain(trainings, case(), tmp_path, every_steps=2, keep=1)
    chain.attempt(kill)
    (saved,) = list_saved(chain.root / "work/checkpoints")
    assert (saved.step, saved.milestone) == (4, False)
    chain._case = case((1,))
    _rename(saved.path, trainings.spec_of(chain._case).identity)
    chain.attempt(None)
    assert saved_in(chain).keys() == {4}


def _rename(folder: Path, identity: str) -> None:
    """Let a state be of another case, which is another run in these tests alone."""
    from shardline.core.files import write_json
    from shardline.core.seals import seal

    manifest = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", seal({**manifest, "identity": identity}))


@pytest.mark.parametrize(
    # the model acts at the end of its training, so a longer one would continue from the state before
    ("keep", "steps"),
    [("none", {4}), ("last", {4, 14, 16}), ("all", {4, 14, 16})],
)
def test_milestones_stay_after_sealing(trainings, tmp_path, keep, steps) -> None:
    chain = Chain(trainings, case((1,)), tmp_path, every_steps=2, keep=2)
    chain.run([])
    folder = chain.root / "work/checkpoints"
    prune_sealed(folder, keep)
    saved = list_saved(folder)
    assert {one.step for one in saved} == steps
    assert find_damage(folder, saved[0].identity)[0] == len(saved)
    assert superfluous(folder, keep) == []
    shutil.rmtree(saved[-1].path)
    if keep == "none":
        assert superfluous(folder, keep) == [folder]


# --- shorter trainings ----------------------------------------------------------------------------

AVERAGING = {"type": "StochasticWeightAveraging", "swa_lrs": 0.01, "swa_epoch_start": 1}
SHORTER = [
    (1, case(model="Averaged", trainer__accumulate=2)),
    (3, case(optim__name="adamw", schedule__name="cosine", schedule__epochs=4)),
    *rotating(
        (2, case()),
        (2, case(model="OwnOptimizer")),
        (3, case(model="Duel")),
        (1, case(model="Hidden")),
        (3, case(model="Plateau")),
        (2, case(schedule__name="wsd", schedule__decay_steps=4, schedule__epochs=4)),
        (3, case(callbacks=[AVERAGING])),
    ),
]


STEPS = {"schedule__args": {"step_size": 1}}
WITHIN = [
    (6, case(model="Averaged", schedule__name="cosine", schedule__epochs=4, optim__name="adamw")),
    *rotating(
        (5, case(trainer__val_check_interval=2)),
        (6, case(trainer__val_check_interval=2)),
        (10, case(model="Plateau", trainer__val_check_interval=2)),
        (3, case(model="Averaged", trainer__validate_every_epochs=2)),
        (1, case(model="OwnOptimizer", trainer__accumulate=2)),
        (7, case(schedule__name="torch.optim.lr_scheduler:StepLR", schedule__interval="epoch", **STEPS)),
        (6, case(model="Hidden")),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("step", "longer"), WITHIN, ids=range(len(WITHIN)))
def test_a_shorter_training_ends_with_a_milestone_within_an_epoch(
    trainings, tmp_path, step, longer
) -> None:
    def of(**given: Any) -> Case:
        dotted = {key.replace("__", "."): value for key, value in given.items()}
        return replace(
            longer, name=f"{longer.name} {given}", settings={**longer.settings, **dotted}
        )

    shorter = of(trainer__max_epochs=-1, trainer__max_steps=step)
    unbroken, _ = trainings.unbroken(shorter)
    whole = of(checkpoint__milestones={"steps": [step]})
    longer_chain = Chain(trainings, whole, tmp_path / "longer", every_steps=0, keep=1)
    longer_chain.run([])
    saved = next(
        one for one in list_saved(longer_chain.root / "work/checkpoints") if one.step == step
    )
    assert saved.bound.is_within
    assert saved.bound.of_cut == []
    chain = Chain(trainings, shorter, tmp_path)
    chain._join = lambda: None  # hooks before the state were those of the longer training
    chain.root.mkdir()
    record = Continued(run="0" * 12, identity=saved.identity, step=step, seconds=1.0, ranks=1)
    identity = trainings.spec_of(shorter).identity
    take_over(saved, chain.root / "work", identity=identity, continued=record)
    trained = chain.attempt(None)
    assert trained.resumed_step == trained.steps == step
    assert chain._outcome(trained).differences(replace(unbroken, events=[])) == []
    steps = [event[0] for event in chain.last.events]
    assert "model.on_train_epoch_end" in steps
    assert "model.on_train_batch_start" not in steps


@pytest.mark.parametrize(("epochs", "longer"), SHORTER, ids=range(len(SHORTER)))
def test_a_shorter_training_ends_with_a_milestone_of_a_longer_one(
    trainings, tmp_path, epochs, longer
) -> None:
    def of(length: int, milestones: Any) -> Case:
        given = {"trainer.max_epochs": length, "checkpoint.milestones": milestones}
        return replace(longer, name=f"{longer.name} {given}", settings={**longer.settings, **given})

    shorter = of(epochs, [])
    unbroken, _ = trainings.unbroken(shorter)
    longer_chain = Chain(trainings, of(4, [epochs]), tmp_path / "longer", every_steps=3, keep=1)
    longer_chain.run([])
    ((step, milestone),) = saved_in(longer_chain).items()
    (saved,) = (one for one in list_saved(milestone.parent) if one.path == milestone)
    record = Continued(run="0" * 12, identity=saved.identity, step=step, seconds=1.0, ranks=1)
    for attempt in range(2):  # the end has its own state, and sealing it again changes nothing
        chain = Chain(trainings, shorter, tmp_path)
        chain._join = lambda: None  # hooks before the state were those of the longer training
        if not attempt:
            chain.root.mkdir()
            identity = trainings.spec_of(shorter).identity
            take_over(saved, chain.root / "work", identity=identity, continued=record)
        trained = chain.attempt(None)
        assert trained.resumed_step == trained.steps == step
        found = chain._outcome(trained).differences(replace(unbroken, events=[]))
        # the place of its schedule, of which nothing is left to train
        given = bool(longer.settings.get("callbacks"))
        assert [one for one in found if "last_epoch" not in one or not given] == []
    assert list_saved(chain.root / "work/checkpoints")[0].continued == record


def test_a_milestone_that_was_taken_over_ends_a_shorter_training_with_its_bits(
    trainings, tmp_path
) -> None:
    def of(length: int) -> Case:
        return case((1,), model="Averaged", trainer__max_epochs=length)

    shortest = case(model="Averaged", trainer__max_epochs=1)
    unbroken, _ = trainings.unbroken(shortest)
    first = Chain(trainings, of(2), tmp_path / "first", every_steps=3, keep=9)
    first.run([])
    states = {one.step: one for one in list_saved(first.root / "work/checkpoints")}
    longer = Chain(trainings, of(3), tmp_path / "longer", every_steps=3, keep=1)
    longer._join = lambda: None  # hooks before the state were those of the first training
    longer.root.mkdir(parents=True)
    work = longer.root / "work"
    records = [
        Continued(run="0" * 12, identity=states[step].identity, step=step, seconds=1.0, ranks=1)
        for step in (4, 6)
    ]
    identity = trainings.spec_of(of(3)).identity
    milestones = [(states[4], records[0])]
    take_over(states[6], work, identity=identity, continued=records[1], milestones=milestones)
    longer.run([])
    shutil.rmtree(tmp_path / "first")
    ((step, path),) = saved_in(longer).items()
    (saved,) = (one for one in list_saved(path.parent) if one.path == path)
    assert (step, saved.continued) == (4, records[0])
    chain = Chain(trainings, shortest, tmp_path)
    chain._join = lambda: None
    chain.root.mkdir()
    identity = trainings.spec_of(shortest).identity
    take_over(saved, chain.root / "work", identity=identity, continued=records[0])
    trained = chain.attempt(None)
    assert trained.resumed_step == trained.steps == step
    assert chain._outcome(trained).differences(replace(unbroken, events=[])) == []
