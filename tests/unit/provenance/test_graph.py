"""Which job read and wrote which file: crate, lineage and the report's picture are views of one graph."""

import json
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.layout import ResultsLayout
from shardline.core.files import write_json
from shardline.provenance.crate.contents import collect, records_of
from shardline.provenance.crate.describe import describe
from shardline.provenance.graph import ProvenanceGraph
from shardline.provenance.nodes import ActionNode, picture
from shardline.provenance.rules import OF_STUDIES, OPTIONAL, ORDER, RULES, edges, file_names
from shardline.results.lineage.tracer import trace
from tests.support.job_records import job_document, job_record
from tests.support.workspace import REPOSITORY

REPORT, EVALUATION = "f" * 12, "e" * 12
STARTED = "2026-05-04T09:00:00Z"
NAMES = file_names(ResultsLayout(root=Path()))
STUDY = "5" * 12
IDENTITY: dict[str, Any] = {"settings": {"seed": 1}, "versions": {"training": 1}, "code": {}}
SUMMARY = {"count": 1, "mean": [0.0], "std": [0.0], "min": [0.0], "max": [0.0]}

# Of each dataset its number of parts, and which jobs ran before; of each run its datasets, whether it is a script,
# how much of an earlier run it has accepted (nothing, the training, or the evaluation too), and which weights of the
# run before it began from.
BEFORE = {"prepare_data": "prepared", "plan_splits": "splits"}
DATASETS = st.lists(
    st.tuples(st.integers(1, 3), st.sets(st.sampled_from(sorted(BEFORE)))), min_size=1, max_size=3
)
RUNS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 2), min_size=1),
        st.booleans(),
        st.integers(0, 2),
        st.sampled_from([None, "best", "last"]),
    ),
    min_size=1,
    max_size=3,
)


