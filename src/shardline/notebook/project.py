"""A project opened in Python: its runs as a table and by name."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardline.config.load import load_project
from shardline.config.project import Project as ResolvedProject
from shardline.config.resolved import as_plain
from shardline.core.extras import naming_extras
from shardline.core.nested import flatten
from shardline.notebook.display import table_html
from shardline.notebook.run import CONFIG, Run
from shardline.notebook.study import Study
from shardline.results.select import find_run
from shardline.results.states import sealed_names, state_of

if TYPE_CHECKING:
    import pandas as pd

    from shardline.notebook.listings import Figure


class Project(Mapping[str, Run]):
    """The runs of a config and what exists of them. Nothing is trained, and no file is changed.

    Iterating gives the names of the runs in the order of the table. `project["mlp"]` is a run by name or id. Results
    are read when they are asked for, so they are those of that moment; the config is read once.

    Args:
        folder: Folder of the project.
        config: Config, relative to the folder.

    Raises:
        ConfigError: The folder has no config, or config or table have errors.
        DataError: A source file cannot be read.
    """

    def __init__(self, folder: Path | str = ".", *, config: Path | str = CONFIG) -> None:
        self.folder = Path(folder).resolve()
        self._config = Path(config)
        self._project = load_project(workdir=self.folder, config_file=self._config)
        self._named = self._project.named_runs()

    @property
    def runs(self) -> "pd.DataFrame":
        """A row for each run, by name: state, id, dataset, model, settings that differ, metrics and cost.

        `best_score` is the best value of `checkpoint.monitor`; other metrics are those of the held-out split.
        `elapsed_s` counts all attempts in seconds, `device_hours` this time on all devices.
        """
        with naming_extras():
            import pandas as pd

        differing, known = self._differing(), sealed_names(self._project.layout)
        rows = []
        for name, plan in self._named.items():
            facts = {
                "name": name, "state": state_of(plan, known).value, "id": plan.id,
                "dataset": plan.dataset_name, "model": plan.row.model,
            }  # fmt: skip
            rows.append(facts | differing[name] | self[name].summary())
        return pd.DataFrame(rows).set_index("name") if rows else pd.DataFrame()

    @property
    def studies(self) -> dict[str, Study]:
        """The sweeps of the config, by name."""
        return {
            plan.name: Study(self._project, plan, config=self._config)
            for plan in self._project.sweeps.values()
        }

    def table(self, columns: Sequence[str] = ()) -> "pd.DataFrame":
        """Return a row for each group of runs that differ only in seed or fold, as `shardline table` prints it.

        A metric has three columns: the mean, and the ends `METRIC low` and `METRIC high` of its 95 % interval.

        Args:
            columns: Settings and metrics; by default the settings that differ, and all held-out metrics.

        Raises:
            ConfigError: A column is unknown; the message suggests the nearest.
        """
        from shardline.notebook.tables import results_table

        return results_table(self, columns)

    def plot(
        self,
        runs: Sequence[str] = (),
        metrics: Sequence[str] = (),
        *,
        x: Literal["step", "epoch", "wall_s"] = "step",
    ) -> "Figure":
        """Return a figure with a panel for each metric and a line for each run.

        Args:
            runs: Names or ids; by default all runs.
            metrics: Logged metrics; by default the monitored ones.
            x: Horizontal axis.

        Raises:
            ConfigError: A run is unknown, or no run logged a metric; the message suggests the nearest.
        """
        from shardline.notebook.figures import curves
        from shardline.notebook.listings import Figure

        named = [*runs] or [*self]
        frames = {name: self[name].metrics() for name in named}
        return Figure(curves(frames, [*metrics] or self.monitored(named), x=x))

    def monitored(self, runs: Sequence[str]) -> list[str]:
        """Return the metrics that choose the sealed weights of runs."""
        found = (self[name].plan.settings.checkpoint.monitor for name in runs)
        return [*dict.fromkeys(found)]

    @property
    def plans(self) -> ResolvedProject:
        """The project as Shardline's own functions take it."""
        return self._project

    @property
    def metric_names(self) -> list[str]:
        """The held-out metrics of all runs, in the order in which they first appear."""
        found = (run.evaluation for run in self.values())
        return [*dict.fromkeys(name for one in found if one for name in one.metrics)]

    def _differing(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each run that are not the same in all runs, by dotted key."""
        flat = {name: flatten(as_plain(run.settings)) for name, run in self._named.items()}
        keys = dict.fromkeys(key for settings in flat.values() for key in settings)
        seen = {key: {repr(settings.get(key)) for settings in flat.values()} for key in keys}
        varied = [key for key, values in seen.items() if len(values) > 1]
        return {name: {key: settings.get(key) for key in varied} for name, settings in flat.items()}

    def __getitem__(self, name: str) -> Run:
        """Return a run by name or id.

        Raises:
            ConfigError: The config has no such run; the message suggests the nearest.
        """
        plan = self._named.get(name) or find_run(self._project, name)
        return Run(self._project, plan, config=self._config)

    def __contains__(self, name: object) -> bool:
        return name in self._named or name in self._project.runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def _ipython_key_completions_(self) -> list[str]:
        return [*self._named]

    def __repr__(self) -> str:
        return f"<Shardline project {self.folder.name}: {', '.join(self._named)}>"

    def _repr_html_(self) -> str:
        return table_html(self.runs, f"{self.folder.name}: {len(self)} runs")
