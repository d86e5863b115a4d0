"""`replay`, `diff`, `lineage` and `export` without a training: comparison, noise, graphs, refusals."""

import copy
import math
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.layout import ResultsLayout
from shardline.core.files import write_json
from shardline.core.intervals import sampling_interval, seed_interval
from shardline.environments.installed import requirements_of
from shardline.provenance.nodes import ActionNode, FileNode
from shardline.results.export import card
from shardline.results.lineage.lineage import Lineage
from shardline.results.lineage.tracer import trace
from shardline.results.replay.replayed_numbers import compare
from tests.support.command_line import lines, shardline
from tests.support.fake_project import DIGEST
from tests.support.job_records import job_document, job_record

HERE = ResultsLayout(root=Path())  # the present folder

# --- comparing --------------------------------------------------------------------------------

RECORDED = {
    "run": "a", "identity": {"x": 1}, "action": {"id": "e"}, "sha256": "s", "split": "test",
    "num_samples": 10, "metrics": {"accuracy": 0.5, "loss": 1.0},
    "confusion": {"classes": ["a", "b"], "counts": [[3, 2], [3, 2]]},
}  # fmt: skip


def verdicts(replayed, tolerance=0.0) -> dict[str, str]:
    rows = compare(RECORDED, {**RECORDED, **replayed}, tolerance)
    return {row.name: row.verdict for row in rows if row.verdict != "equal"}


def test_what_came_out_again_is_equal_and_what_tells_the_making_is_not_compared():
    assert verdicts({}) == {}
    assert verdicts({"run": "b", "action": None, "sha256": ""}) == {}


@pytest.mark.parametrize(
    ("replayed", "tolerance", "found"),
    [
        ({"metrics": {"accuracy": 0.5, "loss": 1.0 + 1e-15}}, 0, {"metrics.loss": "different"}),
        ({"metrics": {"accuracy": 0.5, "loss": 1.001}}, 1e-2, {"metrics.loss": "within the tolerance"}),
        ({"metrics": {"accuracy": 0.5, "loss": 1.001}}, 1e-4, {"metrics.loss": "different"}),
        (
            {"confusion": {"classes": ["a", "b"], "counts": [[3, 2], [2, 3]]}},
            1e-3,
            {"confusion": "different"},
        ),
        (
            {"confusion": {"classes": ["a", "b"], "counts": [[3, 2], [3, 2], [0, 0]]}},
            0,
            {"names and sizes": "different", "confusion": "different"},
        ),
    ],
)  # fmt: skip
def test_what_did_not_come_out_again_is_told_by_name(replayed, tolerance, found):
    assert verdicts(replayed, tolerance) == found


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_change_of_an_evaluation_is_told_and_nothing_else(data):
    """Remove, add or alter one value anywhere, on either side."""
    changed = copy.deepcopy(RECORDED)
    places = [
        (changed, key) for key in changed if key not in ("run", "identity", "action", "sha256")
    ]
    for holder, key in places:
        value = holder[key]
        if isinstance(value, dict | list):
            places += [
                (value, key) for key in (value if isinstance(value, dict) else range(len(value)))
            ]
    holder, key = data.draw(st.sampled_from(places))
    change = data.draw(st.sampled_from(("remove", "add", "alter")))
    if change == "remove":
        del holder[key]
    elif change == "add" and isinstance(holder, dict):
        holder["new"] = data.draw(st.sampled_from((1, "x", [], [2], {}, None)))
    else:
        holder[key] = data.draw(st.sampled_from((17, "other", None, [[]], {"a": 1})))
    for pair in ((RECORDED, changed), (changed, RECORDED)):
        verdicts = {row.verdict for row in compare(*pair, 0.0)}
        assert "different" in verdicts, (holder, key)


def test_a_number_that_is_not_finite_is_null_once_it_is_sealed():
    recorded, replayed = ({"metrics": {"mse": value}} for value in (None, math.inf))
    assert {row.verdict for row in compare(recorded, replayed, 0.0)} == {"equal"}


def test_a_number_that_was_removed_is_told_by_name():
    before = {**RECORDED, "metrics": {"loss": 1.0}}
    rows = {row.name: row for row in compare(before, RECORDED, 0.0)}
    removed = rows["metrics.accuracy"]
    assert (removed.recorded, removed.replayed, removed.verdict) == ("missing", "0.5", "different")


def test_a_recorded_environment_is_read_with_the_markers_of_its_lock():
    packages = {"a": "1", "b": "2 or 3", "c": "4 (not in the lock)", "d": "not installed", "e": "5"}
    locked = ["e==5; sys_platform == 'win32'", "b==2; python_version < '3.12'", "a==9"]
    assert requirements_of(packages, locked) == [
        "a==1", "b==2; python_version < '3.12'", "b==3", "c==4", "e==5; sys_platform == 'win32'",
    ]  # fmt: skip