class Records:
    """A project of sealed records, with what each of its jobs is known to have read and written.

    Attributes:
        read, written: declared names by action; folders and sources are left out.
        behind: the actions behind the report.
        copies: by an earlier run's file, that of the run which has accepted it.
    """

    def __init__(
        self, folder: Path, datasets: list[tuple[int, set[str]]], runs: list[Any], trials: int = 0
    ) -> None:
        self.layout = ResultsLayout(root=folder)
        self.read: dict[str, set[str]] = {}
        self.written: dict[str, set[str]] = {}
        self.behind: set[str] = set()
        self.copies: dict[str, str] = {}
        self.datasets = [f"{number:012x}" for number in range(1, len(datasets) + 1)]
        for dataset, (parts, before) in zip(self.datasets, datasets, strict=True):
            self.seal_dataset(dataset, parts, before)
        self.runs = []
        for number, (read, is_script, accepted, state) in enumerate(runs):
            used = sorted({self.datasets[one % len(datasets)] for one in read})
            earlier, run = f"a{number:011x}", f"b{number:011x}"
            model = "script: train.py" if is_script else "linear"
            base = (self.runs[-1][0], state) if self.runs and state else None
            self.make_run(earlier if accepted else run, used, model, base)
            if accepted:
                self.accept(earlier, run, used, model, takes_evaluation=accepted == 2)
            else:
                self.behind |= {
                    f"resolve_run/{run}",
                    f"train/{run}",
                    f"evaluate/{run}/{EVALUATION}",
                }
            self.runs.append((run, EVALUATION))
        self.studies = [(STUDY, trials)] if trials else []
        if trials:
            self.make_study(trials)
        self.write_report()

    def job(self, action: str, read: set[str], written: set[str]) -> dict[str, Any]:
        self.read[action], self.written[action] = read, written
        return job_document(action)

    def write(self, name: str, document: dict[str, Any]) -> None:
        path = self.layout.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, document)

    def before_building(self, dataset: str, rules: set[str]) -> set[str]:
        """Write the files of jobs that ran before the shards were written, and return their names."""
        read: set[str] = set()
        for rule, name in BEFORE.items():
            path = f"store/datasets/{dataset}/{name}.json"
            if rule in rules:
                own = {"module": "m:D"} if rule == "prepare_data" else {"rows": 1}
                action = self.job(f"{rule}/{dataset}", set(read), {path})
                self.write(path, {"dataset": dataset, **own, "action": action})
                self.behind.add(f"{rule}/{dataset}")
                read.add(path)
        return read

    def seal_dataset(self, dataset: str, num_parts: int, before: set[str]) -> None:
        folder, lists = f"results/datasets/{dataset}", f"store/datasets/{dataset}/parts"
        made = self.before_building(dataset, before)
        parts = [f"{number:05d}-{number:05d}" for number in range(num_parts)]
        manifest = {
            "dataset": dataset, "schema": {"task": "", "feature_shape": [1], "feature_dtype": "float32"},
            "splits": {}, "bytes": 0, "statistics": {"class_counts": {}, "features": SUMMARY}, "skipped": {},
            "shards": [], "identity": {**IDENTITY, "source": {"0/a.csv": "c" * 64}},
        }  # fmt: skip
        self.write(f"{folder}/manifest.json", manifest)
        names = {f"{lists}/{part}.json" for part in parts}
        records = []
        for part in parts:
            action = self.job(f"build_shards/{dataset}/{part}", made, {f"{lists}/{part}.json"})
            listed = {"dataset": dataset, "shards": [], "statistics": [], "action": action}
            self.write(f"{lists}/{part}.json", listed)
            records.append(action)
        self.behind |= {record["id"] for record in records} | {f"seal_dataset/{dataset}"}
        written = {f"{folder}/manifest.json", f"{folder}/provenance.json"}
        provenance = {
            "dataset": dataset, "identity": "", "definitions": {}, "inferred": {}, "files": {}, "parts": records,
            "action": self.job(f"seal_dataset/{dataset}", names | made, written),
        }  # fmt: skip
        self.write(f"{folder}/provenance.json", provenance)

    def spec(self, run: str, used: list[str], model: str) -> dict[str, Any]:
        mix = [{"id": dataset, "weight": "1"} for dataset in used]
        return {
            "run": run, "identity": "", "datasets": mix, "model_class": model,
            "settings": {"seed": 1, "evaluation": {"split": "test"}},
        }  # fmt: skip

    def base(self, run: str, state: str) -> dict[str, Any]:
        step = {"step": 3} if state == "last" else {}
        return {
            "kind": "init", "source": "run", "run": run, "identity": "", "state": state, "sha256": "d" * 64, **step,
        }  # fmt: skip

    def make_run(
        self, run: str, used: list[str], model: str, begins_from: tuple[str, str] | None = None
    ) -> None:
        folder = f"results/runs/{run}"
        spec = self.spec(run, used, model)
        written = {f"{folder}/run.json", f"{folder}/identity.json"}
        resolved = self.job(f"resolve_run/{run}", set(), written)
        self.write(f"{folder}/run.json", {**spec, "action": resolved})
        self.write(f"{folder}/identity.json", IDENTITY)
        for name in ("model.safetensors", "metrics.jsonl"):
            (self.layout.root / folder / name).write_text(run)
        read = {f"{folder}/run.json", *(f"results/datasets/{one}/manifest.json" for one in used)}
        names = {f"{folder}/{name}" for name in ("model.safetensors", "metrics.jsonl", "provenance.json")}  # fmt: skip
        bases = {}
        if begins_from:
            base, state = begins_from
            bases = {"bases": [self.base(base, state)]}
            read.add(f"results/runs/{base}/model.safetensors")
            read |= {
                f"store/work/{base}/checkpoints/step-00000003/manifest.json"
                for _ in range(state == "last")
            }
        trained = {
            "run": run, "datasets": spec["datasets"], **bases,
            "action": self.job(f"train/{run}", read, names),
        }  # fmt: skip
        self.write(f"{folder}/provenance.json", trained)
        self.evaluate(run, used, model)

    def evaluate(self, run: str, used: list[str], model: str) -> None:
        name = f"results/runs/{run}/evaluations/{EVALUATION}.json"
        own = "provenance.json" if model.startswith("script:") else "model.safetensors"
        read = {f"results/runs/{run}/{name}" for name in ("run.json", own)}
        read |= {f"results/datasets/{one}/manifest.json" for one in used}
        action = self.job(f"evaluate/{run}/{EVALUATION}", read, {name})
        self.write(name, {"run": run, **self.result(), "action": action})

    def result(self) -> dict[str, Any]:
        return {"headline": {"metric": "accuracy", "value": 0.5}, "identity": {"settings": {}}}

    def accept(
        self, earlier: str, run: str, used: list[str], model: str, *, takes_evaluation: bool
    ) -> None:
        """Have a run stand for an earlier one's files, as `shardline accept` does."""
        old, new = f"results/runs/{earlier}", f"results/runs/{run}"
        accepted = job_document(f"accept/{run}")
        self.write(f"{new}/run.json", {**self.spec(run, used, model), "action": accepted})
        self.write(f"{new}/identity.json", {**IDENTITY, "settings": {"seed": 2}})
        origin = {"id": earlier, "identity": "", "document": IDENTITY}
        record = {"id": run, "identity": "", "from": origin, "reason": "", "differs": []}
        self.write(f"{new}/accepted.json", {**record, "action": accepted})
        for name in ("model.safetensors", "metrics.jsonl", "provenance.json"):
            (self.layout.root / new / name).hardlink_to(self.layout.root / old / name)
            self.copies[f"{old}/{name}"] = f"{new}/{name}"
        self.behind.add(f"train/{earlier}")
        if not takes_evaluation:
            self.evaluate(run, used, model)
            self.behind.add(f"evaluate/{run}/{EVALUATION}")
            return
        action = f"evaluate/{earlier}/{EVALUATION}"
        name = f"evaluations/{EVALUATION}.json"
        origin = {"run": earlier, "evaluation": EVALUATION}
        taken = {"accepted": {"from": origin}, "action": job_document(action)}
        self.write(f"{new}/{name}", {"run": run, **self.result(), **taken})
        self.copies[f"{old}/{name}"] = f"{new}/{name}"
        self.behind.add(action)

    def make_study(self, trials: int) -> None:
        """Write a study in which the first trial failed, and the others were linked to the first run.

        Each trial after the first is followed by its promotion, which read that trial's result.
        """
        folder, results = f"results/studies/{STUDY}", dict[str, str]()
        slots = [name for n in range(trials) for name in ([str(n), f"r1-{n - 1}"] if n else ["0"])]
        for place, slot in enumerate(slots):
            run = self.runs[0][0] if place else ""
            proposal, result = (f"{folder}/{slot}/{one}.json" for one in ("proposal", "result-0"))
            before = slots[place - 1] if place else ""
            read = {f"{folder}/{before}/{one}.json" for one in ("proposal", "result-0") if before}
            own = {"study": STUDY, "trial": place}
            action = self.job(f"propose/{STUDY}-{slot}", read, {proposal})
            self.write(
                proposal,
                {
                    **own, "settings": {"optim.lr": 0.1}, "keys": ["optim.lr"], "row": [0.1], "before": before,
                    "results": [before] if before else [], "action": action,
                },
            )  # fmt: skip
            read = {proposal, *({f"results/runs/{run}/metrics.jsonl"} if run else ())}
            action = self.job(f"train_trial/{STUDY}-{slot}-0", read, {result})
            self.write(result, {**own, "run": run, "action": action})
            results[slot] = result
        summary = f"{folder}/study-{trials}.json"
        action = self.job(f"seal_study/{STUDY}-{trials}", {*results.values()}, {summary})
        own = {"study": STUDY, "metric": "val_loss", "mode": "min", "keys": [], "trials": []}
        self.write(summary, {**own, "folders": [*results], "action": action})
        self.behind |= {one for one in self.read if STUDY in one}

    def write_report(self) -> None:
        folder = f"results/reports/{REPORT}"
        names = [
            f"results/runs/{run}/{name}"
            for run, evaluation in self.runs
            for name in (
                "run.json", "identity.json", "metrics.jsonl", "provenance.json", f"evaluations/{evaluation}.json",
            )
        ]  # fmt: skip
        names += [
            f"results/datasets/{dataset}/{name}"
            for dataset in self.datasets
            for name in ("manifest.json", "provenance.json")
        ]
        names += [f"results/studies/{study}/study-{number}.json" for study, number in self.studies]
        sweeps = [
            {
                "name": "s", "sampler": "tpe", "study": study, "planned": number, "metric": "val_loss", "mode": "min",
                "keys": [], "trials": [], "action": f"seal_study/{study}-{number}",
            }
            for study, number in self.studies
        ]  # fmt: skip
        written = {f"{folder}/index.html", f"{folder}/report.json"}
        action = self.job(f"render_report/{REPORT}", set(names), written)
        runs = [
            {
                "id": run, "headline": {"metric": "accuracy", "action": "evaluate/x/y"},
                "files": {f"evaluations/{evaluation}.json": ""},
            }
            for run, evaluation in self.runs
        ]  # fmt: skip
        datasets = [{"id": dataset, "manifest_sha256": ""} for dataset in self.datasets]
        self.write(
            f"{folder}/report.json",
            {"runs": runs, "datasets": datasets, "sweeps": sweeps, "action": action},
        )
        (self.layout.root / folder / "index.html").write_text("page")
        self.behind.add(action["id"])

    @property
    def project(self) -> Any:
        """As much of a project as a crate asks for."""
        runs = {
            run: SimpleNamespace(id=run, evaluation_id=evaluation) for run, evaluation in self.runs
        }
        (self.layout.root / "my.lock").write_text("")
        return SimpleNamespace(
            layout=self.layout, workdir=self.layout.root, table="config/runs.tsv", environment=None,
            lock_file=self.layout.root / "my.lock", report=self.layout.report(REPORT), runs=runs,
            datasets={dataset: SimpleNamespace(id=dataset) for dataset in self.datasets},
            finished_studies=self.studies,
        )  # fmt: skip

    def in_crate(self, names: set[str], files: set[str]) -> set[str]:
        """Return files by their paths in the crate, of earlier runs those that stand for them."""
        return {self.copies.get(name, name) for name in names} & files


