"""What the page says of which weights, which data and which curves."""

import json
import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.config.settings.run_settings import default_settings
from shardline.records.reports import EarlierBest
from shardline.report import write_report
from shardline.report.charts.scatter import Point, scatter
from shardline.report.charts.series import Series
from shardline.report.document import read_history
from shardline.report.leaderboard import titles_of
from shardline.report.reported import changed_settings
from shardline.report.template import _breakable
from tests.support.chart_page import HOSTILE
from tests.support.job_records import job_document, job_record
from tests.support.report_runs import render, write_run

CHECKPOINT = {"monitor": "val_loss", "mode": "min"}


def page_of(*runs) -> str:
    return render(list(runs), generated_from="config/runs.tsv")


def lines(**curves):
    """Return a metrics.jsonl of these curves, validated every ten steps."""
    steps = range(10, 10 * len(next(iter(curves.values()))) + 1, 10)
    return [
        json.dumps({"step": step, **{name: values[at] for name, values in curves.items()}})
        for at, step in enumerate(steps)
    ]


def test_the_validation_that_is_shown_is_of_the_sealed_weights(tmp_path):
    run = write_run(
        tmp_path, "one",
        lines=lines(val_loss=[0.9, 0.4, 0.5, 0.6], val_accuracy=[0.5, 0.7, 0.8, 0.9]),
        run={"settings": {"seed": 7, "checkpoint": CHECKPOINT}},
        provenance={"training": {"best_score": 0.4, "steps": 40, "epochs": 4}},
    )  # fmt: skip
    page = page_of(run)
    assert '<td class="num" role="cell" data-label="Validation" data-value="0.7">70.0 %' in page
    assert "accuracy, step 20" in page


def test_without_a_sealed_score_the_best_validation_is_shown(tmp_path):
    page = page_of(write_run(tmp_path, "one", lines=lines(val_accuracy=[0.5, 0.9, 0.8])))
    assert "accuracy, step 20" in page


def test_names_with_slashes_spaces_and_brackets_are_paired_as_usual_names_are(tmp_path):
    curves = {
        "val/acc": [0.5, 0.7],
        "loss (train)": [0.9, 0.4],
        "loss (val)": [0.8, 0.5],
        "a.b": [1.0, 1.0],
    }
    headline = {"metric": "test/acc", "value": 0.65, "mode": "max"}
    page = page_of(
        write_run(
            tmp_path, "one", lines=lines(**curves),
            run={"settings": {"seed": 7, "checkpoint": {"monitor": "val/acc", "mode": "max"}}},
            evaluation={"headline": headline, "metrics": {"test/acc": 0.65}, "measured_by": "model"},
            provenance={"training": {"best_score": 0.7, "steps": 20, "epochs": 2}},
        )
    )  # fmt: skip
    assert 'data-label="Validation" data-value="0.7">70.0 %' in page
    assert "test/acc 65.0 %" in page
    panels = re.search(r'"panels":(\[.*?\])', page)
    assert panels
    assert {one["title"]: one["shown"] for one in json.loads(panels[1])} == {
        "loss (train)": True, "loss (val)": True, "val/acc": True, "a.b": False,
    }  # fmt: skip


KEYS = st.sets(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from(["0a", "0b"]), st.sampled_from(["test", "valid"]),
        st.sampled_from(["accuracy", "loss"]), st.sampled_from(["max", "min"]),
    )
)  # fmt: skip


@given(KEYS)
def test_no_two_groups_have_one_title(keys):
    titles = titles_of(keys)
    assert len(set(titles.values())) == len(keys)
    assert all(title.startswith(key[0]) for key, title in titles.items())


def test_the_title_of_a_dataset_that_alone_has_its_name_is_its_name():
    keys = [("a", "0a", "test", "accuracy", "max"), ("b", "0b", "test", "accuracy", "max")]
    assert list(titles_of(keys).values()) == ["a", "b"]


