"""Shardline's training steps beside those of a bare loop, in turn."""

import json
import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from benchmarks.throughput.turns import Program, Turn
from benchmarks.throughput.works import WORKS, Work, write_files
from benchmarks.turns import REPOSITORY
from tests.support.built import build
from tests.support.rank_tasks import rank_runtime, rank_task

from shardline.config.load import load_project
from shardline.core.rank_environment import rank_variables
from shardline.pipeline import run_jobs as jobs
from shardline.training.rank_task import write_task

_NEVER = 1000  # epochs, more than any turn comes to


class Compared(NamedTuple):
    """What both programs took for the same number of steps, in each round."""

    work: Work
    ours: list[Turn]
    bare: list[Turn]


def compare(name: str, folder: Path, rounds: int, threads: int) -> Compared:
    """Train both in turn, which begins with each of them in alternate rounds."""
    work = WORKS[name]
    compared = Compared(work, [], [])
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'src'}:{REPOSITORY}"
    variables = rank_variables(threads, {}, "")  # the same for both
    programs = dict(_start(name, folder, variables))
    try:
        for number in range(rounds):
            order = list(programs) if number % 2 else list(programs)[::-1]
            for which in order:
                getattr(compared, which).append(programs[which].turn(work.steps))
    finally:
        for program in programs.values():
            program.end()
    return compared


def _start(name: str, folder: Path, variables: dict[str, str]) -> Iterator[tuple[str, Program]]:
    place = folder / name.replace(", ", "-")
    spec = _prepare(WORKS[name], place / "project")
    for which, words in (
        ("bare", ["-m", "benchmarks.throughput.bare", name]),
        ("ours", ["-m", "shardline.training.rank", str(spec)]),
    ):
        (place / which).mkdir()
        program = Program(words, place / which, variables)
        program.turn(WORKS[name].steps)  # warms up, and ends once it is there
        yield which, program


def _prepare(work: Work, folder: Path) -> Path:
    """Build the dataset, resolve the run, and return the file that a rank is given."""
    folder.mkdir(parents=True)
    write_files(folder)
    config = {
        "runs": "runs.tsv",
        "defaults": {
            "devices": 1, "accelerator": "cpu", "global_batch": work.batch, "data": work.data,
            "model_args": work.model_args, "optim": {"name": "adam", "lr": 0.001},
            "trainer": {"max_epochs": _NEVER, "validate_every_epochs": _NEVER}, "early_stopping": {"patience": 0},
        },
        "datasets": {"rows": {"source": work.source, "shards": 2}},
    }  # fmt: skip
    (folder / "runs.tsv").write_text(
        f"name\tdataset\tmodel\ntimed\trows\tbenchmarks.throughput.works:{work.model.__name__}\n"
    )
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(json.dumps(config))
    with chdir(folder):
        project = load_project(config)
        (run,) = project.runs.values()
        shards = build(project, run.dataset)
        jobs.resolve_run(project.part(runs=[run.id]), "run.json", "identity.json")
        runtime = rank_runtime(
            log_every_steps=50, ledger=True, strict_env="warn", checkpoint={"every_min": 10.0}
        )
        spec = rank_task(
            folder / "made", run_json=folder / "run.json", manifest=folder / run.dataset.manifest,
            shards=folder / shards, runtime=runtime,
        )  # fmt: skip
        for made in ("work", "results", "logs"):
            (folder / "made" / made).mkdir(parents=True, exist_ok=True)
    path = folder / "rank.json"
    write_task(path, spec)
    return path
