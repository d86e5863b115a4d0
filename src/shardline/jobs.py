"""What each rule's job does, from the files that Snakemake names to the files that it expects."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardline.config import Dataset, Project, Run, load_project
from shardline.config.checks import num_cpus
from shardline.config.scripts import is_script
from shardline.errors import ConfigError, LaunchError, ShardlineError
from shardline.files import make_folder, read_json, write_json
from shardline.identity import digest

if TYPE_CHECKING:
    from shardline.sources import Source

_T = TypeVar("_T")
_REBUILD = "run the pipeline again to write it"
_REMAKE = "delete it and run the pipeline again to write it"


@contextmanager
def job(log: str) -> Iterator[Path]:
    """Run a rule's job: one clear sentence for a user's mistake, a traceback for a bug of ours.

    Args:
        log: path of the rule's log; gets everything.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, filemode="a", level=logging.INFO, format="%(message)s", force=True
    )
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    try:
        yield path
    except ShardlineError as error:
        logging.error("%s", error)
        _leave(str(error), error.exit_code)
    except KeyboardInterrupt:
        _leave("interrupted; the next run continues from what is on disk", 130)
    except Exception:
        logging.exception("unexpected error")
        _leave(traceback.format_exc(), 1)


def _leave(message: str, code: int) -> None:
    print(f"\n{message}\n", file=sys.stderr, flush=True)
    sys.exit(code)


def find_run(config: Mapping[str, Any], run_id: str) -> tuple[Project, Run]:
    """Return the project and one of its runs.

    Raises:
        ConfigError: code or config changed since the workflow was started, so
            that the run's identity is now another one.
    """
    project = load_project(config)
    return project, _of_this_identity(project.runs, run_id)


def _of_this_identity(known: Mapping[str, _T], identity: str) -> _T:
    if identity not in known:
        raise ConfigError(
            f"{identity} no longer has this identity: code, config or source changed while the "
            "pipeline ran; start it again"
        )
    return known[identity]


def _open_dataset(config: Mapping[str, Any], dataset_id: str) -> "tuple[Project, Dataset, Source]":
    """Return the project, one of its datasets and that one's source."""
    from shardline.shards import make_source
    from shardline.sources.remote import fetch

    project = load_project(config)
    dataset = _of_this_identity(project.datasets, dataset_id)
    settings = dataset.settings
    fetch(settings["source"].get("files", ()), project.store)
    source = make_source(
        dataset.source_class, settings["source"], num_shards=settings["shards"], files=dataset.files
    )
    return project, dataset, source


def resolve_run(config: Mapping[str, Any], run_id: str, run_json: str, identity_json: str) -> None:
    """Write a run's resolved settings and its identity document."""
    _, run = find_run(config, run_id)
    write_json(Path(identity_json), run.document)
    document = {
        "run": run.id,
        "name": run.name,
        "identity": digest(run.document),
        "dataset": {"name": run.dataset.name, "id": run.dataset.id},
        "model": run.row.model,
        "model_class": run.model_class,
        "settings": run.settings,
        "varied": run.row.varied,
    }
    write_json(Path(run_json), document)


def build_shards(config: Mapping[str, Any], dataset_id: str, part: str, part_json: str) -> None:
    """Write the shards of one part, then the part's list of them."""
    from shardline import shards
    from shardline.progress import ShardProgress

    _, dataset, source = _open_dataset(config, dataset_id)
    numbers = _of_this_identity(dataset.parts, part)
    folder, splits = Path(part_json).parents[1], dataset.settings["splits"]
    built = []
    with ShardProgress(f"shards {part}", len(numbers)) as progress:
        for record, statistics in shards.build_shards(source, numbers, splits, folder):
            rows = sum(record.rows.values())
            logging.info("%s: %d rows, %d bytes", record.file, rows, record.bytes)
            built.append((record, statistics))
            progress.advance(rows)
    told = [sentence for number in numbers for sentence in source.skipped.get(number, [])]
    if told:
        logging.warning("%d rows or files were skipped, the first: %s", len(told), told[0])
    write_json(Path(part_json), shards.describe_part(dataset_id, built, source.skipped))


def seal_dataset(config: Mapping[str, Any], dataset_id: str, manifest: str) -> None:
    """Merge the parts into the manifest."""
    from shardline.shards import seal

    project, dataset, source = _open_dataset(config, dataset_id)
    folder = project.store / "datasets" / dataset_id / "parts"
    documents = [read_json(folder / f"{part}.json", remedy=_REMAKE) for part in dataset.parts]
    sealed = seal(
        documents, dataset=dataset_id, name=dataset.name, source=source, document=dataset.document
    )
    write_json(Path(manifest), sealed)
    skipped = sealed["skipped"]
    if skipped["count"]:
        logging.warning("%d rows or files of the source were skipped", skipped["count"])


