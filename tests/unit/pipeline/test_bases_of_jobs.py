"""What the jobs of a run that begins from another run ask for, and what they read."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardline.checkpoints.folder import saving
from shardline.config.project import Project
from shardline.core.digests import file_sha256
from shardline.errors import ConfigError, DataError
from shardline.pipeline.bases import check_bases, init_of, read_bases
from shardline.pipeline.jobs import Jobs, trained_runs
from shardline.pipeline.members import members_of, members_of_ensemble
from tests.support.fake_project import FakeProject


class Wildcards(SimpleNamespace):
    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


def load(fake: FakeProject, base: str) -> Project:
    row = {"name": "tuned", "dataset": "table", "model": "linear", "seed": 2, "init_from": base}
    fake.rows = [*(one for one in fake.rows if one["name"] != "tuned"), row]
    return fake.load()


def asked(project: Project) -> list[str]:
    jobs = Jobs(project, None, is_main=True, cores=2)
    ask = jobs.of_job(lambda run: [base.path for base in run.bases if base.run])
    found = ask(Wildcards(run=project.named_runs()["tuned"].id))
    return [found] if isinstance(found, str) else found


def test_a_training_asks_for_the_weights_of_its_base_until_it_is_sealed(fake: FakeProject) -> None:
    project = load(fake, "run:flat")
    flat, tuned = (project.named_runs()[name] for name in ("flat", "tuned"))
    assert asked(project) == [f"results/runs/{flat.id}/model.safetensors"]
    fake.seal_run(tuned)
    assert asked(project) == []


def test_no_job_trains_a_base_outside_of_the_config(fake: FakeProject) -> None:
    project = load(fake, "run:flat")
    flat, tuned = (project.named_runs()[name] for name in ("flat", "tuned"))
    assert all(re.fullmatch(trained_runs(project), run.id) for run in (flat, tuned))
    fake.seal_run(flat)
    fake.rows = [row for row in fake.rows if row["name"] == "net"]
    project = load(fake, f"run:{flat.id}")
    assert asked(project) == [f"results/runs/{flat.id}/model.safetensors"]
    pattern = re.compile(f"results/runs/(?P<run>{trained_runs(project)})/model.safetensors")
    assert not pattern.fullmatch(asked(project)[0])
    assert pattern.fullmatch(f"results/runs/{tuned.id}/model.safetensors")
    # where it is missing, one sentence says so, and no run that is sealed asks for it
    check_bases(project, Path.exists, has_store=True)
    flat.model.unlink()
    with pytest.raises(
        ConfigError, match=r"weights of run .* are missing .* restore its results"
    ) as error:
        check_bases(project, Path.exists, has_store=True)
    assert len(str(error.value).splitlines()) == 1
    fake.seal_run(tuned)
    check_bases(project, Path.exists, has_store=True)


def test_jobs_elsewhere_need_the_whole_identity(fake: FakeProject) -> None:
    project = load(fake, "run:flat")
    flat = project.named_runs()["flat"]
    check_bases(project, Path.exists, has_store=False)
    fake.seal_run(flat)
    fake.rows = [row for row in fake.rows if row["name"] == "net"]
    with pytest.raises(ConfigError, match=f"write run:{flat.spec.identity}"):
        check_bases(load(fake, f"run:{flat.id}"), Path.exists, has_store=False)
    check_bases(load(fake, f"run:{flat.spec.identity}"), Path.exists, has_store=False)


def test_the_record_has_the_digest_of_the_weights(fake: FakeProject) -> None:
    project = load(fake, "run:flat")
    flat, tuned = (project.named_runs()[name] for name in ("flat", "tuned"))
    work = Path("store/work") / tuned.id
    with pytest.raises(DataError, match="are missing"):
        init_of(tuned, {}, work)
    fake.seal_run(flat)
    copy = Path("elsewhere/model.safetensors")  # as a storage has it
    copy.parent.mkdir()
    copy.write_bytes(b"weights")
    for inputs, file in (({}, flat.model), ({"bases": str(copy)}, copy)):
        init = init_of(tuned, inputs, work)
        assert init
        assert init.file.resolve() == file.resolve()
        (base,) = read_bases(tuned, inputs, init)
        assert (base.run, base.identity) == (flat.id, flat.spec.identity)
        assert base.sha256 == init.sha256 == file_sha256(file)


def test_the_last_state_of_a_base_is_its_newest_training_checkpoint(fake: FakeProject) -> None:
    project = load(fake, "run:flat@last")
    flat, tuned = (project.named_runs()[name] for name in ("flat", "tuned"))
    fake.seal_run(flat)
    work = Path("store/work")
    with pytest.raises(DataError, match="is not kept"):
        init_of(tuned, {}, work / tuned.id)
    with pytest.raises(ConfigError, match="is not kept"):
        check_bases(project, Path.exists, has_store=True)
    check_bases(project, Path.exists, has_store=False)
    for step in (3, 12):
        with saving(
            work / flat.id / "checkpoints", step=step, epoch=0, identity=flat.spec.identity,
            world_size=1, keep=2,
        ) as folder:  # fmt: skip
            (folder / "state.pt").write_text("state")
    init = init_of(tuned, {}, work / tuned.id)
    assert init
    assert init.file == work / flat.id / "checkpoints/step-00000012"
    (base,) = read_bases(tuned, {}, init)
    assert (base.state, base.step) == ("last", 12)
    assert base.sha256 == file_sha256(init.file / "manifest.json")
    check_bases(project, Path.exists, has_store=True)


class Elsewhere:
    """A storage that has all declared files, as a job on another machine finds it."""

    def exists(self, path: Path) -> bool:
        return True


def test_a_job_elsewhere_asks_for_all_weights_of_a_chain_and_reads_the_copies(
    fake: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardline.pipeline.bases.file_sha256", lambda path: str(path))
    row = {"dataset": "table", "model": "linear"}
    fake.rows = [
        {**row, "name": "base", "seed": 1},
        {**row, "name": "tuned", "seed": 2, "init_from": "run:base"},
        {**row, "name": "mean", "average": "[run:tuned, run:base]"},
        {**row, "name": "both", "ensemble": "[run:mean, run:base]"},
    ]
    project = fake.load()
    runs = project.named_runs()
    jobs = Jobs(project, Elsewhere(), is_main=False, cores=2)  # type: ignore[arg-type]
    trains = jobs.of_job(lambda run: [base.path for base in run.bases if base.is_made])
    evaluates = jobs.of_job(lambda run: run.members_of_ensemble)

    def copies(found: list[str] | str) -> list[str]:
        names = [found] if isinstance(found, str) else found
        copied = [Path("copies", name) for name in names]
        for path in copied:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return [*map(str, copied)]

    for name, bases in {
        "tuned": ["base"],
        "mean": ["tuned", "base"],
        "both": ["mean", "base"],
    }.items():
        run, expected = (
            runs[name],
            [f"copies/results/runs/{runs[one].id}/model.safetensors" for one in bases],
        )
        given = copies(trains(Wildcards(run=run.id)))
        assert given == expected
        init = init_of(run, {"bases": given}, Path("work"))
        assert [str(init.file)] == expected if init else name != "tuned"
        assert [one.sha256 for one in read_bases(run, {"bases": given}, init)] == expected
        read = [] if init else [str(one.file) for one in members_of(run, {"bases": given})]
        assert read == ([] if init else expected)
    both = runs["both"]
    given = copies(evaluates(Wildcards(run=both.id, evaluation=both.evaluation_id)))
    assert [str(one.file) for one in members_of_ensemble(both, {"bases": given})] == given
    assert len(given) == 2
