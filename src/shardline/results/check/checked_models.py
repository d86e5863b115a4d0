"""Check of models in one process, with results cached by the identity of the check."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import structs

from shardline import __version__
from shardline.config.callbacks import RUNTIME_CALLBACKS
from shardline.config.objects import paths_of_callbacks
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.schedules import ends_early
from shardline.config.scripts import is_script
from shardline.config.settings.run_settings import default_settings
from shardline.core.canonical import short_digest
from shardline.core.errors import DataError
from shardline.core.files import make_folder
from shardline.core.machine import free_memory_bytes, num_cpus
from shardline.core.nested import flatten
from shardline.core.process import kill_group
from shardline.core.rank_environment import rank_variables, without_place
from shardline.core.variables import cleaned
from shardline.environments.python import python_of_ranks
from shardline.records.understood import block
from shardline.results.check.found import Finding
from shardline.results.findings import count
from shardline.supervision.warm.client import (
    PYTORCH_LIGHTNING,
    VARIABLE,
    Cold,
    WarmRanks,
    start_warm,
)
from shardline.training.rank_task import (
    PROGRAM,
    Check,
    CheckedDataset,
    ModelResult,
    RankRuntime,
    RankTask,
    read_result,
    write_result,
    write_task,
)

_MEMORY_SHARE = 0.6  # of what is free; the machine may be a login node of many
_TRAINED_BY = ("model", "versions", "code", "environment", "code_files", "sample_code")
_DATA = ("normalize", "last_batch", "transform", "eval_transform", "collate", "pack", "class_weights")  # fmt: skip


@dataclass(kw_only=True)
class Checked:
    """Results of the models' checks.

    Attributes:
        results: Result of each model, by run key of the project; none for training scripts.
        findings: Findings of all models.
    """

    results: dict[str, ModelResult] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def check_models(
    project: Project, runs: Mapping[str, RunPlan], *, limit_s: float | None = None, is_elsewhere: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> Checked:  # fmt: skip
    """Check the models of runs; models that passed before with the same code cost nothing.

    Args:
        runs: Runs by key of the project.
        limit_s: Seconds after which the remaining models count as not checked; None for no limit.
        announce: Called with a sentence before the models are tried, which takes seconds.
        is_elsewhere: Whether jobs use other packages than this process, such as those of a container.
    """
    checked = Checked()
    asked: dict[str, RunPlan] = {}
    keys: dict[str, str] = {}
    for key, run in runs.items():
        if not is_script(run.model_class):
            keys[key] = _identity_of(project, run)
            asked.setdefault(keys[key], run)
    known = {one: read_result(project.layout.check(one)) for one in asked}
    wanted = {identity: run for identity, run in asked.items() if known[identity] is None}
    results = {one: result for one, result in known.items() if result is not None}
    is_elsewhere |= project.runtime.launcher == "azureml"
    if wanted:
        announce(f"checking {count(len(wanted), 'model')} before the first job")
        results |= _run(project, wanted, limit_s, is_elsewhere=is_elsewhere)
    for key, identity in keys.items():
        result = checked.results[key] = results[identity]
        names = runs[key].names
        checked.findings += [
            Finding(kind="error", sentence=one, runs=names) for one in result.problems
        ]
        if problem := _too_few_rows(runs[key], result.num_rows):
            checked.findings.append(Finding(kind="error", sentence=problem, runs=names))
        if not result.own_optimizer and (early := ends_early(runs[key].settings)):
            checked.findings.append(Finding(kind="warning", sentence=early, runs=names))
        if result.own_optimizer and (unused := _unused_settings(runs[key])):
            checked.findings.append(Finding(kind="warning", sentence=unused, runs=names))
        later = [*filter(None, [_checked_later(runs[key])])]
        checked.findings += [
            Finding(kind="not checked", sentence=one, runs=names)
            for one in (*result.not_checked, *later)
        ]
        with_files = {
            part.dataset.names[0] for part in runs[key].parts if "files" in part.dataset.source
        }
        blocks = [
            block(name, inferred if name in with_files else _but_files(inferred))
            for name, inferred in result.inferred.items()
        ]
        checked.findings += [Finding(kind="read", sentence=one) for one in blocks if one]
    return checked


def _checked_later(run: RunPlan) -> str:
    """Return a sentence if a run begins from one that is not trained yet; else nothing."""
    init = run.spec.init
    if init is None or init.source != "run" or init.file.exists():
        return ""
    return f"init_from={init.name} has no sealed weights yet; names and shapes are compared when the training begins"


def _but_files(inferred: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was inferred, without the number of files of a source that comes with its own file."""
    return {key: value for key, value in inferred.items() if key != "files"}


