"""The trials of a finished study that an average or an ensemble combines."""

from dataclasses import dataclass

from shardline.config.bases import Base
from shardline.config.plans import RunPlan
from shardline.config.settings import Plain
from shardline.core.errors import ConfigError
from shardline.records.sweeps import StudyResult, Trial
from shardline.results.findings import count
from shardline.results.sweeps.trials import read_study


@dataclass(frozen=True, kw_only=True)
class StudyMembers:
    """Trials of a study as members of an average or an ensemble.

    Attributes:
        trials: Trials with a result, by number.
        left_out: Why the other trials have no result, by number.
    """

    trials: tuple[Trial, ...]
    left_out: dict[str, str]

    @property
    def runs(self) -> list[str]:
        """The ids of their runs; a trial with several seeds has several."""
        return [*dict.fromkeys(run for trial in self.trials for run in trial.runs)]


def members_of_study(base: Base, best: int | None, where: str) -> StudyMembers:
    """Return the members of a finished study.

    Args:
        base: The study.
        best: Number of trials with the best values, of equal ones the first; None for all.
        where: Start of messages.

    Raises:
        ConfigError: No trial has a result.
        DataError: The study is missing or was changed.
    """
    found = choose_trials(read_study(base.path), best)
    if not found.trials:
        number, reason = next(iter(found.left_out.items()))
        raise ConfigError(
            f"{where}: {base.kind} names the sweep {base.name}, but none of its {base.trials} trials has a result "
            f"(trial {number}: {reason}); correct the base run or the space of the sweep"
        )
    return found


def choose_trials(study: StudyResult, best: int | None) -> StudyMembers:
    """Return the members of a study; see `members_of_study`. Of trials at rungs, those at the longest."""
    sign = 1 if study.mode == "min" else -1
    longest = max((one.rung for one in study.trials if one.value is not None), default=0)
    ranked = [
        (sign * one.value, one.trial, one)
        for one in study.trials
        if one.value is not None and one.rung == longest
    ]
    chosen = [one for _, _, one in sorted(ranked, key=lambda item: item[:2])[:best]]
    left_out = {
        str(one.trial): one.failure or f"no {study.metric}"
        for one in study.trials
        if one.value is None
    } | {
        str(one.trial): f"stopped after {count(study.rungs[one.rung], study.unit)}"
        for one in study.trials
        if one.value is not None and one.rung < longest
    }
    return StudyMembers(trials=tuple(sorted(chosen, key=lambda one: one.trial)), left_out=left_out)


def known_members(run: RunPlan) -> list[str]:
    """Return the runs that a run combines from a study; empty before the study has ended."""
    found = _known(run)
    return found.runs if found else []


def titles_of_trials(run: RunPlan) -> dict[str, str]:
    """Return the number of the trial of each run that a run combines from a study, as a title."""
    found = _known(run)
    return {
        member: f"trial {trial.trial}"
        for trial in (found.trials if found else ())
        for member in trial.runs
    }


def _known(run: RunPlan) -> StudyMembers | None:
    base = run.study
    combined = run.settings.combined
    if base is None or combined is None or not base.path.exists():
        return None
    return choose_trials(read_study(base.path), combined.best or None)


def recorded_members(provenance: Plain) -> list[str]:
    """Return the runs that an average or an ensemble combined, from its provenance.json."""
    bases = provenance.get("bases") or []
    return [one["run"] for one in bases if one.get("run")]
