"""Means over runs of the config that differ only in the seed, or in the fold that they test on."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.canonical import digest
from shardline.core.intervals import but_seed
from shardline.core.repeats import SeedRepeats, bounds_of, name_of_repeats


def means_of(project: Project, headlines: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the mean over the repeats of each run, by the name of the run.

    Args:
        headlines: Headline metric of each run by name; None for a run without a result.

    Returns:
        Records with `name`, `metric`, `mean`, `sd`, `interval` and `over`, such as `5 folds x 3 seeds`.
        Runs that are not repeated, and repeats with fewer than two values, have none.
    """
    found: dict[str, Any] = {}
    for runs in runs_alike(project):
        if mean := _mean(runs, headlines):
            found |= dict.fromkeys((run.name for run in runs), mean)
    return found


def runs_alike(project: Project) -> list[list[RunPlan]]:
    """Return the runs in groups that differ only in the seed, or in the fold that they test on."""
    alike: dict[str, list[RunPlan]] = {}
    for run in project.runs.values():
        documents = but_seed(run.document, run.evaluation_document, ("seed", "fold"))
        alike.setdefault(digest([run.settings.fold is None, *documents]), []).append(run)
    return [*alike.values()]


def repeats_of(runs: Sequence[RunPlan], metric: str, values: Sequence[float]) -> SeedRepeats:
    """Return the values of a metric of runs that differ only in seed or fold, in the order of the runs."""
    folds = [one.settings.tested_fold for one in runs]
    return SeedRepeats(
        values=values,
        bounds=bounds_of(metric),
        folds=[fold for fold in folds if fold is not None],
        num_folds=runs[0].num_folds or 0,
    )


def _mean(
    runs: list[RunPlan], headlines: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, Any] | None:
    done = [
        (run, line) for run in runs if (line := headlines[run.name]) and line["value"] is not None
    ]
    if len(done) < 2 or len({line["metric"] for _, line in done}) > 1:
        return None
    metric = str(done[0][1]["metric"])
    repeats = repeats_of([run for run, _ in done], metric, [line["value"] for _, line in done])
    return {
        "name": name_of_repeats([run.names[0] for run in runs]),
        "metric": metric,
        "mean": repeats.mean,
        "sd": repeats.sd,
        "interval": repeats.interval,
        "over": repeats.counted,
    }
