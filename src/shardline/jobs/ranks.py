"""The jobs that start ranks: a training, and a rehearsal of one."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline import __version__
from shardline.attempts import attempted
from shardline.config import Project, Run
from shardline.config.checks import num_cpus
from shardline.config.schema import flatten
from shardline.config.scripts import is_script
from shardline.errors import LaunchError
from shardline.files import make_folder
from shardline.identity import digest
from shardline.identity.content import file_sha256
from shardline.jobs.common import find_run

if TYPE_CHECKING:
    from shardline.tracking import Story


def train(
    config: Mapping[str, Any], run_id: str, log: Path, model: str, inputs: Mapping[str, str]
) -> None:
    """Start a run's ranks and wait until they have sealed it.

    Args:
        model: where the sealed model is to be; metrics and provenance go beside it.
        inputs: `spec` and `manifest`.
    """
    from shardline.tracking import tracked

    project, run = find_run(config, run_id)
    runtime = project.runtime
    work = project.store / "work" / run.id
    make_folder(work)
    named = files_of(run, inputs)
    files = [str(named["spec"]), str(named["manifest"])]
    program = [
        "-m", "shardline.worker", files[0],
        "--manifest", files[1],
        "--shards", str(project.store / "datasets" / run.dataset.id),
        "--results", str(Path(model).parent),
        *_rank_options(runtime, work, "train", run.id),
        "--verify", runtime["verify"],
        "--strict-env", runtime["strict_env"],
        *(["--ledger"] if runtime["ledger"] else []),
        "--tracking", *runtime["tracking"],
        "--log-every-steps", str(runtime["log_every_steps"]),
        "--checkpoint-every-steps", str(runtime["checkpoint"]["every_steps"]),
        "--checkpoint-every-min", str(runtime["checkpoint"]["every_min"]),
        "--checkpoints-kept", str(runtime["checkpoint"]["keep"]),
        "--best-kept", str(runtime["checkpoint"]["keep_best"]),
        *([] if runtime["checkpoint"]["asynchronous"] else ["--synchronous-checkpoints"]),
        "--set-by-row", *sorted(run.row.settings),
    ]  # fmt: skip
    story = _story_of(run, project.store, work, manifest=named["manifest"], model=model)
    python = _python(project, run, inputs)
    with (
        only_one(work, run.id),
        attempted(work, **_scheduled(os.environ)) as number,
        tracked(runtime["tracking"], story),
    ):
        program += ["--attempt", str(number)]
        _start_ranks(project, run, program, work, log, python, files)


def rehearse(
    config: Mapping[str, Any], run_id: str, log: Path, output: str, inputs: Mapping[str, str]
) -> None:
    """Start a run's ranks only to meet, and write what they found.

    Args:
        inputs: `environment`, where `runtime.environment` has one.
    """
    project, run = find_run(config, run_id)
    settings = run.settings
    work = project.store / "work" / f"{run.id}-rehearsal"
    make_folder(work)
    program = [
        "-m", "shardline.rehearse", run.id,
        *(f"--{key}={settings[key]}" for key in ("nodes", "devices", "accelerator", "strategy")),
        *_rank_options(project.runtime, work, "rehearse", run.id),
        "--output", output,
    ]  # fmt: skip
    _start_ranks(project, run, program, work, log, _python(project, run, inputs))


def _scheduled(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the scheduler tells of this job: its number, its start, its time in the queue."""
    from shardline.launch.allocation import find_allocation

    try:
        allocation = find_allocation(env)
    except LaunchError as error:  # a measurement is no reason to fail
        logging.warning("time in the queue is not known: %s", error)
        return {"job": env.get("SLURM_JOB_ID")}
    if allocation is None:
        return {"job": env.get("AZUREML_RUN_ID")}
    return {
        "job": allocation.job_id, "queue_s": allocation.queue_s, "started": allocation.started,
    }  # fmt: skip


