"""Whatever sealed files hold, `verify`, `diff` and `lineage` name it as damage, and a bug of ours stays a bug."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.core.canonical import digest
from shardline.core.files import json_bytes, read_json, write_json
from shardline.core.seals import seal
from shardline.errors import ConfigError, DataError
from shardline.provenance import graph
from shardline.provenance.crate.metadata import METADATA, metadata_bytes, seal_crate
from shardline.results import diff, findings, verify, verify_runs
from shardline.results.diff import compare_runs
from shardline.results.lineage.tracer import trace
from shardline.results.sealed_run import find_sealed_run
from shardline.results.verify import verify_dataset, verify_report
from shardline.results.verify_runs import verify_run
from tests.support.fake_project import DIGEST, FakeProject
from tests.support.job_records import job_document, job_record
from tests.support.tampering import bytes_changed, changed, edits, fields_changed, paths_of

ACTION = job_document("a")
MOMENTS = {"count": 2, "mean": [1.0], "m2": [2.0], "low": [0.0], "high": [2.0]}
STRANGE = st.one_of(
    st.sampled_from(
        [math.nan, math.inf, {}, [], "", "\0", "x" * 5000, "\ud800", "../..", -1, 10**400, 1e308]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    ),
)


class Sealed:
    """A project with everything that its readers know how to read."""

    def __init__(self, fake: FakeProject) -> None:
        fake.rows = [
            {"name": name, "dataset": "table", "model": "linear", "optim.lr": 0.1, "seed": seed}
            for name, seed in (("first", 1), ("second", 2))
        ]
        self.project: Project = fake.seal_all()
        self.layout = ResultsLayout(root=Path())
        runs = self.project.named_runs()
        self.run, self.other = runs["first"], runs["second"]
        self.dataset = self.run.dataset
        for run in (self.run, self.other):
            self._complete(run.folder, run.evaluation)
        origin = {
            "id": DIGEST,
            "identity": digest(self.run.document),
            "document": self.run.document,
        }
        accepted = {
            "id": self.run.id, "identity": digest(self.run.document), "from": origin, "reason": "why",
            "files": {}, "action": ACTION, "first_steps": {"steps": 3, "values": 9}, "differs": [],
        }  # fmt: skip
        again = {**accepted, "from": {**origin, "accepted": accepted}}
        write_json(self.run.folder / "accepted.json", seal(again))
        records = read_json(self.dataset.manifest, remedy="")["shards"]
        part = {
            "dataset": self.dataset.id,
            "shards": records,
            "statistics": [{"first": 0, "stop": 4, "class_counts": {}, "features": MOMENTS}],
        }
        self.part = self.layout.parts(self.dataset.id) / "00000-00003.json"
        write_json(self.part, seal({**part, "action": ACTION}))
        parts = [job_record(f"build_shards/{self.dataset.id}/00000-00003")]
        fake.record_parts(self.dataset, parts)
        self.report = self.layout.result("report", DIGEST)
        headline = {
            "metric": "accuracy",
            "action": f"evaluate/{self.run.id}/{self.run.evaluation_id}",
        }
        runs = [{"id": self.run.id, "headline": headline}]
        datasets = [{"id": self.dataset.id, "manifest_sha256": "0" * 64}]
        report = {"runs": runs, "datasets": datasets, "action": ACTION}
        write_json(self.report / "report.json", report)
        (self.report / "index.html").write_text("page")
        entities = [{"@id": f"results/reports/{DIGEST}/index.html", "sha256": "0" * 64}]
        (self.report / METADATA).write_bytes(metadata_bytes(seal_crate({"@graph": entities})))

    def _complete(self, folder: Path, evaluation: Path) -> None:
        git = {"commit": "c" * 40, "dirty": False}
        more = {
            "action": ACTION, "git": git, "shardline_git": git, "software": {"platform": "Linux"},
            "environment": {"packages": {"torch": "2"}, "conda": None, "python": "3.11"},
            "world": {"world_size": 1}, "resources": {"num_cpus": 2, "memory_bytes": 9, "ranks": []},
            "devices": ["cpu"],
        }  # fmt: skip
        for path, added in (
            (folder / "run.json", {"action": ACTION}),
            (folder / "provenance.json", more),
            (evaluation, {"metrics": {"accuracy": 0.5}, "num_samples": 9, "action": ACTION}),
        ):
            write_json(path, seal({**read_json(path, remedy=""), **added}))

    @property
    def files(self) -> list[Path]:
        """Every JSON file that is read."""
        folders = (self.run.folder, self.dataset.manifest.parent, self.report, self.part.parent)
        return sorted(path for folder in folders for path in folder.rglob("*.json"))

    def problems(self, *, deep: bool = True) -> list[str]:
        """Return what `verify` finds; it raises nothing."""
        run = verify_run(self.layout, self.run.id, deep=deep).problems
        dataset = verify_dataset(self.project, self.dataset.id, deep=deep).problems
        return run + dataset + verify_report(self.layout, DIGEST).problems

    def read(self) -> Iterator[str]:
        """Let the other readers read, and yield how they reject it."""
        old, new = (find_sealed_run(self.project, name) for name in ("first", "second"))
        paths = (
            self.report / "index.html", self.run.evaluation, self.run.folder / "metrics.jsonl",
            self.dataset.manifest, self.part, self.part.parents[1] / "shard-00001.safetensors",
        )  # fmt: skip
        readers: list[Callable[[], object]] = [lambda: compare_runs(old, new)]
        readers += [lambda path=path: trace(path, self.layout).dot() for path in paths]
        for reader in readers:
            try:
                reader()
            except (ConfigError, DataError) as error:
                yield str(error)


@pytest.fixture
def sealed(fake: FakeProject) -> Sealed:
    return Sealed(fake)


def test_the_project_is_read_whole(sealed: Sealed) -> None:
    told = [problem for problem in sealed.problems(deep=False) if "index.html" not in problem]
    assert told == []
    assert list(sealed.read()) == []


CASES = settings(
    max_examples=150, deadline=None, derandomize=True, print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@CASES
@given(data=st.data())
def test_damage_of_any_kind_is_named_and_ends_no_reader(
    sealed: Sealed, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sealed.files))
    content = path.read_bytes()
    document = json.loads(content)
    kind = data.draw(st.sampled_from(["bytes", "fields", "edits", "strange", "sealed again"]))
    damaged = content
    if kind == "bytes":
        damaged = data.draw(st.sampled_from(list(bytes_changed(content))))
    elif kind == "fields":
        damaged = json_bytes(data.draw(st.sampled_from(list(fields_changed(document)))))
    else:
        altered = data.draw(edits(document, keep="sha256"))
        if kind == "strange":
            altered = place(altered, data.draw(st.integers(0, 99)), data.draw(STRANGE))
        if kind == "sealed again" and "sha256" in document:
            altered = seal(altered)
        damaged = json.dumps(altered).encode()
    path.write_bytes(damaged)
    try:
        for problem in (*sealed.problems(), *sealed.read()):
            assert problem.strip()
    finally:
        path.write_bytes(content)


def place(document: Any, number: int, value: Any) -> Any:
    """Return a document with a value in the place of one of its fields."""
    paths = list(paths_of(document))
    return changed(document, paths[number % len(paths)], value) if paths else value


@pytest.mark.parametrize("bug", [AttributeError, KeyError, TypeError, ValueError])
def test_a_bug_of_ours_is_never_reported_as_damage(
    sealed: Sealed, monkeypatch: pytest.MonkeyPatch, bug: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise bug("ours")

    readers = {
        (verify_runs, "_check_spec"): lambda: verify_run(sealed.layout, sealed.run.id),
        (verify_runs, "_check_evaluation"): lambda: verify_run(sealed.layout, sealed.run.id),
        (verify, "check_parts"): lambda: verify_dataset(sealed.project, sealed.dataset.id),
        (verify, "files_of_crate"): lambda: verify_report(sealed.layout, DIGEST),
        (findings, "check_seal"): lambda: verify_run(sealed.layout, sealed.run.id),
        (diff, "find_causes"): lambda: list(sealed.read()),
        (graph, "is_script"): lambda: list(sealed.read()),
    }
    for (module, name), reader in readers.items():
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(bug, match="ours"):
                reader()
