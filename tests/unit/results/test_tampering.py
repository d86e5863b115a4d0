"""What is altered in the store is found, or changes nothing: parts, states, attempts, markers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import convert

from shardline.checkpoints.folder import find_damage, newest_good, saving
from shardline.config.layout import LAYOUT, check_layout
from shardline.config.plans import DatasetPlan
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.core.files import json_bytes, read_json, write_json
from shardline.core.seals import seal
from shardline.core.world import World
from shardline.data.integrity import Verifier
from shardline.data.parts import read_part
from shardline.data.run_batches import RunBatches
from shardline.data.shard_map import ShardMap
from shardline.errors import ConfigError, DataError
from shardline.pipeline.dataset_jobs import build_shards, seal_dataset
from shardline.pipeline.links import publish
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline.records.trainings import Training
from shardline.results.verify import verify_dataset
from shardline.results.verify_ledger import problems_of_ledger
from shardline.results.verify_names import verify_names
from shardline.results.verify_runs import verify_run
from shardline.results.verify_store import check_markers
from shardline.supervision.attempt_log import (
    begin_attempt,
    read_attempts,
    record_resumed_step,
    sealed_log,
)
from shardline_io.ledger_files import file_name
from tests.support.fake_project import FakeProject
from tests.support.tampering import bytes_changed, changed, edits, fields_changed

MINE = "a" * 64
CASES = settings(
    max_examples=80, deadline=None, derandomize=True, print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


def variants(content: bytes) -> Iterator[bytes]:
    """Yield a JSON file with each byte and each field altered."""
    yield from bytes_changed(content)
    yield from (json_bytes(document) for document in fields_changed(json.loads(content)))


# --- parts --------------------------------------------------------------------------------------


class Built:
    """A dataset whose shards are built and not sealed, in a folder of its own."""

    def __init__(self, fake: FakeProject) -> None:
        self.fake = fake
        table = fake.config["datasets"]["table"]
        table["shards_per_job"] = 2
        table["source"] |= {"rows_per_shard": 60, "features": 3}
        fake.config["runtime"] = {"strict_env": "warn"}
        self.project = fake.load()
        self.dataset: DatasetPlan = fake.run("flat").dataset
        self.folder = self.project.store / "datasets" / self.dataset.id
        self.plan = self.project.part(datasets=[self.dataset.id])
        for part in self.dataset.parts:
            build_shards(self.plan, part, str(self.part(part)))

    def part(self, name: str = "00002-00003") -> Path:
        return self.folder / "parts" / f"{name}.json"

    def seal(self) -> dict[str, Any]:
        manifest = self.dataset.manifest
        provenance = manifest.with_name("provenance.json")
        seal_dataset(self.plan, str(manifest), str(provenance))
        document: dict[str, Any] = read_json(manifest, remedy="")
        return document


@pytest.fixture
def built(fake: FakeProject) -> Built:
    return Built(fake)


def shift(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part whose means are 50 more."""
    mean = part["statistics"][0]["features"]["mean"]
    return changed(part, ("statistics", 0, "features", "mean"), [one + 50 for one in mean])


def test_an_altered_list_of_a_part_is_not_sealed(built: Built) -> None:
    whole = read_json(built.part(), remedy="")
    write_json(built.part(), shift(whole))
    with pytest.raises(
        DataError, match=r"00002-00003.json: the digest of its content is .*; delete"
    ):
        built.seal()
    assert not built.dataset.manifest.exists()
    write_json(built.part(), whole)
    assert built.seal()["statistics"]["features"]["count"] > 0


def test_statistics_that_were_sealed_wrongly_are_found_by_verify_deep(
    built: Built,
) -> None:
    manifest = built.seal()
    mean = manifest["statistics"]["features"]["mean"]
    wrong = changed(manifest, ("statistics", "features", "mean"), [one + 50 for one in mean])
    write_json(built.dataset.manifest, wrong)
    built.dataset.manifest.with_name("provenance.json").unlink()
    assert verify_dataset(built.project, built.dataset.id).problems == []
    (problem,) = verify_dataset(built.project, built.dataset.id, deep=True).problems
    assert "the shards' rows and the manifest differ in mean; delete" in problem


