"""A class that moved is the same model: it is imported from where it lies now."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from shardline.config import resolved
from shardline.config.resolved import as_plain, as_type
from shardline.config.settings import Settings
from shardline.core.digests import file_sha256
from shardline.core.files import read_json, write_json
from shardline.pipeline import run_jobs
from shardline.pipeline import training as ranks
from shardline.records.evaluations import Evaluated, HeadlineValue
from shardline.training import evaluate as evaluation
from shardline.training.rank_task import read_run
from tests.support.fake_project import MODEL, FakeProject
from tests.support.more_settings import extended, newer

MOVED = "nets.deep:Net"


def move(fake: FakeProject) -> None:
    """Move the class of the run `net`, and have its results say where it was."""
    fake.seal_all()
    fake.workspace.write("nets/deep.py", MODEL)
    fake.rows[0]["model"] = MOVED
    run = fake.run("net")
    fake.seal_dataset(fake.load(), run.dataset)
    fake.seal_run(run)
    spec = read_json(run.folder / "run.json", remedy="")
    write_json(run.folder / "run.json", {**spec, "model_class": "mypkg.models:Net"})


def test_ranks_are_told_where_the_class_is(
    fake: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(fake)
    started: list[Any] = []
    monkeypatch.setattr(ranks, "start_ranks", lambda *args, **_: started.extend(args))
    run = fake.run("net")
    ranks.train(fake.plan("net"), Path("log"), str(run.model), {})
    task = started[1]
    assert task.run.model_class == MOVED
    assert read_run(task.action.run_json).model_class == "mypkg.models:Net"


def test_the_evaluation_takes_the_class_from_where_it_is(
    fake: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(fake)
    found: dict[str, Any] = {}
    result = Evaluated(headline=HeadlineValue(metric="accuracy", value=0.5))
    monkeypatch.setattr(
        evaluation, "evaluate", lambda spec, **_: found.update(structs.asdict(spec)) or result
    )
    monkeypatch.setattr(run_jobs, "check_environment", lambda *_: None)
    run = fake.run("net")
    run_jobs.evaluate(fake.plan("net"), str(run.evaluation), {})
    assert (found["model_class"], found["settings"]) == (MOVED, run.settings)
    sealed = read_json(run.evaluation, remedy="")
    assert sealed["files"] == {run.model.name: file_sha256(run.model)}


def test_ranks_fill_in_what_an_earlier_version_did_not_know() -> None:
    first = extended(Settings, {"scale": (float, 1.0)})
    # its default may change later
    table = extended(first, {"mix.alpha": (newer(float, 0)[0], 0.5)})
    settings = as_type({"scale": 2.0}, table)
    assert as_plain(settings) == {"scale": 2.0, "mix": {"alpha": 0.0}}
    assert resolved.without_legacy_values({"mix": {"alpha": 0.0}}, table) == {}
    assert as_plain(as_type(as_plain(settings), first)) == {"scale": 2.0}, (
        "and pass over later keys"
    )


def test_a_moved_class_has_the_digest_that_it_had(fake: FakeProject) -> None:
    old = fake.run("net")
    fake.workspace.write("nets/deep.py", MODEL)
    fake.rows[0]["model"] = MOVED
    assert fake.run("net").document == old.document