def test_one_dataset_by_two_metrics_gives_two_cards_of_their_own_titles(tmp_path):
    runs = [
        write_run(
            tmp_path, f"{dataset}-{metric}",
            run={"dataset": {"id": dataset}},
            evaluation={"headline": {"metric": metric, "value": 0.5, "mode": "max"}},
        )
        for dataset, metric in product((6 * "0a", 6 * "0b"), ("accuracy", "f1"))
    ]  # fmt: skip
    page = page_of(*runs)
    titles = (f"{6 * '0a'}, accuracy", f"{6 * '0a'}, f1", f"{6 * '0b'}, f1")
    for title in (f"digits ({one})" for one in titles):
        assert page.count(f"Best on <b>{title}</b>") == 1


@pytest.mark.parametrize(("values", "is_drawn"), [([2.0, 1.0], True), ([None, None], False)])
def test_metrics_of_other_names_are_drawn_and_nothing_is_said_to_be_missing(
    tmp_path, values, is_drawn
):
    page = page_of(write_run(tmp_path, "one", lines=lines(perplexity=values)))
    assert ('<figure class="curves" id="group-1-curves"' in page) == is_drawn
    assert ("No run on this dataset recorded a finite value" in page) != is_drawn


def test_the_drawing_of_an_interval_has_room_for_its_dot_at_both_ends(tmp_path):
    page = page_of(write_run(tmp_path, "one", accuracy=1.0), write_run(tmp_path, "two"))
    assert 'viewBox="-4 0 92 12"' in page
    assert '<circle cx="84.0" cy="6" r="3.5"/>' in page


def test_the_page_begins_with_the_project_and_the_date_of_its_newest_result(tmp_path):
    trained = {"action": job_document("train/one", ended="2026-05-04T09:13:10Z")}
    runs = [write_run(tmp_path, "one", provenance=trained), write_run(tmp_path, "two")]
    page = render(runs, generated_from="config/runs.tsv", project="Digits & co")
    assert "<h1>Digits &amp; co</h1>" in page
    assert "newest result:" in page
    assert ">2026-05-04 09:13 UTC</time>" in page
    assert "newest result" not in page_of(write_run(tmp_path, "two"))


def test_settings_that_differ_from_their_default_come_first(tmp_path):
    settings = {"seed": 1, "devices": 4, "accelerator": "cpu", "model_args": {"width": 16}}
    page = page_of(write_run(tmp_path, "one", run={"settings": settings}))
    rows = re.findall(r'<tr( class="changed")?><th scope="row">(\w[\w.]*)</th>', page)
    names = [name for _, name in rows]
    assert [name for mark, name in rows if mark] == ["devices", "model_args.width"]
    assert names.index("model_args.width") < names.index("accelerator") < names.index("seed")
    assert "default 2</span>" in page


@given(
    st.dictionaries(
        st.sampled_from(sorted(default_settings())), st.none() | st.integers(0, 9) | st.just("sgd")
    )
)
def test_a_setting_is_changed_where_it_is_not_its_default(values):
    found = changed_settings({**default_settings(), **values})
    expected = {key for key, value in values.items() if value != default_settings()[key]}
    assert set(found) == expected - {"accelerator"}


def test_tags_and_the_first_line_of_a_note_stand_in_the_leaderboard(tmp_path):
    asked = {"notes": {"one": "Diverged <twice>.\nMore."}, "tags": ("paper",)}
    page = page_of(write_run(tmp_path, "one", asked=asked))
    table = page.partition('<table id="leaderboard"')[2].partition("</table>")[0]
    assert '<span class="tag">paper</span>' in table
    assert '<span class="remark">Diverged &lt;twice&gt;.</span>' in table
    assert "paper digits" in re.findall('data-text="(.*?)"', table)[0]