@pytest.mark.parametrize("name", ["00000-00001", "00002-00003x", "00004-00005"])
def test_a_part_under_another_name_is_found(built: Built, name: str) -> None:
    built.part().rename(built.part(name))
    with pytest.raises(DataError, match=f"{name}.json lists 2 shards from 2 on, expected {name}"):
        read_part(built.part(name), built.dataset.id, remedy="delete it")
    with pytest.raises(DataError, match=r"belongs to dataset .*, expected other"):
        read_part(built.part("00000-00001"), "other", remedy="delete it")


def test_each_altered_byte_and_field_of_a_part_is_found_or_changes_nothing(built: Built) -> None:
    path = built.part()
    content = path.read_bytes()
    whole, found, count = read_part(path, built.dataset.id, remedy=""), 0, 0
    for altered in variants(content):
        path.write_bytes(altered)
        count += 1
        try:
            part = read_part(path, built.dataset.id, remedy="delete it")
        except DataError:
            found += 1
        else:
            assert part == whole
    assert found > 0.98 * count > 1000


def test_generated_edits_of_a_part_are_found(built: Built) -> None:
    path = built.part()
    whole = read_json(path, remedy="")

    @CASES
    @given(edits(whole, keep="sha256"))
    def check(document: dict[str, Any]) -> None:
        path.write_bytes(json_bytes(document))
        if document == whole:
            return  # the edits took each other back
        with pytest.raises(DataError):
            read_part(path, built.dataset.id, remedy="delete it")

    check()


# --- training checkpoints -----------------------------------------------------------------------


@pytest.fixture
def states(tmp_path: Path) -> Path:
    """Two training checkpoints, of steps 10 and 20."""
    folder = tmp_path / "checkpoints"
    for step in (10, 20):
        with saving(folder, step=step, epoch=1, identity=MINE, world_size=2, keep=2) as scratch:
            (scratch / "state.pt").write_bytes(b"state")
    return folder


def test_each_altered_byte_and_field_of_a_state_s_manifest_is_found_or_changes_nothing(
    states: Path,
) -> None:
    whole, _ = newest_good(states, MINE)
    path = states / "step-00000020" / "manifest.json"
    content, resumed = path.read_bytes(), set()
    for altered in variants(content):
        path.write_bytes(altered)
        saved, passed = newest_good(states, MINE)
        assert saved is not None
        assert saved == whole or (saved.step == 10 and "is damaged" in passed[0])
        assert (find_damage(states, MINE)[0] == 1) == (saved.step == 10)
        resumed.add(saved.step)
    assert resumed == {10, 20}, "a manifest without its seal is one of an earlier version"
    path.write_bytes(content)
    assert find_damage(states, MINE) == (2, [])


def test_each_altered_byte_of_a_state_is_found(states: Path) -> None:
    path = states / "step-00000020" / "state.pt"
    for altered in bytes_changed(path.read_bytes()):
        path.write_bytes(altered)
        saved, _ = newest_good(states, MINE)
        assert saved is not None
        assert saved.step == 10


# --- attempts -----------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A run's folder with the lines of two attempts."""
    begin_attempt(tmp_path, job="1", queue_s=1.5)
    record_resumed_step(tmp_path, 1, 0, {}, world=1)
    begin_attempt(tmp_path, retry=1)
    return tmp_path


def test_each_altered_byte_and_field_of_the_attempts_is_found_or_changes_nothing(
    work: Path,
) -> None:
    path, whole = work / "attempts.jsonl", read_attempts(work)
    content = path.read_bytes()
    lines = [json.loads(line) for line in content.splitlines()]
    assert len({line["sha256"] for line in lines}) == 1
    altered = [
        *bytes_changed(content),
        *(
            "".join(json.dumps(line) + "\n" for line in one).encode()
            for one in fields_changed(lines)
        ),
    ]
    found = 0
    for one in altered:
        path.write_bytes(one)
        try:
            assert read_attempts(work) == whole
        except DataError:
            found += 1
    assert found > 0.95 * len(altered), "the rest are spaces, and what lies behind a whole line"


