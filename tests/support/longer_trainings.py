"""Trainings of `simulated_kills` that continue shorter ones, and models that a longer training may not continue."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pytorch_lightning.callbacks import StochasticWeightAveraging

from shardline.checkpoints.continuing import states_to_continue, take_over, why_cut
from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.manifest import Bound, Continued
from tests.support.killed_models import Counting
from tests.support.simulated_kills import Case, Chain, Kill, Outcome, Trainings

EPOCHS, STEPS = "trainer.max_epochs", "trainer.max_steps"


def of_length(case: Case, key: str, length: int) -> Case:
    """Return a case that trains for another length."""
    settings = {**case.settings, key: length}
    return replace(case, name=f"{case.name}, {length} {key}", settings=settings)


@contextmanager
def without_ends() -> Iterator[None]:
    """Let the hook of the recorded models count for nothing: it changes nothing at the end of a training."""
    with mock.patch("shardline.training.length._ends", return_value=[]):
        yield


def continued(
    trainings: Trainings, shorter: Chain, case: Case, folder: Path, **options: Any
) -> Chain:
    """Return the chain of a longer training, with the newest state of a shorter one that it may continue."""
    longer = Chain(trainings, case, folder, **options)
    longer.root.mkdir(parents=True)
    found = states_to_continue(shorter.root / "work/checkpoints", world_size=1)
    last = case.settings.get(STEPS, -1)
    if saved := next((one for one, why in found if not (why or why_cut(one, last))), None):
        of = Continued(run="0" * 12, identity=saved.identity, step=saved.step, seconds=1.0, ranks=1)
        identity = trainings.spec_of(case).identity
        take_over(saved, longer.root / "work", identity=identity, continued=of)
        longer.take_events(shorter)
    return longer


def step_continued(chain: Chain) -> int:
    """Return the step of the shorter training that a chain began with; 0 for none."""
    newest = list_saved(chain.root / "work/checkpoints")[0]
    return newest.continued.step if newest.continued else 0


def without_hooks_of_ends(outcome: Outcome) -> Outcome:
    """Return an outcome without the hooks at ends, of which each shorter training has one more."""
    ends = ("on_train_end", "on_fit_end")
    return replace(outcome, events=[one for one in outcome.events if not one[0].endswith(ends)])


def run_all(
    trainings: Trainings, cases: Sequence[tuple[Case, Sequence[Kill], bool]], folder: Path, **options: Any
) -> tuple[Outcome, Chain]:  # fmt: skip
    """Train cases in turn, each continuing the one before; return the outcome of the last and its chain.

    Args:
        cases: each with its kills, and whether it trains to its end behind them.
    """
    with without_ends():
        chain: Chain | None = None
        for number, (case, kills, is_whole) in enumerate(cases):
            here = folder / str(number)
            chain = (
                continued(trainings, chain, case, here, **options)
                if chain
                else Chain(trainings, case, here, **options)
            )
            for kill in kills:
                if chain.attempt(kill) is not None:
                    break
            if number == len(cases) - 1:
                return chain.run([]), chain
            if is_whole:
                chain.attempt(None)
    raise AssertionError


def bounds(trainings: Trainings, case: Case, folder: Path) -> dict[int, Bound]:
    """Return how far each state of a training depends on its length, by step."""
    chain = Chain(trainings, case, folder, every_steps=2, keep=9)
    chain.attempt(None)
    return {one.step: one.bound for one in list_saved(chain.root / "work/checkpoints") if one.bound}


class ReadsLength(Counting):
    """Trains by the share of the training that is done."""

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * (1 + self.current_epoch / self.trainer.max_epochs)


class Estimates(Counting):
    """Reads the number of steps once, in its third step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 2:
            self.steps = int(self.trainer.estimated_stepping_batches)
        return super().training_step(batch, batch_idx)


class Averages(Counting):
    """Averages its weights from half of the training on."""

    def configure_callbacks(self) -> list[Any]:
        return [*super().configure_callbacks(), StochasticWeightAveraging(0.1, swa_epoch_start=0.5)]
