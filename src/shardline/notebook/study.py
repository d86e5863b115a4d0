"""A sweep opened in Python: its trials as a table, and the best of them as a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from shardline.config.project import Project
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError, DataError
from shardline.notebook.display import study_html
from shardline.notebook.run import CONFIG, Run
from shardline.records.sweeps import ReportedStudy

if TYPE_CHECKING:
    import pandas as pd


class Study:
    """A sweep of the config. Trials are read when they are asked for.

    Attributes:
        plan: The sweep with everything that its proposals depend on.
    """

    def __init__(self, project: Project, plan: SweepPlan, *, config: Path = CONFIG) -> None:
        self._project, self.plan, self._config = project, plan, config

    @property
    def name(self) -> str:
        """Name in the config."""
        return self.plan.name

    @property
    def id(self) -> str:
        """Id of the study, which names its folder."""
        return self.plan.id

    @property
    def metric(self) -> str:
        """Validation metric that is optimised; `mode` has the direction."""
        return self.plan.settings.objective.metric

    @property
    def mode(self) -> str:
        """`min` or `max`: which value is best."""
        return self.plan.settings.objective.mode

    @property
    def record(self) -> ReportedStudy:
        """The trials that have ended, and the importance of each setting of a finished study.

        Raises:
            DataError: A file of the study was changed.
        """
        from shardline.results.sweeps.trials import study_so_far

        return study_so_far(self.plan, self._project.layout)

    @property
    def trials(self) -> "pd.DataFrame":
        """A row for each trial, by number: varied settings, value, state, seconds and identity.

        `value` is the mean of the metric over the trial's trainings, `state` as in `shardline ls --study`,
        `identity` the id of each training's run, and `failure` the reason why there is no value.

        Raises:
            DataError: A file of the study was changed.
        """
        import pandas as pd

        from shardline.results.sweeps.describe import describe_trials

        keys = [*self.plan.space.keys]
        rows = [
            {
                "trial": one["trial"], **{key: one["settings"].get(key) for key in keys},
                "value": one["value"], "state": one["state"], "seconds": one["seconds"],
                "identity": ", ".join(one["runs"]), "best": one["best"], "failure": one["failure"],
            }
            for one in describe_trials(self._project, self.plan)
        ]  # fmt: skip
        frame = pd.DataFrame(rows).set_index("trial")
        return frame.astype({"value": float, "seconds": float})

    @property
    def best(self) -> Run:
        """The run of the best trial so far; with several seeds, of its first training.

        Raises:
            DataError: No trial has a value yet.
        """
        from shardline.results.sweeps.describe import best_trial

        return self.run(best_trial(self._project, self.plan)[0].trial)

    def run(self, trial: int) -> Run:
        """Return the run of a trial; with several seeds, of its first training.

        Raises:
            ConfigError: The sweep has no such trial, or its settings are excluded.
            DataError: The trial is not proposed yet.
        """
        from shardline.results.sweeps.trials import read_proposal, run_of_trial

        if trial not in range(self.plan.trials):
            raise ConfigError(
                f"sweep {self.name} has trials 0 to {self.plan.trials - 1}, not {trial}"
            )
        path = self.plan.proposal(self._project.layout, trial)
        if not path.exists():
            raise DataError(f"trial {trial} of {self.name} is not proposed yet; run `snakemake`")
        proposal = read_proposal(path)
        if not proposal.runs:
            raise ConfigError(f"trial {trial} of {self.name} has no run: {proposal.excluded}")
        plan = run_of_trial(self._project, self.plan, proposal, 0)
        return Run(self._project, plan, config=self._config)

    def __len__(self) -> int:
        return self.plan.trials

    def __repr__(self) -> str:
        return f"<Shardline study {self.name} ({self.id}): {len(self)} trials, {self.mode} {self.metric}>"

    def _repr_html_(self) -> str:
        return study_html(repr(self)[1:-1], self.trials, self.metric, self.mode)