def test_the_attempts_of_a_folder_that_is_gone_are_none(work: Path) -> None:
    assert begin_attempt(work) == 3
    (work / "attempts.jsonl").unlink()
    assert sealed_log(work) == []


def test_attempts_of_another_run_are_found_by_what_was_sealed(
    fake: FakeProject, work: Path
) -> None:
    fake.seal_all()
    run = fake.run("flat")
    path, folder = run.folder / "provenance.json", run.layout.work(run.id)
    folder.mkdir(parents=True)
    log = sealed_log(work)
    write_json(path, seal({**read_json(path, remedy=""), "attempt_log": [*map(encode, log)]}))
    shutil.copy(work / "attempts.jsonl", folder)
    assert verify_run(run.layout, run.id, deep=True).problems == []
    (folder / "attempts.jsonl").unlink()
    assert verify_run(run.layout, run.id, deep=True).problems == [], "as the remedy leaves them"
    begin_attempt(folder)
    (problem,) = verify_run(run.layout, run.id, deep=True).problems
    assert problem.startswith(f"{folder}/attempts.jsonl has other attempts than the attempt_log of")


# --- pointers, the layout, names and links ------------------------------------------------------


def test_each_altered_byte_of_a_pointer_is_found_or_changes_nothing(states: Path) -> None:
    path = states / "latest.json"
    altered = list(variants(path.read_bytes()))
    for content in [*altered, b'{"newest": "."}', b'{"newest": "step-00000030"}']:
        path.write_bytes(content)
        good, problems = find_damage(states, MINE)
        assert good == 2
        try:
            newest = json.loads(content)["newest"]
        except (ValueError, KeyError, TypeError):
            newest = None
        assert bool(problems) == (newest not in ("step-00000020", "step-00000010"))


def test_each_altered_byte_of_the_layout_is_refused_or_changes_nothing(fake: FakeProject) -> None:
    layout = fake.seal_all().layout
    path = layout.layout_file
    content, refused = path.read_bytes(), 0
    for altered in variants(content):
        path.write_bytes(altered)
        try:
            check_layout(layout)
        except ConfigError:
            refused += 1
        else:
            assert json.loads(altered) == {"layout": LAYOUT}
    assert refused > 20
    path.write_text(json.dumps({"layout": LAYOUT}))  # as the message says
    check_layout(layout)


def test_each_altered_byte_and_field_of_the_history_of_names_is_found(fake: FakeProject) -> None:
    project = fake.seal_all()
    path = project.layout.names_file
    first, rest = path.read_bytes().split(b"\n", 1)
    fields = [json.dumps(one).encode() + b"\n" for one in fields_changed(json.loads(first))]
    assert verify_names(project.layout, deep=True).problems == []
    for altered in [*bytes_changed(first + b"\n"), *fields, b""]:
        path.write_bytes(altered + rest)
        if not verify_names(project.layout, deep=True).problems:
            found = json.loads(altered)
            assert {**found, "sha256": ""} == {**json.loads(first), "sha256": ""}


def test_a_history_after_a_kill_is_read(fake: FakeProject) -> None:
    project = fake.seal_all()
    path = project.layout.names_file
    lines = path.read_text().splitlines(keepends=True)
    path.write_bytes(path.read_bytes()[:-9])
    (problem, *_) = verify_names(project.layout, deep=True).problems
    assert f"{path}, line {len(lines)} is cut off or was changed; delete the line" in problem
    path.write_text("".join(lines[:-1]))
    fake.load()  # as the message says
    assert verify_names(project.layout, deep=True).problems == []


