"""Models checked before anything is built, in one process for all; what is well is known by identity."""

import os
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from shardline import __version__
from shardline.config.inferred import block
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.run import Run
from shardline.config.run_spec import RunSpec
from shardline.config.scripts import is_script
from shardline.core.canonical import digest, short_digest
from shardline.core.environment import rank_variables
from shardline.core.errors import DataError
from shardline.core.files import make_folder, write_bytes
from shardline.core.machine import free_memory_bytes, num_cpus
from shardline.core.process import kill_group
from shardline.core.variables import cleaned
from shardline.environments.python import python_of_ranks
from shardline.results.check.found import Finding
from shardline.training.check_spec import (
    CheckedDataset,
    CheckedModel,
    CheckRequest,
    ModelResult,
    encode,
    read_result,
)

_MEMORY_SHARE = 0.6  # of what is free; the machine may be a login node of many
_TRAINED_BY = ("model", "versions", "code", "environment", "code_files", "sample_code")
_DATA = ("normalize", "last_batch", "transform", "eval_transform", "collate", "pack", "class_weights")  # fmt: skip


@dataclass(kw_only=True)
class Checked:
    """What came of the models' checks.

    Attributes:
        results: by run key of the project; none of a training script.
        findings: of all.
    """

    results: dict[str, ModelResult] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def check_models(
    project: Project, runs: Mapping[str, Run], *, limit_s: float | None = None, is_elsewhere: bool = False,
) -> Checked:  # fmt: skip
    """Check the models of runs; those that were found well before, with the same code, cost nothing.

    Args:
        runs: by key of the project.
        limit_s: seconds after which the rest counts as not checked; None: no limit.
        is_elsewhere: whether jobs have packages of their own, as those in a container.
    """
    checked = Checked()
    asked: dict[str, CheckedModel] = {}
    keys: dict[str, str] = {}
    for key, run in runs.items():
        if is_script(run.model_class):
            continue
        model = _model_of(run)
        asked.setdefault(model.identity, model)
        keys[key] = model.identity
    known = {one: _known(project, one) for one in asked}
    wanted = [model for identity, model in asked.items() if known[identity] is None]
    results = {one: result for one, result in known.items() if result is not None}
    is_elsewhere |= project.runtime.launcher == "azureml"
    results |= _run(project, wanted, limit_s, is_elsewhere=is_elsewhere) if wanted else {}
    for key, identity in keys.items():
        result = checked.results[key] = results[identity]
        names = runs[key].names
        checked.findings += [
            Finding(kind="error", sentence=one, runs=names) for one in result.problems
        ]
        if problem := _too_few_rows(runs[key], result.num_rows):
            checked.findings.append(Finding(kind="error", sentence=problem, runs=names))
        checked.findings += [
            Finding(kind="not checked", sentence=one, runs=names) for one in result.not_checked
        ]
        blocks = [block(name, inferred) for name, inferred in result.inferred.items()]
        checked.findings += [Finding(kind="read", sentence=one) for one in blocks if one]
    return checked


def _too_few_rows(run: Run, num_rows: int | None) -> str | None:
    """Return what is wrong where a dataset, all splits together, does not fill a global batch."""
    settings, data = run.settings, run.settings.data
    # rows that are drawn by class, or over an epoch of a given length, are repeated
    may_fill = data.last_batch == "pad" or data.pack or data.class_weights or data.epoch_samples
    if num_rows is None or may_fill or settings.global_batch <= num_rows:
        return None
    name = run.parts[0].dataset.names[0]
    return (
        f"global_batch={settings.global_batch} is more than the {num_rows:,} rows of dataset {name}; "
        "use a smaller batch, more data or data.last_batch=pad"
    )


def _model_of(run: Run) -> CheckedModel:
    """Return what is checked of a run; runs that differ in learning rate or length alone have one identity."""
    settings = as_plain(run.settings)
    counted = {
        "model_args": settings["model_args"],
        "data": {key: settings["data"][key] for key in _DATA},
        "optim": settings["optim"]["name"],
        "schedule": settings["schedule"]["name"],
        "monitor": settings["checkpoint"]["monitor"],
        "early_stopping": settings["early_stopping"]["patience"] > 0 and settings["early_stopping"]["monitor"],
        "precision": settings["precision"] == "64-true",
        "deterministic": settings["deterministic"],
        "gradient_clip": settings["trainer"]["gradient_clip"] > 0,
        "divergence": settings["divergence"]["policy"],
        "elastic": settings["elastic"],
        "accelerator": settings["accelerator"],
        "evaluation": settings["evaluation"],
    }  # fmt: skip
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
    return CheckedModel(
        identity=short_digest(document),
        spec=RunSpec(
            run=run.id,
            name=run.names[0],
            identity=digest(run.document),
            model=run.row.model,
            model_class=run.model_class,
            settings=run.settings,
        ),
        datasets=[
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
        ],
        has_test_step="measured_by" in run.evaluation_document,
        set_by_row=run.set_by_row,
    )


def _known(project: Project, identity: str) -> ModelResult | None:
    try:
        found = read_result(project.layout.check(identity).read_bytes())
    except OSError:
        return None
    return found if found and found.identity == identity else None


def _run(
    project: Project, models: Collection[CheckedModel], limit_s: float | None, *, is_elsewhere: bool
) -> dict[str, ModelResult]:
    """Check models in a process of their own; returns the result of each by identity."""
    try:
        python = python_of_ranks(project, gpus=False)
    except DataError:
        why = f"runtime.environment={project.runtime.environment} is not made yet; it is checked once that is there"
        return _not_checked(models, why)
    folder = project.layout.checks
    make_folder(folder)
    with TemporaryDirectory(dir=folder, prefix=".") as work:
        request = CheckRequest(
            models=list(models),
            output=Path(work) / "results.jsonl",
            folder=Path(work),
            memory_bytes=int(_MEMORY_SHARE * free_memory_bytes()),
            is_elsewhere=is_elsewhere,
        )
        write_bytes(Path(work) / "request.json", encode(request))
        why = _start(project, python, Path(work) / "request.json", limit_s)
        lines = request.output.read_bytes().splitlines() if request.output.exists() else []
    found = {one.identity: one for one in map(read_result, lines) if one}
    for one in found.values():
        # what another machine or a free network may change is looked at again
        if not (one.problems or one.not_checked):
            with suppress(DataError):
                write_bytes(project.layout.check(one.identity), encode(one))
    missing = [one for one in models if one.identity not in found]
    return found | _not_checked(missing, why)


def _start(project: Project, python: tuple[str, ...], request: Path, limit_s: float | None) -> str:
    """Run the program to its end; returns why models may have no result."""
    log = project.layout.log("check", "models")
    make_folder(log.parent)
    variables = rank_variables(num_cpus(), project.runtime.variables, "")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*python, "-m", "shardline.training.check_worker", str(request)],
            env={**cleaned(os.environ), **variables, "CUDA_VISIBLE_DEVICES": ""},
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


def _not_checked(models: Collection[CheckedModel], why: str) -> dict[str, ModelResult]:
    return {
        one.identity: ModelResult(
            identity=one.identity,
            not_checked=[f"model={one.spec.model} was not checked: {why}"],
        )
        for one in models
    }
