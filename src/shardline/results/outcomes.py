"""State, cause and remedy of the runs without a result."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.core.errors import DataError
from shardline.records.failures import Failure
from shardline.results.running import Progress, progress_of
from shardline.supervision.attempt_log import last_recorded_step, read_attempts
from shardline.supervision.job_failures import failures_of

FAILED, RUNNING, STOPPED, MISSING = "failed", "running", "stopped", "missing"
# Rules that all runs wait for.
_ENVIRONMENT_RULES = ("lock_envs", "create_env", "build_image")


def failure_of(run: RunPlan, runs: Mapping[str, RunPlan] | None = None) -> Failure | None:
    """Return the first failure among the jobs that a run still needs, or None.

    Args:
        runs: Runs of the project by id, whose failures count where the run begins from them.
    """
    return next(_failures(run, runs or {}), None)


def has_failed(run: RunPlan) -> bool:
    """Return whether the training of a run failed, and was not trained since."""
    return any(True for _ in failures_of(run.layout.failures, "train", run.id))


def _failures(run: RunPlan, runs: Mapping[str, RunPlan]) -> Iterator[Failure]:
    folder = run.layout.failures
    if run.is_sealed or not folder.is_dir():
        return
    if not run.has_model:
        yield from _failures_of_training(run, folder)
        for through, base in _untrained_bases(run, runs):
            for one in _failures_of_training(base, folder):
                sentence = f"it begins from {through}, which {_ended(one)}: {one.sentence}"
                yield structs.replace(one, sentence=sentence)
    yield from failures_of(folder, "evaluate", f"{run.id}-{run.evaluation_id}")


def _failures_of_training(run: RunPlan, folder: Path) -> Iterator[Failure]:
    yield from failures_of(folder, "train", run.id)
    yield from failures_of(folder, "resolve_run", run.id)
    for part in run.parts:
        yield from _failures_of_dataset(part.dataset)
    for rule in _ENVIRONMENT_RULES:
        yield from failures_of(folder, rule)


def _untrained_bases(
    run: RunPlan, runs: Mapping[str, RunPlan], through: str = ""
) -> Iterator[tuple[str, RunPlan]]:
    """Yield the runs without a model that a run begins from, directly or not, with the way to each in words."""
    for one in run.bases:
        base = runs.get(one.run)
        if base is not None and not base.has_model:
            way = f"{through}{base.name} ({base.id})"
            yield way, base
            yield from _untrained_bases(base, runs, f"{way}, which begins from ")


def _ended(failure: Failure) -> str:
    return "diverged" if failure.kind == "diverged" else "failed"


def base_without_model(run: RunPlan, runs: Mapping[str, RunPlan]) -> str | None:
    """Return which base keeps a run from being trained, as a sentence; None if there is none.

    Args:
        runs: Runs of the project by id.
    """
    if run.has_model:
        return None
    if study := run.study:
        way = f"it combines the trials of sweep {study.name}"
        return None if study.path.exists() else f"{way}, which has not ended"
    untrained = [*_untrained_bases(run, runs)]
    for through, base in untrained:
        if failure := next(_failures_of_training(base, run.layout.failures), None):
            return f"it begins from {through}, which {_ended(failure)}"
    return f"it begins from {untrained[0][0]}, which is not trained" if untrained else None


def _failures_of_dataset(dataset: DatasetPlan) -> Iterator[Failure]:
    if not dataset.manifest.exists():
        for rule in ("prepare_data", "plan_splits", "build_shards", "seal_dataset"):
            yield from failures_of(dataset.layout.failures, rule, dataset.id)


def outcomes_of(project: Project) -> dict[str, dict[str, Any]]:
    """Return the outcome of each run without a result, by the project's key of the run.

    An outcome has `id`, `names`, `dataset`, `model`, `state` (`failed`, `running`, `stopped` or `missing`), `cause` and
    `remedy` (sentences) and `log` (None if no job wrote one). A failure also has `rule` and `when`; a running
    training has `rule`, `step`, `steps`, `steps_per_s` and `left_s`.
    """
    found = {
        key: _outcome(key, run, project.runs)
        for key, run in project.runs.items()
        if not (run.is_sealed and _has_records(run))
    }
    if any(one["state"] == MISSING for one in found.values()):
        for key, (cause, remedy) in waited_in_vain(project).items():
            if found[key]["state"] == MISSING:
                found[key] |= {"cause": cause, "remedy": remedy}
    return found


def waited_in_vain(project: Project) -> dict[str, tuple[str, str]]:
    """Return cause and remedy of each run that waited for a shorter run which failed, by the project's key."""
    from shardline.results.waiting import shorter_runs

    return {
        key: (
            f"the training waited for {shorter.name}, to continue it, and {shorter.name} failed",
            "give the same `snakemake` command again; the training then continues what "
            f"{shorter.name} has saved, or begins at step 0",
        )
        for key, shorter in shorter_runs(project, lambda run: run.has_model).items()
        if has_failed(shorter)
    }