def crate_of(records: Records) -> tuple[dict[str, tuple[set[str], set[str]]], set[str]]:
    """Return what each action of the crate has read and written, and all files that the crate describes."""
    contents = collect(records.project, records_of(records.project))
    entities = describe(contents, job_record(f"render_report/{REPORT}"))["@graph"]
    files = set(contents.items)

    def names(references: Any) -> set[str]:
        found = references if isinstance(references, list) else [references] if references else []
        return {unquote(one["@id"].removeprefix("#")) for one in found} & files

    prefix = "#action/"
    jobs = {
        unquote(entity["@id"].removeprefix(prefix)): (
            names(entity.get("object")),
            names(entity.get("result")),
        )
        for entity in entities
        if entity["@id"].startswith(prefix)
    }
    return jobs, files


def check_lineage(records: Records, name: str, made_by: str) -> None:
    """Check who made a file, and what the actions behind it have read."""
    found = trace(records.layout.root / name, records.layout)
    assert found.files[name].made_by == made_by
    for action in found.actions.values():
        read = {one for one in action.files_read if found.files[one].made_by}
        if action.id in records.read:
            assert read == records.read[action.id]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(datasets=DATASETS, runs=RUNS, trials=st.integers(0, 2))
def test_the_views_agree_on_which_job_read_and_wrote_which_file(
    datasets: list[tuple[int, set[str]]], runs: list[Any], trials: int
) -> None:
    with TemporaryDirectory() as folder:
        records = Records(Path(folder).resolve(), datasets, runs, trials)
        crate, files = crate_of(records)
        assert crate.keys() == records.behind
        for action, (read, written) in crate.items():
            assert read == records.in_crate(records.read[action], files)
            assert written == records.in_crate(records.written[action], files)
        for action, names in records.written.items():
            for name in names:
                check_lineage(records, name, action)
        for earlier, copy in records.copies.items():
            check_lineage(records, copy, f"accept/{copy.split('/')[2]}/{Path(copy).name}")
            found = trace(records.layout.root / copy, records.layout)
            assert found.actions[found.files[copy].made_by].files_read == [earlier]
        jobs = ProvenanceGraph(records_of(records.project)).jobs_behind(
            records.runs, records.datasets, records.studies
        )
        drawn = picture(jobs, STARTED)
        assert drawn is not None
        ran = Counter(action.partition("/")[0] for action in records.behind)
        assert {node.rule: node.ran for node in drawn.nodes if node.ran} == ran
        assert not any(node.fresh or node.unknown for node in drawn.nodes)


