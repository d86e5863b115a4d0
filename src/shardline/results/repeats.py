"""Means over runs of the config that differ only in the seed, or in the fold that they test on."""

from collections.abc import Mapping
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
    alike: dict[str, list[RunPlan]] = {}
    for run in project.runs.values():
        documents = but_seed(run.document, run.evaluation_document, ("seed", "fold"))
        alike.setdefault(digest([run.settings.fold is None, *documents]), []).append(run)
    found: dict[str, Any] = {}
    for runs in alike.values():
        if mean := _mean(runs, headlines):
            found |= dict.fromkeys((run.name for run in runs), mean)
    return found


def _mean(
    runs: list[RunPlan], headlines: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, Any] | None:
    done = [
        (run, line) for run in runs if (line := headlines[run.name]) and line["value"] is not None
    ]
    if len(done) < 2 or len({line["metric"] for _, line in done}) > 1:
        return None
    metric = str(done[0][1]["metric"])
    repeats = SeedRepeats(
        values=[line["value"] for _, line in done],
        bounds=bounds_of(metric),
        folds=[run.settings.tested_fold for run, _ in done if run.settings.tested_fold is not None],
        num_folds=runs[0].num_folds or 0,
    )
    return {
        "name": name_of_repeats([run.names[0] for run in runs]),
        "metric": metric,
        "mean": repeats.mean,
        "sd": repeats.sd,
        "interval": repeats.interval,
        "over": repeats.counted,
    }