def _too_few_rows(run: RunPlan, num_rows: int | None) -> str | None:
    """Return a sentence if a dataset, all splits together, does not fill a global batch."""
    settings, data = run.settings, run.settings.data
    # rows drawn by class, or for an epoch of a given length, are repeated
    may_fill = data.last_batch == "pad" or data.pack or data.class_weights or data.epoch_samples
    if num_rows is None or may_fill or settings.global_batch <= num_rows:
        return None
    name = run.parts[0].dataset.names[0]
    return (
        f"global_batch={settings.global_batch} is more than the {num_rows:,} rows of dataset {name}; "
        "use a smaller batch, more data or data.last_batch=pad"
    )


def _unused_settings(run: RunPlan) -> str:
    """Return a sentence on settings that a model's own `configure_optimizers` ignores; empty if none is set."""
    usual = default_settings()
    given = flatten({key: as_plain(run.settings)[key] for key in ("optim", "schedule")})
    ignored = [key for key, value in given.items() if value != usual.get(key)]
    if not ignored:
        return ""
    return (
        f"{', '.join(ignored)} of the config's defaults {'have' if ignored[1:] else 'has'} no effect, since "
        f"model={run.row.model} has its own configure_optimizers; remove {'them' if ignored[1:] else 'it'}, or read "
        "model_args in the method"
    )


def _identity_of(project: Project, run: RunPlan) -> str:
    """Return the identity of a check; runs that differ only in learning rate or length share it."""
    settings = as_plain(run.settings)
    counted = {
        "model_args": settings["model_args"],
        "data": {key: settings["data"][key] for key in _DATA},
        "optim": [settings["optim"][key] for key in ("name", "args", "groups")],
        "schedule": [settings["schedule"][key] for key in ("name", "args", "interval", "monitor")],
        "freeze": settings["freeze"],
        "monitor": settings["checkpoint"]["monitor"],
        "early_stopping": settings["early_stopping"]["patience"] > 0 and settings["early_stopping"]["monitor"],
        "precision": settings["precision"],
        "strategy": settings["strategy"],
        "is_alone": settings["nodes"] * settings["devices"] == 1,
        "ddp": settings["ddp"],
        "deterministic": settings["deterministic"],
        "gradient_clip": settings["trainer"]["gradient_clip"] > 0,
        "divergence": settings["divergence"]["policy"],
        "elastic": settings["elastic"],
        "accelerator": settings["accelerator"],
        "evaluation": settings["evaluation"],
    }  # fmt: skip
    if settings["schedule"]["epochs"] or settings["schedule"]["steps"]:
        counted["has_horizon"] = True
    if settings["callbacks"]:
        counted |= {
            "callbacks": settings["callbacks"],
            "accumulate": settings["trainer"]["accumulate"],
        }
    if init := run.spec.init:  # compared once the base is sealed
        counted["init"] = {
            "bases": [one.counted for one in run.bases],
            "settings": settings["init"],
            "is_there": init.file.exists(),
        }
    document = {
        "stage": "check",
        "shardline": __version__,
        "settings": counted,
        "set_by_row": [key for key in run.set_by_row if key.startswith(("optim.", "schedule."))],
        "datasets": [part.dataset.id for part in run.parts],
        "training": {key: run.document[key] for key in _TRAINED_BY if key in run.document},
        "evaluation": {
            key: run.evaluation_document[key]
            for key in ("versions", "code", "environment", "measured_by")
            if key in run.evaluation_document
        },
    }
    if listed := project.runtime.callbacks:
        paths = paths_of_callbacks(listed, RUNTIME_CALLBACKS, project.code, "runtime")
        programs = project.documents.programs_of(paths)
        code = {part: one.code.digest for part, one in programs.items() if one.code}
        document["runtime.callbacks"] = {"listed": listed, "code": code}
    return short_digest(document)