# --- the table of rules -----------------------------------------------------------------------


def test_each_file_is_declared_by_its_rule_under_the_parameter_of_the_table():
    text = "\n".join(path.read_text() for path in sorted((REPOSITORY / "rules").glob("*.smk")))
    blocks = {
        found[1]: found[2]
        for found in re.finditer(r"rule (\w+):\n(.*?)(?=\nrule |\Z)", text, re.DOTALL)
    }
    for rule, of in RULES.items():
        output = blocks[rule].partition("    output:")[2].partition("    log:")[0]
        for parameter, kind in of.writes.items():
            if not NAMES[kind].endswith("/"):
                assert f"{parameter}=" in output, (rule, parameter)
                assert Path(NAMES[kind]).name in output.replace("{{", "{").replace("}}", "}"), (
                    rule,
                    kind,
                )


def test_a_rule_stands_behind_those_whose_files_it_reads():
    found = edges()
    behind: dict[str, set[str]] = {}
    for rule in ORDER:
        near = {first for first, then in found if then == rule}
        behind[rule] = near.union(*(behind[one] for one in near))
        kinds = {*RULES[rule].reads.values(), *RULES[rule].reads_of_script.values()}
        makers = {maker for maker, of in RULES.items() if kinds & {*of.writes.values()}}
        assert near <= makers <= behind[rule]
    # a tree, except that trials have proposals and trainings before them
    assert len(found) == len(ORDER), "what other edges imply is left out"