def test_links_that_lead_elsewhere_are_found(fake: FakeProject) -> None:
    fake.rows.append({**fake.rows[1], "name": "other", "seed": 5})
    project = fake.seal_all()
    flat, other = (project.named_runs()[name] for name in ("flat", "other"))
    publish(project)
    layout = project.layout
    verdict = verify_names(layout)
    assert verdict.problems == []
    assert verdict.summary == "8 links"  # 3 runs, their evaluations, 2 datasets
    (Path.cwd() / "mine").mkdir()
    cases = {
        layout.latest_runs / "flat": [
            (f"../runs/{other.id}", 'has never been called "flat"'),
            ("../runs/ffffffffffff", 'has never been called "flat"'),
            ("../../mine", "is no place of its results"),
            ("/", "is no place of its results"),
            (f"../runs/{flat.id}/..", "is no place of its results"),
        ],
        layout.latest_datasets / "table": [("../latest/flat", "is no place of its results")],
        flat.folder / "evaluation.json": [
            (f"../{other.id}/evaluations/{other.evaluation.name}", "is no place of its results"),
            (f"evaluations/{'f' * 12}.json", "which does not exist"),
        ],
        layout.latest_report: [("../mine", "is no place of its results")],
    }
    for link, targets in cases.items():
        before = link.readlink() if link.is_symlink() else None
        for target, message in targets:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            (problem,) = verify_names(layout).problems
            assert problem.startswith(f"{link} points to ")
            assert message in problem
        link.unlink()  # as the message says
        assert verify_names(layout).problems == []
        if before:
            link.symlink_to(before)
    shutil.rmtree(flat.folder)
    (problem,) = verify_names(layout).problems
    assert problem.startswith(f"{layout.latest_runs / 'flat'} points to ")
    assert "which does not exist; delete the link" in problem


# --- the sample ledger --------------------------------------------------------------------------


class Ledger:
    """The ledger of two ranks, written from the batches that they were given."""

    def __init__(self, built: Built, steps: int, start: int = 0) -> None:
        built.seal()
        self.run = built.fake.run("flat")
        self.folder = self.run.layout.work(self.run.id) / "ledger"
        self.folder.mkdir(parents=True)
        self.place = DatasetPlace(manifest=built.dataset.manifest, shards=built.folder)
        self.spec = RunSpec(
            run=self.run.id, model_class=self.run.model_class, settings=self.run.settings
        )
        for rank in range(2):
            self._write(rank, steps, start)

    def _write(self, rank: int, steps: int, start: int) -> None:
        world = World(
            rank=rank, local_rank=rank, world_size=2, local_world_size=2, master_addr="", master_port=0,
            launcher="none",
        )  # fmt: skip
        stream, order = RunBatches([self.place], self.run.settings).train(world)
        step, lines = 0, []
        for epoch in range(2):
            for _ in stream.batches(epoch):
                step += 1
                if start < step <= steps:
                    line = {"step": step, "epoch": epoch, "ids": stream.batch_ids.tolist()}
                    lines.append(json.dumps(line) + "\n")
        assert order.steps(0) < steps <= step, "more than an epoch"
        self.path(rank, start).write_text("".join(lines))

    def path(self, rank: int, start: int = 0) -> Path:
        return self.folder / file_name(start, rank, 2)

    def problems(self, **training: int) -> list[str]:
        return problems_of_ledger(self.folder, self.spec, [self.place], Training(**training))[1]


def test_each_altered_byte_of_a_ledger_is_found_or_changes_nothing(built: Built) -> None:
    built.fake.config["defaults"]["global_batch"] = 64
    ledger = Ledger(built, steps=4)
    sealed = {"resumed_step": 0, "steps": 4}
    assert ledger.problems(**sealed) == ledger.problems() == []
    path = ledger.path(1)
    whole = path.read_bytes()
    records = [json.loads(line) for line in whole.splitlines()]
    line = whole.splitlines(keepends=True)[1]
    begin = whole.index(line)
    altered = [whole[:begin] + one + whole[begin + len(line) :] for one in bytes_changed(line)]
    for content in [*altered, whole[:-1], whole[: -len(line)], b"", whole + line]:
        path.write_bytes(content)
        if not ledger.problems(**sealed):
            assert [json.loads(one) for one in content.splitlines()] == records
    path.write_bytes(ledger.path(0).read_bytes())
    (problem,) = ledger.problems(**sealed)
    assert problem.endswith(f"step 1 in {path.name} has other samples than the planned order")
    path.unlink()
    (problem,) = ledger.problems(**sealed)
    assert problem.endswith("the attempt that resumed from step 0 lacks samples of step 1")


