"""A project in Python: what the table of runs and a run's curves contain, and tables and figures for papers."""

import json
import math
import re
import subprocess
import sys

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.core.errors import ConfigError
from shardline.core.files import write_json
from shardline.notebook.figures import curves, save
from shardline.notebook.project import Project
from shardline.notebook.tables import results_table, write_table

PNG = "iVBORw0KGgo="
SCORES = {1: 0.9, 2: 0.8, 3: 0.85}


@pytest.fixture
def opened(fake):
    """Three seeds of a run with a result, one run without."""
    first = fake.rows[0]
    fake.rows = [
        {**first, "name": "net", "seed": [*SCORES]}, {**first, "name": "later", "optim.lr": 0.5},
    ]  # fmt: skip
    project = fake.load()
    for run in project.runs.values():
        if run.name == "later":
            continue
        fake.seal_run(run)
        fake.seal_evaluation(run)
        score = SCORES[run.settings.seed]
        record = json.loads(run.evaluation.read_text())
        write_json(run.evaluation, {**record, "metrics": {"val/acc": score, "rows": None}})
        lines = [
            {"step": 1, "epoch": 0, "loss": 2.0}, {"step": 1, "epoch": 0, "val/acc": 0.5},
            {"step": 2, "epoch": 0, "loss": None}, {"step": 3, "epoch": 1, "loss": 1.0},
            {"step": 3, "logged": [{"name": "seen", "png": PNG, "caption": "a"}]},
        ]  # fmt: skip
        (run.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"st')
    return Project()


def test_the_table_of_runs_has_what_differs_metrics_and_cost(opened):
    runs = opened.runs
    assert list(runs.index) == [*opened] == ["net_seed=1", "net_seed=2", "net_seed=3", "later"]
    assert list(runs["state"]) == ["done", "done", "done", "new"]
    assert runs["val/acc"].dropna().to_dict() == {
        f"net_seed={key}": of for key, of in SCORES.items()
    }
    assert {"seed", "optim.lr"} <= set(runs.columns)
    assert "trainer.max_epochs" not in runs.columns, "no run has another value"
    assert "net_seed=1" in opened._repr_html_()


def test_a_run_has_curves_images_settings_and_a_reason(opened):
    run = opened["net_seed=2"]
    frame = run.metrics()
    assert list(frame.index) == [1, 2, 3]
    assert frame["loss"].to_list()[::2] == [2.0, 1.0]
    assert math.isnan(frame["loss"][2])
    assert frame["val/acc"].dropna().to_dict() == {1: 0.5}
    (image,) = run.images()
    assert (image.name, image.step, image.caption) == ("seen", 3, "a")
    assert image._repr_png_().startswith(b"\x89PNG")
    assert "data:image/png" in run.images()._repr_html_()
    assert (run.settings["seed"], "<td>2</td>" in run.settings._repr_html_()) == (2, True)
    assert "optim.lr" in opened["later"].why()
    assert "<li>" in opened["later"].why()._repr_html_()
    assert run.why().endswith("done")
    assert "<svg" in run._repr_html_()
    assert opened["later"].metrics().empty
    with pytest.raises(ConfigError, match="did you mean"):
        opened["net_seed=9"]


def test_seeds_become_a_mean_with_an_interval(opened):
    table = results_table(opened, ["optim.lr", "val/acc"])
    assert list(table.index) == ["net", "later"]
    row = table.loc["net"]
    assert row["val/acc"] == pytest.approx(0.85)
    half = 4.302652729911275 * 0.05 / math.sqrt(3)  # Student's t of two degrees of freedom
    assert (row["val/acc low"], row["val/acc high"]) == pytest.approx(
        (0.85 - half, 0.85 + half), abs=1e-6
    )
    assert row["repeats"] == 3
    assert "| net | 0.1 | 0.85 ± 0.12 | 3 |" in write_table(table, "markdown")
    assert r"0.85 $\pm$ 0.12" in write_table(table, "latex")
    assert "val/acc low" in write_table(table, "csv").splitlines()[0]
    assert opened.table(["trainer.max_epochs"])["trainer.max_epochs"].nunique() == 1, "of all runs"
    with pytest.raises(ConfigError, match='did you mean "val/acc"'):
        results_table(opened, ["val/ac"])


def test_a_value_that_is_not_finite_is_left_out_of_the_mean_by_name(opened):
    path = opened["net_seed=2"].plan.evaluation
    record = json.loads(path.read_text())
    write_json(path, {**record, "metrics": {"val/acc": None, "rows": None}})
    table = opened.table(["val/acc"])
    assert table["val/acc"]["net"] == pytest.approx((SCORES[1] + SCORES[3]) / 2)
    (sentence,) = table.attrs["left_out"]
    assert sentence == "val/acc of net_seed=2 is nan; the mean is over the other runs"


def test_a_project_without_a_result_has_a_table_and_says_why_a_metric_is_unknown(fake):
    fake.load()
    assert list(Project().table()["repeats"]) == [0] * len(fake.rows)
    with pytest.raises(ConfigError, match="no run has a held-out metric yet, and no column"):
        Project().table(["accuracy"])
    with pytest.raises(ConfigError, match="nothing is logged yet, so train it first"):
        Project().plot(["flat"])


def test_runs_beyond_the_colours_differ_in_their_dashes(opened):
    frame = opened["net_seed=1"].metrics()
    spec = curves({str(number): frame for number in range(30)}, ["loss"]).to_dict()
    scales = [
        spec["concat"][0]["encoding"][channel]["scale"] for channel in ("color", "strokeDash")
    ]
    looks = list(zip(*(map(str, scale["range"]) for scale in scales), strict=True))
    assert len(set(looks)) == len(looks) == 30


def test_a_score_of_zero_and_the_evaluation_of_a_row_are_its_own(fake):
    first = fake.rows[0]
    fake.rows = [first, {**first, "name": "again", "evaluation.split": "validation"}]
    project = fake.seal_all()
    one, again = (project.named_runs()[name] for name in (first["name"], "again"))
    assert (one.id, one.evaluation) != (again.id, again.evaluation)
    assert one.id == again.id
    for run, score in ((one, 0.0), (again, 0.5)):
        record = json.loads(run.evaluation.read_text())
        write_json(run.evaluation, {**record, "metrics": {"acc": score}})
    provenance = json.loads((one.folder / "provenance.json").read_text())
    write_json(
        one.folder / "provenance.json", {**provenance, "training": {"best_score": 0.0, "steps": 3}}
    )
    runs = Project().runs
    assert runs["acc"].to_dict() == {first["name"]: 0.0, "again": 0.5}
    assert list(runs["best_score"]) == [0.0, 0.0]


@given(st.text(min_size=1, max_size=20), st.floats(-1e6, 1e6), st.floats(0, 1e3))
def test_cells_are_whole_and_escaped(name, mean, half):
    frame = pd.DataFrame(
        [{"name": name, "m": mean, "m low": mean - half, "m high": mean + half}]
    ).set_index("name")
    latex = write_table(frame, "latex")
    body = latex[latex.index("\\midrule") + 9 : latex.index("\\bottomrule")]
    assert len(re.findall(r"(?<!\\)&", body)) == 1
    assert not re.search(r"(?<!\\)[%#$_{}]", re.sub(r"\\text\w+\{\}|\$\\pm\$", "", body))
    markdown = write_table(frame, "markdown").split("\n", 2)[2]
    assert len(re.findall(r"(?<!\\)\|", markdown)) == 3


def test_figures_are_written_in_three_formats_and_a_wrong_name_is_told(opened, tmp_path):
    frames = {name: opened[name].metrics() for name in ("net_seed=1", "net_seed=2")}
    chart = curves(frames, ["loss", "val/acc"])
    begins = {"a.png": b"\x89PNG", "b.svg": b"<svg", "c.pdf": b"%PDF"}
    assert (
        opened.plot(["net_seed=1"], ["loss"])
        ._repr_mimebundle_()["image/svg+xml"]
        .startswith("<svg")
    )
    for file, begin in begins.items():
        save(chart, tmp_path / file)
        assert (tmp_path / file).read_bytes().startswith(begin)
    with pytest.raises(ConfigError, match=r"did you mean \"loss\""):
        curves(frames, ["los"])
    with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf"):
        save(chart, tmp_path / "d.gif")


def test_reading_loads_neither_torch_nor_snakemake(opened):
    code = (
        "import sys, shardline as sl; p = sl.open('.'); "
        "print(sorted({'numpy', 'pandas', 'altair', 'torch', 'snakemake'} & set(sys.modules))); "
        "p['net_seed=1'].metrics(); p.runs; p['net_seed=1'].why(); p.studies; "
        "print(sorted({'torch', 'pytorch_lightning', 'snakemake'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"], "opening is light; reading needs pandas"