def test_earlier_reports_are_read_and_what_is_none_is_left_out(tmp_path):
    for index, name in enumerate(("first", "second", "own")):
        write_report(
            [write_run(tmp_path / "runs", "one", accuracy=0.9 + index / 100)],
            tmp_path / name / "index.html",
            generated_from="config/runs.tsv",
            action=job_record(f"render_report/{name}", ended=f"2026-05-0{index + 1}T00:00:00Z"),
        )
    for name, text in (
        ("broken", "{"),
        ("strange", "[]"),
        ("empty", '{"runs": [], "groups": [1]}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text)
    found = read_history(tmp_path / "own")
    assert [one.report for one in found] == ["second", "first"]
    best = EarlierBest(title="digits", metric="accuracy", value=0.91, run="one")
    assert found[0].best == [best]
    page = render([write_run(tmp_path, "one")], generated_from="x", history=found)
    assert "accuracy 91.0 %" in page


FIGURE = st.none() | st.booleans() | st.floats() | st.integers(-5, 5) | st.text(max_size=3)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", HOSTILE]), FIGURE), max_size=5))
def test_a_scatter_of_any_figures_is_valid_and_shows_names_as_values_alone(found):
    points = [
        Point(series=Series(run=HOSTILE, rank=index, curves={}), figures=figures)
        for index, figures in enumerate(found)
    ]
    spec = scatter(points, ["a"], "b")
    if spec is None:
        return
    text = json.dumps(spec, allow_nan=False)
    assert HOSTILE not in json.dumps(
        [spec["transform"], spec["encoding"]["x"], spec["encoding"]["y"]]
    )
    names = spec["params"][0]["bind"]["labels"]
    assert len(names) >= 2
    assert all(len(row["v"]) == len(names) for rows in spec["datasets"].values() for row in rows)
    assert "Infinity" not in text


def test_settings_beyond_the_first_columns_can_be_chosen(tmp_path):
    keys = [f"model_args.k{index}" for index in range(6)]
    runs = [
        write_run(tmp_path, f"r{n}", asked={"varied": dict.fromkeys(keys, n)}) for n in range(2)
    ]
    page = page_of(*runs)
    hidden = re.findall(r"<th scope=\"col\"[^>]* hidden><button type=\"button\">(.*?)<", page)
    assert hidden == keys[4:]
    assert page.count(" hidden>0</td>") == 2


def test_names_may_break_at_separators_and_never_within_a_number():
    text = "net-lr=1e-05-model_args.width=0.001,a<b>"
    shown = _breakable(text)
    assert str(shown).replace("<wbr>", "|") == (
        'net-|lr=|<span class="whole">1e-05</span>-|model_|args|.width=|0.001,|a&lt;b&gt;'
    )
    assert shown.striptags() == text


@pytest.mark.parametrize(
    "folder", ["store/work/a b/profiler", "work/1f0c4c8e2d3b/profiler in the store"]
)
def test_files_of_a_profiler_are_linked_if_they_lie_in_the_projects_folder(tmp_path, folder):
    profiled = {"tracking": {"profiler": {"folder": folder}}}
    page = page_of(write_run(tmp_path, "one", lines=lines(val_loss=[0.9]), provenance=profiled))
    link = f'<a href="../../../{folder.replace(" ", "%20")}/">'
    assert (link in page) == folder.startswith("store")
    assert folder in page


def test_the_page_shows_the_initial_weights_and_what_was_left_out(tmp_path):
    init = {
        "source": "run",
        "sha256": "ab" * 32,
        "loaded": 1,
        "ignored": ["head.<b>"],
        "missing": ["neck.w [3]"],
    }
    trained = {"training": {"steps": 20, "epochs": 2, "init": init}}
    page = page_of(write_run(tmp_path, "one", provenance=trained))
    assert "<td>1 tensor of another run<br>" in page
    assert "left out by init.ignore: head.&lt;b&gt;" in page
    assert "missing in the file: neck.w [3]" in page
    assert "initial weights" not in page_of(write_run(tmp_path, "two"))


def test_the_lineage_shows_the_chain_of_runs_that_a_run_begins_from(tmp_path):
    def ids(*names: str) -> list[str]:
        return [json.loads(write_run(tmp_path, name).run.read_bytes())["run"] for name in names]

    base, tuned = ids("base", "tuned")

    def begin(name: str, **of: object):
        made = {"kind": "init", "identity": "e" * 64, **of}
        names = {base: "base", tuned: "tuned"}
        return write_run(tmp_path, name, provenance={"bases": [made]}, asked={"bases": names})

    page = page_of(
        begin("base", source="hf"),
        begin("tuned", source="run", run=base, sha256="d" * 64),
        begin("again", source="run", run=tuned, state="last", step=1200),
    )
    found = re.findall(r"<li><b>Begins from</b> (.*?)</li>", page)
    texts = [re.sub(r"<.*?>", "", one) for one in found]
    first = "a folder with content eeeeeeeeeeeeeeee…"
    second = f"run base {base}, weights dddddddddddddddd…, by train/{base}"
    third = f"run tuned {tuned}, its last training checkpoint (step 1,200), by train/{tuned}"
    assert sorted(texts) == sorted([first, second, first, third, second, first])
    assert "Begins from" not in page_of(write_run(tmp_path, "alone"))


MEMBERS = [
    {"run": "a" * 12, "sha256": "1" * 64, "is_chosen": True, "score": 0.25, "tried": 0.25},
    {"run": "b" * 12, "sha256": "2" * 64, "is_chosen": False, "score": 0.5, "tried": 0.75},
    {"run": "c" * 12, "sha256": "3" * 64, "is_chosen": False, "score": None, "tried": None},
]


def combined_page(tmp_path, made, **base):
    study = {"kind": made["kind"], "source": "sweep", "identity": "d" * 64, "trials": 4, **base}
    runs = [
        {"kind": made["kind"], "source": "run", "identity": "0" * 64, "run": one["run"]}
        for one in made["members"]
    ]
    training = {"steps": 0, "epochs": 0, "combined": made}
    provenance = {"bases": [study, *runs], "training": training}
    asked = {"bases": {"d" * 64: "lr", "a" * 12: "trial 0"}}
    return page_of(write_run(tmp_path, "mean", provenance=provenance, asked=asked))


def test_a_page_names_members_scores_and_recomputed_statistics(tmp_path):
    made = {
        "kind": "average", "members": MEMBERS, "how": "greedy", "batch_norms": 1, "batches": 23,
    }  # fmt: skip
    page = combined_page(tmp_path / "mean", made, left_out={"1": "rank 0: diverged"})
    block = re.search(r"<h3>Members of the average</h3>.*?</section>", page, re.DOTALL)[0]
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr.*?</tr>", block)[1:]
    ]
    assert rows[0] == [
        f"trial 0 <code>{'a' * 12}</code>", f"<code>{'1' * 16}…</code>", "0.25", "0.25", "yes"
    ]  # fmt: skip
    assert rows[1][2:] == ["0.5", "0.75", "no"]
    assert rows[2][2:] == ["–", "–", "no"]
    assert "Greedy soup: 1 of 3 runs" in block
    assert "The statistics of 1 batch norm were recomputed over 23 batches of the training" in block
    assert "1 trial without a result is left out: trial 1 (rank 0: diverged)." in block
    assert "the trials of sweep lr, study <code>dddddddddddd</code> of 4 trials" in page
    members = [{key: one[key] for key in ("run", "sha256")} for one in MEMBERS[:2]]
    made = {"kind": "ensemble", "members": members, "how": "logits"}
    page = combined_page(tmp_path / "both", made)
    assert "Members of the ensemble" in page
    assert "The average of the logits of 2 runs" in page
    assert "when tried" not in page
    assert "recomputed" not in page
    assert "Members of the" not in page_of(write_run(tmp_path / "alone", "alone"))