def _has_records(run: RunPlan) -> bool:
    """Return whether all files exist that the report reads of a run."""
    names = ("run.json", "identity.json", "metrics.jsonl", "provenance.json")
    return all((run.folder / name).exists() for name in names)


def _outcome(key: str, run: RunPlan, runs: Mapping[str, RunPlan]) -> dict[str, object]:
    known = {
        "id": key,
        "names": list(run.names),
        "dataset": run.dataset_name,
        "model": run.row.model,
    }
    if not run.has_model and (progress := progress_of(run)):
        return {**known, **_running(run, progress)}
    if failure := failure_of(run, runs):
        return {**known, **_failed(failure)}
    return {**known, **_missing(run, base_without_model(run, runs))}


def _running(run: RunPlan, progress: Progress) -> dict[str, object]:
    return {
        "state": RUNNING,
        "cause": f"it trains: {describe_progress(progress)}",
        "remedy": "wait until it ends; `shardline ls` prints its progress",
        "rule": "train",
        "log": _log(run, "train", run.id),
        **asdict(progress),
    }


def _failed(failure: Failure) -> dict[str, object]:
    remedy = (
        "fix the error, then give the same `snakemake` command again; finished runs are kept"
        if failure.is_final
        else "read the log, then give the same `snakemake` command again: a training resumes from its last checkpoint"
    )
    return {
        "state": FAILED,
        "cause": failure.sentence,
        "remedy": remedy,
        "rule": failure.rule,
        "log": failure.log,
        "when": failure.when,
    }


def _missing(run: RunPlan, base: str | None) -> dict[str, object]:
    again = "give the same `snakemake` command again"
    if run.has_model:
        found = {
            "cause": "the run is trained, but its evaluation or one of its small files is missing",
            "log": _log(run, "evaluate", f"{run.id}-{run.evaluation_id}"),
        }
        return {"state": MISSING, "remedy": again, **found}
    if stop := stop_of(run):
        log = _log(run, "train", run.id)
        return {"state": STOPPED, "cause": stop, "remedy": again, "log": log}
    step = last_recorded_step(run.layout.work(run.id))
    cause = (
        f"the training ended after step {step:,}, and no error is recorded"
        if step
        else f"the training has not started{f': {base}' if base else ''}"
    )
    remedy = f"{again}; the training resumes from its last checkpoint" if step else again
    log = _log(run, "train", run.id)
    return {"state": MISSING, "cause": cause, "remedy": remedy, "log": log}


def stop_of(run: RunPlan) -> str | None:
    """Return why the last attempt was stopped and at which step it saved; None if it was not stopped."""
    with suppress(DataError):
        last = read_attempts(run.layout.work(run.id))[-1:]
        return last[0].reason if last and last[0].end == "stopped" else None
    return None


def _log(run: RunPlan, rule: str, key: str) -> str | None:
    path = run.layout.log(rule, key)
    return run.layout.name_of(path) if path.exists() else None


def describe_progress(progress: Progress | Mapping[str, Any]) -> str:
    """Return the progress of a training as text: step, rate, time left."""
    known = asdict(progress) if isinstance(progress, Progress) else progress
    words = [f"step {known['step']:,}" + (f" of {known['steps']:,}" if known["steps"] else "")]
    if known["steps_per_s"]:
        words.append(f"{known['steps_per_s']:.3g} steps/s")
    if known["left_s"] is not None:
        minutes, seconds = divmod(round(known["left_s"]), 60)
        hours, minutes = divmod(minutes, 60)
        words.append(f"{hours}:{minutes:02}:{seconds:02} left")
    return ", ".join(words)


def present_report(project: Project) -> Path | None:
    """Return the page of the present report, or None.

    While runs lack a result, this is the report that `results/report` points to, if it lists these runs.
    """
    if project.report.exists():
        return project.report
    linked = project.layout.latest_report
    page = project.layout.report(linked.resolve().name)
    try:
        document = json.loads((linked / "report.json").read_bytes())
        has_others = "outcomes" in document or any(
            len(one["trials"]) < one["planned"] for one in document.get("sweeps", ())
        )
    except (OSError, ValueError):
        return None
    return page if has_others and page.exists() else None