def _rank_options(runtime: Mapping[str, Any], work: Path, rule: str, run_id: str) -> list[str]:
    """Return the options that every rank's program takes."""
    return [
        "--work", str(work),
        # not beside the job's log, which may be a copy that is soon deleted
        "--rank-logs", str(Path("logs") / rule / run_id),
        "--rendezvous-timeout-s", str(runtime["rendezvous_timeout_s"]),
        *(["--oversubscribe"] if runtime["oversubscribe"] else []),
    ]  # fmt: skip


def python_of_ranks(
    project: Project, *, gpus: bool, environment: str | None = None
) -> tuple[str, ...]:
    """Return the words that start Python in the environment that `runtime.environment` names.

    Args:
        gpus: whether what is started computes on GPUs.
        environment: what says where it is; the project's own file if left out.

    Raises:
        DataError: it is not made yet, or not there any more.
    """
    from shardline.environments.container import image_python, mounted
    from shardline.environments.interpreter import interpreter

    named = environment or project.environment
    if named and project.runtime["environment"] == "image":
        return image_python(
            Path(named),
            settings=project.image,
            runtime=project.runtime,
            lock=project.lock_file,
            folders=mounted(project.workdir, project.store),
            gpus=gpus,
        )
    return interpreter(Path(named) if named else None)


def _python(project: Project, run: Run, inputs: Mapping[str, str]) -> tuple[str, ...]:
    gpus = run.settings["accelerator"] == "gpu"
    return python_of_ranks(project, gpus=gpus, environment=inputs.get("environment"))


def _start_ranks(
    project: Project, run: Run, program: list[str], work: Path, log: Path,
    python: Sequence[str], files: Sequence[str] = (),
) -> None:  # fmt: skip
    """Start the ranks by the profile's launcher, and wait until they have ended; they read `files`."""
    from shardline.launch.remote import check_machines
    from shardline.launch.start import prepare_start
    from shardline.supervise import run_ranks

    devices = run.settings["devices"]
    start = prepare_start(
        program,
        run_id=run.id,
        settings=run.settings,
        runtime=project.runtime,
        env=os.environ,
        # in a scaling study a rank has as many CPUs at every size
        num_cpus=num_cpus() * devices // project.measured.get(run.id, devices),
        files=files,
        python=python,
    )
    logging.info("%s", start.summary)
    check_machines(start.plan)
    ranks = start.plan.ranks
    run_ranks(start.command, env=start.env, log=log, work=work, title=run.name, ranks=ranks)


@contextmanager
def only_one(work: Path, run_id: str) -> Iterator[None]:
    """Hold a run's folder: a job may outlive a Snakemake that was killed.

    Raises:
        LaunchError: another job trains this run.
    """
    from filelock import FileLock, Timeout

    try:
        with FileLock(work / "lock", timeout=0):
            yield
    except Timeout:
        raise LaunchError(
            f"{run_id} is being trained by another job, which holds {work / 'lock'}; "
            "wait until it has ended, or end it"
        ) from None


def _story_of(run: Run, store: Path, work: Path, *, manifest: Path, model: str) -> "Story":
    """Return what trackers are told of a training."""
    from shardline.provenance import git_commit
    from shardline.tracking import Story

    tags = {
        "shardline.identity": digest(run.document),
        "shardline.dataset": run.dataset.id,
        "shardline.manifest": file_sha256(manifest) if manifest.exists() else None,
        "shardline.commit": git_commit(Path.cwd()),
        "shardline.version": __version__,
    }
    return Story(
        run=run.id,
        name=run.name,
        dataset=run.dataset.id,
        store=str(store),
        work=str(work),
        metrics=str(work / ("output" if is_script(run.model_class) else "") / "metrics.jsonl"),
        model=model,
        params={"model": run.row.model, "dataset": run.dataset.name, **flatten(run.settings)},
        tags={key: value for key, value in tags.items() if value},
    )


def files_of(run: Run, inputs: Mapping[str, str]) -> dict[str, Path]:
    """Return the files that a run's jobs read, where Snakemake named none the project's own."""
    own = {
        "spec": run.folder / "run.json",
        "manifest": run.dataset.manifest,
        "model": run.model,
        "provenance": run.folder / "provenance.json",
    }
    return {name: Path(inputs.get(name) or path) for name, path in own.items()}
