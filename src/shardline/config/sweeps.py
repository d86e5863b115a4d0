"""A sweep of the config: its identity, and what each trial waits for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardline.config.layout import ResultsLayout
from shardline.config.rungs import AnySlot, Brackets, Slot
from shardline.config.settings.sweep_settings import MedianSettings, SweepSettings
from shardline.config.spaces import Space
from shardline.config.stops import halving_of, median_of, rungs_of, unit_of
from shardline.core.canonical import short_digest
from shardline.records.sweeps import Unit


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep of the config.

    Attributes:
        name: Name in the config.
        base: Key of the base run in the project.
        settings: Entry of the config.
        document: All that decides the proposals except results and numbers of trials.
        trials: Number of trials.
        ended: Number of trials and promotions with a result, for a report on an unfinished study; None for all.
    """

    name: str
    base: str
    settings: SweepSettings
    document: dict[str, Any]
    trials: int
    ended: int | None = None

    @cached_property
    def id(self) -> str:
        """Digest of the document; names the folder."""
        return short_digest(self.document)

    @cached_property
    def space(self) -> Space:
        """The settings that vary."""
        return Space(self.settings.space)

    def parallel(self, trial: int) -> int:
        """Return how many trials may train at the same time when a trial is proposed."""
        return max(self.schedule.items(), key=lambda item: (item[0] <= trial, item[0]))[1]

    @cached_property
    def schedule(self) -> dict[int, int]:
        """Number of parallel trials, by the first trial that it applies to."""
        given = self.settings.parallel
        return {0: given} if isinstance(given, int) else {int(key): n for key, n in given.items()}

    @property
    def at_once(self) -> int:
        """Return how many trainings may run at the same time at most."""
        return min(max(self.schedule.values()), self.trials) * self.settings.seeds

    @cached_property
    def halving(self) -> Brackets | None:
        """Promotions of `stop.halving`; None without it."""
        return halving_of(self.settings)

    @cached_property
    def median(self) -> MedianSettings | None:
        """The rule of `stop.median`; None without it."""
        return median_of(self.settings)

    @cached_property
    def rungs(self) -> list[int]:
        """Epochs or steps of each rung; empty if every trial trains to its end."""
        return rungs_of(self.settings)

    @property
    def unit(self) -> Unit:
        """What the rungs count."""
        return unit_of(self.settings)

    @cached_property
    def slots(self) -> list[AnySlot]:
        """All trials and promotions."""
        return [
            *range(self.trials),
            *(self.halving.slots(self.trials) if self.halving else ()),
        ]

    @property
    def note_on_rest(self) -> str:
        """Return a sentence on the trials beyond the last whole bracket, which may wait; empty without any."""
        if not self.halving or not (rest := self.trials % self.halving.size):
            return ""
        whole = self.trials - rest
        return (
            f"sweeps.{self.name}.trials={self.trials}: the last {rest} are no whole bracket of {self.halving.size}, so "
            f"that they may wait at a rung until trials is raised; set trials to {whole} or {whole + self.halving.size}"
        )

    @cached_property
    def _news(self) -> list[list[AnySlot]]:
        assert self.halving
        return self.halving.news(self.trials, self.parallel)

    def needs(self, slot: AnySlot) -> tuple[AnySlot | None, list[AnySlot]]:
        """Return the slot whose proposal a proposal continues, and the slots whose results it is the first to know."""
        if isinstance(slot, Slot):
            assert self.halving
            return self.halving.needs(slot)
        before = slot - 1 if slot else None
        if self.halving:
            return before, self._news[slot]
        return before, [*range(self.visible(slot - 1), self.visible(slot))]

    @cached_property
    def _visible(self) -> list[int]:
        if self.halving:
            counts = [sum(isinstance(one, int) for one in new) for new in self._news]
            return [*accumulate(counts)]
        found, most = [], 0
        for trial in range(self.trials):
            most = max(most, trial - self.parallel(trial) + 1)
            found.append(most)
        return found

    def visible(self, trial: int) -> int:
        """Return how many trials, counted from the first, have results when a trial is proposed."""
        return self._visible[trial] if trial >= 0 else 0

    def proposal(self, layout: ResultsLayout, slot: AnySlot) -> Path:
        """Return the path of a proposal."""
        return layout.study(self.id) / str(slot) / "proposal.json"

    def results(self, layout: ResultsLayout, slot: AnySlot) -> list[Path]:
        """Return the paths of the results of a trial or promotion, one for each training."""
        folder = layout.study(self.id) / str(slot)
        return [folder / f"result-{repeat}.json" for repeat in range(self.settings.seeds)]

    @property
    def jobs(self) -> Iterator[tuple[str, str]]:
        """Rule and key of every job of the study, which name its log."""
        yield "seal_study", f"{self.id}-{self.trials}"
        for slot in self.slots:
            yield "propose", f"{self.id}-{slot}"
            for repeat in range(self.settings.seeds):
                yield "train_trial", f"{self.id}-{slot}-{repeat}"

    def until_now(self, layout: ResultsLayout) -> "SweepPlan":
        """Return the sweep with the number of trials that have a result, for the identity of a report."""
        if self.summary(layout).exists():
            return self
        number = sum(
            all(path.exists() for path in self.results(layout, slot)) for slot in self.slots
        )
        return replace(self, ended=number)

    def summary(self, layout: ResultsLayout) -> Path:
        """Return the path of the finished study."""
        return layout.study(self.id) / f"study-{self.trials}.json"