# --- noise ------------------------------------------------------------------------------------


def test_the_interval_of_two_accuracies_is_newcombes():
    # 10/10 less 0/10, as in table II of Newcombe 1998
    assert sampling_interval(0.0, 1.0, 10) == pytest.approx((0.6075, 1.0), abs=1e-4)
    low, high = sampling_interval(0.96, 0.97, 176)
    assert low < 0 < high
    assert sampling_interval(0.5, 0.9, 1000)[0] > 0


def test_the_interval_over_seeds_is_welchs():
    low, high = seed_interval([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    # by scipy.stats.ttest_ind(equal_var=False).confidence_interval()
    from scipy.stats import ttest_ind

    expected = ttest_ind([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], equal_var=False).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert seed_interval([1.0], [1.0, 2.0]) is None
    assert seed_interval([1.0, 1.0], [2.0, 2.0]) is None


def seal_with(fake, name: str, **metrics: float) -> None:
    run = fake.run(name)
    fake.seal_run(run)
    document = {
        "run": run.id, "task": "classification", "split": "test", "num_samples": 100,
        "metrics": metrics, "identity": run.evaluation_document,
        "headline": {"metric": "loss", "value": metrics.get("loss"), "mode": "min"},
    }  # fmt: skip
    write_json(run.evaluation, document)


def test_a_difference_is_held_against_the_spread_over_seeds(fake):
    base = fake.rows[1]
    values = {"a1": 0.70, "a2": 0.71, "a3": 0.72, "b1": 0.80, "b2": 0.81, "b3": 0.82}
    fake.rows = [
        {**base, "name": name, "seed": int(name[1]), "optim.lr": 0.1 if name[0] == "a" else 0.2}
        for name in values
    ]
    for name, value in values.items():
        seal_with(fake, name, accuracy=value, loss=1.0)
    result = shardline("diff", "a1", "b2")
    assert result.exit_code == 0, result.output
    assert [line[:2] for line in lines(result)[2:4]] == [
        ["settings", "seed 1 -> 2"],
        ["optim.lr 0.1 -> 0.2"],
    ]
    accuracy = next(line for line in lines(result) if line[0] == "accuracy")
    assert accuracy[1:4] == ["0.7", "0.81", "+0.11"]
    assert accuracy[4] == "+0.07733 to +0.1227", "of the means, which are 0.1 apart"
    assert accuracy[5] == "more than the spread over seeds"
    repeat = shardline("diff", "a1", "a3")
    assert "only the seed differs: this is noise" in repeat.stdout


def test_datasets_are_compared_within_and_their_metrics_not(fake):
    fake.seal_all()
    old = fake.run("flat")
    seal_with(fake, "flat", accuracy=0.5)
    fake.config["datasets"]["table"]["shards"] = 5
    project = fake.load()
    for dataset in project.datasets.values():
        fake.seal_dataset(project, dataset)
    seal_with(fake, "flat", accuracy=0.9)
    result = shardline("diff", old.id, "flat")
    assert "dataset table: shards 4 -> 5" in result.stdout
    assert "measured on other samples: not comparable" in result.stdout


# --- which run --------------------------------------------------------------------------------


def test_a_run_that_is_not_there_is_told_with_what_is(fake):
    fake.seal_all()
    old = fake.run("net").id
    fake.rows[0]["seed"] = 2
    fake.load()
    assert f"name an earlier id ({old})" in shardline("replay", "net").stderr
    compared = shardline("diff", "net", "flat")
    assert compared.stdout.startswith(f"net ({old}) -> flat ("), "its latest sealed result"
    near = shardline("replay", "flatt")
    assert (near.exit_code, near.stderr) == (
        2,
        'neither the config nor results/runs has a run "flatt"; did you mean "flat"?\n',
    )
    assert shardline("diff", "../net", "flat").exit_code == 2


def test_what_was_judged_by_a_script_or_not_at_all_cannot_be_replayed_or_exported(fake):
    fake.workspace.write("train.py", "print('trained')\n")
    fake.rows.append({"name": "own", "dataset": "rows", "model": "script: train.py"})
    fake.seal_all()
    for command in (("replay", "own"), ("export", "own", "--to", "onnx")):
        result = shardline(*command)
        assert result.exit_code == 2, result.output
        assert "script: train.py evaluates its model itself" in result.stderr
    fake.run("net").evaluation.unlink()
    result = shardline("replay", "net")
    assert (result.exit_code, "has no evaluation" in result.stderr) == (3, True)


def test_a_sealed_file_of_another_form_is_told_as_damage(fake):
    fake.seal_all()
    run = fake.run("net")
    write_json(run.folder / "run.json", {})
    for command in (("diff", "net", "flat"), ("lineage", str(run.evaluation)), ("replay", "net")):
        result = shardline(*command)
        assert result.exit_code == 3, result.output
        assert run.id in result.stderr


# --- lineage ----------------------------------------------------------------------------------


def test_lineage_refuses_what_nothing_is_recorded_of(fake):
    fake.seal_all()
    for path, code, told in (
        ("config/config.yaml", 2, "nothing is recorded of config/config.yaml"),
        ("results/none.json", 3, "results/none.json does not exist"),
        ("..", 2, "nothing is recorded of"),
    ):
        result = shardline("lineage", path)
        assert (result.exit_code, told in result.stderr) == (code, True), result.output
    own = fake.workspace.write(f"results/runs/{fake.run('net').id}/notes.txt", "mine")
    assert (
        "expected one of identity.json, metrics.jsonl, model.safetensors"
        in shardline("lineage", str(own)).stderr
    )


def test_lineage_needs_neither_config_nor_store_and_names_sources_by_their_digests(fake):
    fake.seal_all()
    run = fake.run("net")
    fake.record_parts(run.dataset, [job_record(f"build_shards/{run.dataset.id}/00000-00000")])
    for folder in ("config", "store"):
        shutil.rmtree(folder)
    result = shardline("lineage", str(run.evaluation))
    assert result.exit_code == 0, result.output
    assert (
        f"build_shards/{run.dataset.id}/00000-00000  2026-05-04T09:00:30Z, on n1, code"
        in result.stdout
    )
    for name in ("a.csv", "b.csv"):
        assert re.search(rf"{name}  sha256 [0-9a-f]{{12}}$", result.stdout, re.MULTILINE)


def test_the_lineage_of_a_report_is_that_of_its_runs(fake):
    fake.seal_all()
    runs = [
        {
            "id": run.id,
            "headline": {"metric": "accuracy", "action": f"evaluate/{run.id}/{run.evaluation_id}"},
        }
        for run in fake.load().runs.values()
    ]
    folder = Path("results/reports") / DIGEST
    action = job_document(f"render_report/{DIGEST}")
    write_json(folder / "report.json", {"runs": runs, "action": action})
    (folder / "index.html").write_text("page")
    Path("results/report").symlink_to(f"reports/{DIGEST}")
    found = trace(Path("results/report/index.html"), HERE)
    assert found.file == f"results/reports/{DIGEST}/index.html"
    report = found.actions[f"render_report/{DIGEST}"]
    assert {Path(name).name for name in report.files_read} >= {"run.json", "metrics.jsonl"}
    assert {f"train/{run['id']}" for run in runs} < found.actions.keys()


def test_the_graph_is_graphviz_whatever_the_names_hold():
    odd = 'a "quoted" \\ name'
    graph = Lineage(
        file=odd,
        files={
            odd: FileNode(name=odd, made_by="train/x", digest="sha256:" + "0" * 64),
            "in": FileNode(name="in", members=("src",)),
            "src": FileNode(name="src"),
        },
        actions={"train/x": ActionNode(id="train/x", rule="train", inputs={"spec": ["in"]})},
    )
    text = graph.dot()
    statements = [line.strip() for line in text.splitlines()[1:-1]]
    name = r'"(?:[^"\\]|\\.)*"'
    statement = re.compile(rf"(rankdir=LR|node \[.*\]|{name} \[.*\]|{name} -> {name});")
    assert all(statement.fullmatch(line) for line in statements)
    assert [line for line in statements if "->" in line] == [
        '"in" -> "train/x";',
        '"train/x" -> "a \\"quoted\\" \\\\ name";',
        '"src" -> "in";',
    ]
    if shutil.which("dot"):
        drawn = subprocess.run(["dot", "-Tplain"], input=text, text=True, capture_output=True)
        assert drawn.returncode == 0, drawn.stderr
        assert drawn.stdout.count("\nedge ") == 3


# --- export -----------------------------------------------------------------------------------


def test_missing_packages_are_named_with_how_to_install_them(fake, monkeypatch):
    fake.seal_all()
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "onnx" else find_spec(name, *a)
    )
    result = shardline("export", "net", "--to", "onnx")
    assert result.exit_code == 2
    assert "not installed: onnx; run pip install 'shardline[onnx]'" in result.stderr


def test_a_wrong_format_is_a_wrong_command_line(fake):
    assert shardline("export", "net", "--to", "tflite").exit_code == 2


def test_what_a_user_wrote_is_text_in_the_card_and_nothing_else():
    assert card._text("<script>|\n`x`") == "&lt;script&gt;\\| \\`x\\`"
    assert card._text(["a|b"]) == '\\["a\\|b"\\]'