# --- the picture ------------------------------------------------------------------------------


def node(action: str, ended: str | None) -> ActionNode:
    record = ended and job_record(action, started=f"{ended[:-3]}00Z", ended=ended)
    rule = action.partition("/")[0]
    return ActionNode(id=action, rule=rule, inputs={}, outputs={}, record=record or None)


def test_what_ended_after_the_start_ran_and_the_rest_was_fresh():
    old, new = "2026-05-04T09:00:30Z", "2026-05-05T09:00:40Z"
    jobs = [
        node("build_shards/d/1", old), node("build_shards/d/2", old), node("seal_dataset/d", old),
        node("resolve_run/a", new), node("resolve_run/b", new), node("train/a", old), node("train/b", new),
        node("evaluate/a/e", new), node("evaluate/b/e", None),
    ]  # fmt: skip
    drawn = picture(jobs, "2026-05-05T09:00:00Z")
    assert drawn is not None
    found = {one.rule: (one.ran, one.fresh, one.unknown, one.seconds) for one in drawn.nodes}
    assert found == {
        "build_shards": (0, 2, 0, None), "seal_dataset": (0, 1, 0, None), "resolve_run": (2, 0, 0, 80.0),
        "train": (1, 1, 0, 40.0), "evaluate": (1, 0, 1, 40.0), "render_report": (1, 0, 0, None),
    }  # fmt: skip
    assert {end for edge in drawn.edges for end in edge} == set(found)
    assert picture(jobs, None) is None
    assert drawn == picture(jobs[::-1], "2026-05-05T09:00:00Z")
    with_plan = picture(
        [
            *jobs, *(node(f"{rule}/d", old) for rule in (*OPTIONAL, *OF_STUDIES)),
        ],
        "2026-05-05T09:00:00Z",
    )  # fmt: skip
    assert with_plan is not None
    assert [one.rule for one in with_plan.nodes] == ORDER
    assert with_plan.edges == edges()


def test_the_chain_of_runs_ends_at_runs_outside_of_the_report_and_at_files(tmp_path: Path) -> None:
    runs = [({0}, False, 0, None), ({0}, False, 0, "best"), ({0}, False, 0, "last")]
    records = Records(tmp_path, [(1, set())], runs)
    (first, _), (second, _), (third, evaluation) = records.runs
    found = trace(records.layout.model(third), records.layout)
    assert {f"train/{run}" for run in (first, second, third)} <= found.actions.keys()
    # a crate of the last run alone has the digest of what it began from
    records.runs = [(third, evaluation)]
    contents = collect(records.project, records_of(records.project))
    assert not contents.items[f"results/runs/{second}/model.safetensors"].is_here
    # a file of the user's
    path = records.layout.run(first) / "provenance.json"
    base = {"kind": "init", "source": "file", "identity": "e" * 64}
    write_json(path, {**json.loads(path.read_bytes()), "bases": [base]})
    found = trace(records.layout.model(third), records.layout)
    assert any(file.digest == f"sha256:{'e' * 64}" for file in found.files.values())
    records.runs = [(first, evaluation)]
    described = describe(
        collect(records.project, records_of(records.project)),
        job_record(f"render_report/{REPORT}"),
    )
    (weights,) = [one for one in described["@graph"] if one["@id"].startswith("#weights/")]
    assert "e" * 12 in weights["name"]


@pytest.mark.parametrize("before", [set(), {"prepare_data"}, {"plan_splits"}, {*BEFORE}])
def test_the_records_of_earlier_jobs_outlive_their_files(before: set[str], tmp_path: Path) -> None:
    records = Records(tmp_path, [(1, before)], [({0}, False, 0, None)])
    folder = tmp_path / "results/datasets" / records.datasets[0]
    sealed = json.loads((folder / "provenance.json").read_bytes())
    for rule, key in {"prepare_data": "prepared", "plan_splits": "plan"}.items():
        name = tmp_path / "store/datasets" / records.datasets[0] / f"{BEFORE[rule]}.json"
        if rule in before:
            sealed[key] = json.loads(name.read_bytes())["action"]
            name.unlink()
    write_json(folder / "provenance.json", sealed)
    graph = ProvenanceGraph(records_of(records.project))
    jobs = {job.id: job for job in graph.jobs_behind([], records.datasets)}
    made = {f"{rule}/{records.datasets[0]}" for rule in before}
    assert made == {name for name in jobs if name.startswith((*BEFORE,))}
    assert all(jobs[name].record for name in made)
    found = trace(folder / "manifest.json", records.layout)
    assert made <= found.actions.keys()