def test_what_a_kill_leaves_of_a_ledger_is_no_damage(built: Built) -> None:
    built.fake.config["defaults"]["global_batch"] = 64
    ledger = Ledger(built, steps=4)
    for rank, cut in ((0, 9), (1, 150)):  # a rank is a step behind the other
        path = ledger.path(rank)
        path.write_bytes(path.read_bytes()[:-cut])
    ledger._write(0, 4, 2)
    ledger._write(1, 4, 2)
    assert ledger.problems() == []
    assert ledger.problems(resumed_step=2, steps=4) == []
    (problem,) = ledger.problems(resumed_step=2, steps=5)
    assert problem.endswith("the attempt that resumed from step 2 lacks samples of step 5")
    first, second = ledger.problems(resumed_step=0, steps=4)
    assert "is damaged: line" in first
    assert "is damaged: line" in second


def test_verify_deep_looks_at_ledger_and_plans(built: Built) -> None:
    built.fake.config["defaults"]["global_batch"] = 64
    ledger = Ledger(built, steps=4)
    run = ledger.run
    built.fake.seal_run(run)
    verdict = verify_run(run.layout, run.id, deep=True)
    assert verdict.problems == []
    assert verdict.summary.endswith("0 attempts, 2 files of the ledger")
    ledger.path(0).rename(ledger.path(7))
    ledger.path(1).write_text(ledger.path(1).read_text().replace('"step": 4', '"step": 2'))
    (problem,) = verify_run(run.layout, run.id, deep=True).problems
    assert problem.endswith("; delete the file; no result reads it, and a training writes its own")
    assert verify_dataset(built.project, built.dataset.id, deep=True).problems == []
    plan = built.folder / "packs/features-8-v1-train.safetensors"
    plan.parent.mkdir()
    plan.write_bytes(b"!")
    (problem,) = verify_dataset(built.project, built.dataset.id).problems
    assert problem.startswith(str(plan))
    assert problem.endswith("; delete it, and it is made again")


# --- markers ------------------------------------------------------------------------------------


def test_each_altered_byte_and_field_of_a_marker_is_found_or_changes_nothing(built: Built) -> None:
    manifest = convert(built.seal(), Manifest)
    verifier = Verifier(ShardMap(manifest, built.folder), "first")
    verifier.check(1)
    (path,) = built.folder.glob("verified/*/*.safetensors")
    assert list(check_markers(built.folder, manifest)) == []
    content = path.read_bytes()
    whole = json.loads(content)
    for altered in variants(content):
        path.write_bytes(altered)
        is_trusted = verifier._is_marked(1, path)
        assert not is_trusted or json.loads(altered) == whole
        problems = list(check_markers(built.folder, manifest))
        assert problems or is_trusted


# --- verify --deep ------------------------------------------------------------------------------


def test_verify_deep_looks_at_states_and_attempts_of_a_run(
    fake: FakeProject, states: Path, work: Path
) -> None:
    fake.seal_all()
    run = fake.run("flat")
    identity = read_json(run.folder / "run.json", remedy="")["identity"]
    folder = run.layout.work(run.id)
    for step in (10, 20):
        with saving(
            folder / "checkpoints", step=step, epoch=1, identity=identity, world_size=1, keep=2
        ) as scratch:
            (scratch / "state.pt").write_bytes(b"state")
    shutil.copy(work / "attempts.jsonl", folder)
    verdict = verify_run(run.layout, run.id, deep=True)
    assert verdict.problems == []
    assert verdict.summary.endswith("1 evaluation, 2 training checkpoints, 2 attempts")

    (folder / "checkpoints/step-00000020/state.pt").write_bytes(b"stale")
    path = folder / "attempts.jsonl"
    path.write_text(path.read_text().splitlines()[1] + "\n")
    assert verify_run(run.layout, run.id).problems == []
    state, attempts = verify_run(run.layout, run.id, deep=True).problems
    assert "step-00000020 is damaged: state.pt has BLAKE3 digest" in state
    assert state.endswith("; delete it, and the training resumes from the one before")
    assert attempts.startswith(f"{path}: the recorded attempts were changed")