def train(config: Mapping[str, Any], run_id: str, log: Path) -> None:
    """Start a run's ranks and wait until they have sealed it."""
    project, run = find_run(config, run_id)
    runtime = project.runtime
    work = project.store / "work" / run.id
    make_folder(work)
    program = [
        "-m", "shardline.worker", str(run.folder / "run.json"),
        "--manifest", str(run.dataset.manifest),
        "--shards", str(project.store / "datasets" / run.dataset.id),
        "--work", str(work),
        "--results", str(run.folder),
        "--rank-logs", str(log.with_suffix("")),
        "--rendezvous-timeout-s", str(runtime["rendezvous_timeout_s"]),
        "--verify", runtime["verify"],
        *(["--ledger"] if runtime["ledger"] else []),
        *(["--oversubscribe"] if runtime["oversubscribe"] else []),
        "--log-every-steps", str(runtime["log_every_steps"]),
        "--checkpoint-every-steps", str(runtime["checkpoint_every_steps"]),
        "--checkpoints-kept", str(runtime["checkpoints_kept"]),
        "--set-by-row", *sorted(run.row.settings),
    ]  # fmt: skip
    with _only_one(work, run.id):
        _start_ranks(project, run, program, work, log)


def rehearse(config: Mapping[str, Any], run_id: str, log: Path, output: str) -> None:
    """Start a run's ranks only to meet, and write what they found."""
    project, run = find_run(config, run_id)
    settings, runtime = run.settings, project.runtime
    work = project.store / "work" / f"{run.id}-rehearsal"
    make_folder(work)
    program = [
        "-m", "shardline.rehearse", run.id,
        *(f"--{key}={settings[key]}" for key in ("nodes", "devices", "accelerator", "strategy")),
        "--work", str(work),
        "--rank-logs", str(log.with_suffix("")),
        "--rendezvous-timeout-s", str(runtime["rendezvous_timeout_s"]),
        *(["--oversubscribe"] if runtime["oversubscribe"] else []),
        "--output", output,
    ]  # fmt: skip
    _start_ranks(project, run, program, work, log)


def _start_ranks(project: Project, run: Run, program: list[str], work: Path, log: Path) -> None:
    """Start the ranks by the profile's launcher, and wait until they have ended."""
    from shardline.launch.remote import check_machines
    from shardline.launch.start import prepare_start
    from shardline.supervise import run_ranks

    start = prepare_start(
        program,
        run_id=run.id,
        settings=run.settings,
        runtime=project.runtime,
        env=os.environ,
        num_cpus=num_cpus(),
    )
    logging.info("%s", start.summary)
    check_machines(start.plan)
    ranks = start.plan.ranks
    run_ranks(start.command, env=start.env, log=log, work=work, title=run.name, ranks=ranks)


@contextmanager
def _only_one(work: Path, run_id: str) -> Iterator[None]:
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


def evaluate(config: Mapping[str, Any], run_id: str, evaluation: str) -> None:
    """Evaluate a sealed model; of a script's, tell what the script found."""
    project, run = find_run(config, run_id)
    _of_this_identity({run.evaluation_id: run}, Path(evaluation).stem)
    judge = _take_over if is_script(run.model_class) else _evaluate
    result = judge(project, run)
    write_json(Path(evaluation), {"run": run.id, **result, "identity": run.evaluation_document})


def _take_over(project: Project, run: Run) -> dict[str, Any]:
    from shardline.handover import evaluation_of

    return evaluation_of(
        read_json(run.folder / "provenance.json", remedy=_REMAKE),
        read_json(run.dataset.manifest, remedy=_REMAKE),
        run.settings,
    )


def _evaluate(project: Project, run: Run) -> dict[str, Any]:
    from shardline.evaluate import evaluate as evaluate_model

    document = read_json(run.folder / "run.json", remedy=_REBUILD)
    document["settings"]["evaluation"] = run.settings["evaluation"]
    return evaluate_model(
        document,
        model_file=run.folder / "model.safetensors",
        manifest=run.dataset.manifest,
        shards=project.store / "datasets" / run.dataset.id,
        verify=project.runtime["verify"],
    )


def report(config: Mapping[str, Any], page: str) -> None:
    """Write the report over all runs of the present table."""
    from shardline.report import RunFiles, write_report

    project = load_project(config)
    _of_this_identity({project.report.parent.name: project}, Path(page).parent.name)
    files = [
        RunFiles(
            run=run.folder / "run.json",
            metrics=run.folder / "metrics.jsonl",
            evaluation=run.evaluation,
            provenance=run.folder / "provenance.json",
        )
        for run in project.runs.values()
    ]
    write_report(files, Path(page), generated_from=project.table)


def publish(project: Project) -> None:
    """Point the fixed names at the present results: what people and bookmarks use.

    `results/latest/{name}`, `results/runs/{run}/evaluation.json` and
    `results/report` are links; what they point at is named by identity.
    """
    for run in project.runs.values():
        if run.is_sealed:
            _link(run.folder / "evaluation.json", run.evaluation)
            _link(Path("results/latest") / run.name, run.folder)
    if project.report.exists():
        _link(Path("results/report"), project.report.parent)


def _link(link: Path, target: Path) -> None:
    relative = os.path.relpath(target, link.parent)
    if link.is_symlink() and link.readlink() == Path(relative):
        return
    if link.exists() and not link.is_symlink():
        return  # somebody's own file or folder
    link.parent.mkdir(parents=True, exist_ok=True)
    scratch = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(relative)
    scratch.replace(link)