def _task(project: Project, run: RunPlan, work: Path, options: dict[str, Any]) -> RankTask:
    """Return the task of the program for a run."""
    # the model of an average or an ensemble is checked as one that is trained
    settings = structs.replace(run.settings, average=None, ensemble=None)
    return RankTask(
        run=structs.replace(run.spec, name=run.names[0], settings=settings, members=()),
        action=Check(
            sources=tuple(
                CheckedDataset(
                    id=part.dataset.id,
                    name=part.dataset.names[0],
                    manifest=part.dataset.manifest,
                    shards=part.dataset.layout.shards(part.dataset.id),
                    source_class=part.dataset.source_class,
                    source=part.dataset.source,
                    num_shards=part.dataset.num_shards,
                    files=list(part.dataset.files),
                    weight=str(part.weight),
                )
                for part in run.parts
            ),
            output=work / "result.json",
            has_test_step="measured_by" in run.evaluation_document,
            set_by_row=tuple(run.set_by_row),
            **options,
        ),
        work=work,
        rank_logs=work / "ranks",
        runtime=RankRuntime.of(project.runtime),
    )


def _run(
    project: Project, runs: Mapping[str, RunPlan], limit_s: float | None, *, is_elsewhere: bool
) -> dict[str, ModelResult]:
    """Check models in another process, and return their results by identity.

    Args:
        runs: First run of each model, by identity.
    """
    try:
        python = python_of_ranks(project, gpus=False)
    except DataError:
        why = f"runtime.environment={project.runtime.environment} is not made yet; check again after it is made"
        return {identity: _not_checked(run, why) for identity, run in runs.items()}
    folder = project.layout.checks
    make_folder(folder)
    began = time.monotonic()
    memory_bytes = int(_MEMORY_SHARE * free_memory_bytes())
    options = {"memory_bytes": memory_bytes, "is_elsewhere": is_elsewhere}
    with TemporaryDirectory(dir=folder, prefix=".") as place:
        works = {identity: Path(place) / identity for identity in runs}
        for identity, run in runs.items():
            make_folder(works[identity])
            task = _task(project, run, works[identity], options)
            write_task(works[identity] / "rank.json", task)
        reasons: dict[str, str] = {}
        # one process for each package of Lightning that the models import
        for package in dict.fromkeys(run.lightning[:1] for run in runs.values()):
            some = [key for key, run in runs.items() if run.lightning[:1] == package]
            left_s = None if limit_s is None else max(0.0, began + limit_s - time.monotonic())
            tasks = [works[key] / "rank.json" for key in some]
            reason = _start(project, python, tasks, left_s, next(iter(package), PYTORCH_LIGHTNING))
            reasons |= dict.fromkeys(some, reason)
        read = {identity: read_result(work / "result.json") for identity, work in works.items()}
    found = {identity: result for identity, result in read.items() if result}
    for identity, result in found.items():
        # another machine or a free network may change these results
        if not (result.problems or result.not_checked):
            with suppress(DataError):
                write_result(project.layout.check(identity), result)
    return {
        identity: found.get(identity) or _not_checked(run, reasons[identity])
        for identity, run in runs.items()
    }


def _start(
    project: Project, python: tuple[str, ...], tasks: Sequence[Path], limit_s: float | None, package: str
) -> str:  # fmt: skip
    """Run the program, and return the reason why models may have no result."""
    log = project.layout.log("check", "models")
    make_folder(log.parent)
    env, _ = without_place(os.environ)
    runtime = project.runtime
    # with as many threads as ranks have, so that they share a server
    threads = runtime.threads_per_rank or (1 if VARIABLE in os.environ else num_cpus())
    variables = rank_variables(threads, runtime.variables, "")
    env = {**cleaned(env), **variables, "CUDA_VISIBLE_DEVICES": ""}
    with log.open("wb") as output:
        process = _forked(
            project, python, tasks, env, package, output.fileno()
        ) or subprocess.Popen(
            [*python, "-m", PROGRAM, *map(str, tasks)],
            env=env,
            cwd=project.workdir,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"the check took longer than {limit_s:g} s"
        finally:
            kill_group(process.pid)
            process.wait()
    return f"the check's process ended with code {code}; its log is {project.layout.name_of(log)}"


def _forked(
    project: Project, python: tuple[str, ...], tasks: Sequence[Path], env: Mapping[str, str],
    package: str, output: int,
) -> WarmRanks | None:  # fmt: skip
    """Return the program in a process that is forked from the ranks' server; None to start it as usual."""
    if not (project.runtime.warm_ranks and python == (sys.executable,)):
        return None
    if Path.cwd() != project.workdir.absolute():
        return None
    with suppress(Cold):  # `shardline check` has no server
        return start_warm(
            [*map(str, tasks)], module=PROGRAM, env=env, ranks=1, run_id="check", grace_s=0.0,
            package=package, output=output,
        )  # fmt: skip
    return None


def _not_checked(run: RunPlan, why: str) -> ModelResult:
    return ModelResult(not_checked=[f"model={run.row.model} was not checked: {why}"])
