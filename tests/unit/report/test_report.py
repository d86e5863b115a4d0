"""The report page as text: what it says, what it refuses, what it escapes, how large it is."""

import json
import math
import re
import unicodedata

import numpy as np
import pytest

from shardline.core.intervals import wilson_interval
from shardline.core.visible import visible
from shardline.errors import DataError
from shardline.records.base import encode, read_record
from shardline.records.reported_parts import Curve
from shardline.records.reports import Report
from shardline.report import RunFiles, write_report
from shardline.report.charts.series import OTHER_RUNS, thin
from shardline.report.confusion_table import MAX_CLASSES
from shardline.report.page import render_page
from shardline.report.sealed import read_curves
from shardline.training.confusion import Confusion
from tests.support.report_runs import render, write_run


def page_of(*runs: RunFiles) -> str:
    return render(runs, generated_from="config/runs.tsv")


def markup(page: str) -> str:
    """Return the page without what stands in its scripts and styles."""
    return re.sub(r"<(script|style)\b([^>]*)>.*?</\1>", r"<\1\2>", page, flags=re.DOTALL)


def own_text(page: str) -> str:
    """Return what a reader sees, as running text."""
    return " ".join(re.sub(r"<[^>]*>", " ", markup(page)).split())


def specs(page: str) -> list[dict]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    return [json.loads(text) for text in found]


def curve(values) -> Curve:
    return Curve(steps=tuple(range(len(values))), values=tuple(values))


@pytest.mark.parametrize(
    ("proportion", "num_samples", "expected"),
    [
        # statsmodels.stats.proportion.proportion_confint(count, n, method="wilson")
        (0.97, 100, (0.915476, 0.989746)),
        (1.0, 10, (0.722467, 1.0)),
        (0.0, 10, (0.0, 0.277533)),
        (0.5, 20, (0.299298, 0.700702)),
    ],
)
def test_wilson_interval_equals_the_published_formula(proportion, num_samples, expected):
    assert wilson_interval(proportion, num_samples) == pytest.approx(expected, abs=1e-5)


def test_page_shows_score_interval_samples_time_and_ranks(tmp_path):
    text = own_text(page_of(write_run(tmp_path, "wide", accuracy=0.97, num_samples=100)))
    assert "97.0 %" in text
    assert "91.5 % to 99.0 %, n = 100" in text
    assert "1 h 02 min" in text
    assert "2 ranks on 1 node, torchrun" in text
    assert "2 × cuda" in text


def test_runs_are_best_close_or_neither(tmp_path):
    runs = [write_run(tmp_path, f"acc{share}", accuracy=share) for share in (0.97, 0.955, 0.7)]
    text = own_text(page_of(*runs))
    assert "acc0.97 best mlp" in text
    assert "acc0.955 ≈ best mlp" in text
    assert "acc0.7 mlp" in text
    assert (
        "1 of the other 2 runs is not clearly lower: the difference is within the noise of the held-out samples."
        in text
    )


def test_lower_is_better_for_an_error_and_no_interval_is_claimed(tmp_path):
    def regression(mse):
        headline = {"metric": "mse", "value": mse, "mode": "min"}
        return {"headline": headline, "metrics": {"mse": mse}, "confusion": None}

    runs = [write_run(tmp_path, f"mse{mse}", evaluation=regression(mse)) for mse in (9.5, 3.25)]
    text = own_text(page_of(*runs))
    table = text.partition("Runs are ordered")[2]
    assert table.index("mse3.25 best") < table.index("mse9.5")
    assert "95 % interval 9" not in text
    assert "≈ best mlp" not in text


def test_a_failed_run_comes_last_and_says_so(tmp_path):
    headline = {"metric": "accuracy", "value": None, "mode": "max"}
    lines = ['{"step": 1, "train_loss": 2.5}', '{"step": 2, "train_loss": null}']
    failed = write_run(tmp_path, "failed", evaluation={"headline": headline}, lines=lines)
    text = own_text(page_of(failed, write_run(tmp_path, "good")))
    assert text.index("good best") < text.index(
        "failed warning the loss never fell: train_loss is 2.5"
    )
    assert "not finite" in text
    assert "values that are not finite and are left out of curves: failed." in text


def test_only_settings_that_differ_become_columns(tmp_path):
    one = write_run(tmp_path, "one", asked={"varied": {"optim.lr": 0.1, "seed": 7}})
    two = write_run(tmp_path, "two", asked={"varied": {"optim.lr": 0.3, "seed": 7}})
    headers = re.findall(
        r'<th scope="col" role="columnheader".*?>([^<>]+)</button>', page_of(one, two)
    )
    assert "optim.lr" in headers
    assert "seed" not in headers


def test_text_from_files_is_escaped_everywhere(tmp_path):
    hostile = '</script><script>alert(1)</script><img src=x onerror="alert(1)">'
    evaluation = {
        "confusion": {"classes": [hostile, "b"], "counts": [[3, 1], [0, 4]]},
        "metrics": {hostile: 1.0},
        "reference": {"metric": "accuracy", "value": 0.9, "meaning": hostile},
    }
    run = {
        "model": hostile,
        "settings": {hostile: hostile},
    }
    asked = {"names": (hostile,), "dataset_names": (hostile,), "notes": {hostile: hostile}}
    asked["tags"] = (hostile,)
    files = write_run(tmp_path, "x", run=run, asked=asked, evaluation=evaluation, lines=[
        json.dumps({"step": 1, "train_loss": 1.0, hostile: 2.0}),
    ])  # fmt: skip
    page = render([files], generated_from=hostile)
    assert "<script>alert" not in page
    assert "<img" not in markup(page)
    assert page.count("</script") == 5  # one chart, images, the libraries, two of our own
    assert specs(page)[0]["concat"]


def test_every_character_that_reorders_text_is_spelled_and_no_other():
    kinds = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    marks = {"\u061c", "\u200e", "\u200f"}  # of a direction, without a glyph
    for code in range(0x20, 0x11000):
        is_reordering = unicodedata.bidirectional(chr(code)) in kinds or chr(code) in marks
        is_hidden = is_reordering or unicodedata.category(chr(code)) == "Cs" or 0x7F <= code < 0xA0
        assert visible(chr(code)) == (f"⟨U+{code:04X}⟩" if is_hidden else chr(code))


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\ud800"])
def test_a_character_that_reorders_text_is_spelled_wherever_it_comes_from(tmp_path, mark):
    name, shown = f"ca{mark}tac", f"ca⟨U+{ord(mark):04X}⟩tac"
    evaluation = {
        "confusion": {"classes": [name, "b"], "counts": [[3, 1], [0, 4]]},
        "metrics": {name: 1.0},
        "samples": {"hardest": [{"row": 1, "label": name, "predicted": name, "loss": 1.0}]},
    }
    run = {"model": name, "settings": {name: name}}
    asked = {
        "names": (name,), "dataset_names": (name,), "varied": {name: name}, "notes": {name: name},
        "tags": (name,),
    }  # fmt: skip
    lines = [json.dumps({"step": 1, "train_loss": 1.0, name: 2.0})]
    files = write_run(tmp_path, "x", run=run, asked=asked, evaluation=evaluation, lines=lines)
    files = [files, write_run(tmp_path, "y")]
    write_report(files, tmp_path / "index.html", generated_from=name)
    page, data, table = (
        (tmp_path / file).read_text() for file in ("index.html", "report.json", "runs.csv")
    )
    assert mark not in page + data + table
    assert page.count(shown) > 15
    assert f"\\u{ord(mark):04x}" not in page, "a script would make the character of its escape"
    assert json.loads(data)["generated_from"] == name, "programs read what was given"
    assert shown in table


def test_page_names_no_address_to_load_from(tmp_path):
    page = page_of(write_run(tmp_path, "one"))
    assert not re.findall(r'<(?:link|script|img)[^>]+(?:src|href)="(?!data:)', markup(page))
    assert "default-src 'none'" in page


def test_same_files_give_the_same_bytes_in_any_order(tmp_path):
    runs = [write_run(tmp_path, f"run{index}", accuracy=0.9 + index / 100) for index in range(3)]
    assert page_of(*runs) == page_of(*reversed(runs))


@pytest.mark.rotating
def test_a_hundred_runs_of_three_thousand_steps_stay_under_5_mb(tmp_path):
    runs = [
        write_run(
            tmp_path,
            f"digits-mlp_lr={index}",
            accuracy=0.9 + index / 2000,
            num_steps=3000,
            asked={"varied": {"optim.lr": index / 1000}},
        )
        for index in range(100)
    ]
    page = page_of(*runs)
    assert len(page.encode()) < 5_000_000
    assert OTHER_RUNS in own_text(page)


@pytest.mark.parametrize("stem", ["run", "metrics", "evaluation", "provenance"])
def test_a_missing_file_is_named_with_its_remedy(tmp_path, stem):
    files = write_run(tmp_path, "one")
    path = getattr(files, stem)
    path.unlink()
    with pytest.raises(DataError) as caught:
        page_of(files)
    assert str(path) in str(caught.value)
    assert "run `snakemake` again" in str(caught.value)


@pytest.mark.parametrize(
    ("stem", "content", "said"),
    [
        ("evaluation", "{", "is not valid JSON"),
        ("evaluation", '{"headline": {"metric": "accuracy"}}', "missing required field `value`"),
        ("evaluation", "[]", "is not a JSON object"),
        ("run", '{"run": "one"}', "missing required field `identity`"),
        ("metrics", '{"step": 1}\n{"step": 2, "trai', "line 2 is not JSON"),
        ("metrics", '{"epoch": 1}', "line 1 has no integer `step` (found None)"),
        ("provenance", '{"run": "other-1"}', "is of run 'other-1'"),
    ],
)
def test_a_malformed_file_is_named_with_what_was_found(tmp_path, stem, content, said):
    files = write_run(tmp_path, "one")
    getattr(files, stem).write_text(content)
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        page_of(files)
    assert str(getattr(files, stem)) in str(caught.value)


def test_a_malformed_confusion_is_named(tmp_path):
    evaluation = {"confusion": {"classes": ["a", "b"], "counts": [[1, 2]]}}
    with pytest.raises(DataError, match="has not the form"):
        page_of(write_run(tmp_path, "one", evaluation=evaluation))


def test_no_runs_is_an_error_with_a_remedy():
    with pytest.raises(DataError, match=re.escape("add a row to config/runs.tsv")):
        page_of()


def test_what_a_script_does_not_measure_may_be_missing(tmp_path):
    files = write_run(tmp_path, "bare")
    files.evaluation.write_text(
        '{"headline": {"metric": "f1", "value": 0.5}, "identity": {"settings": {}}}'
    )
    files.provenance.write_text("{}")
    files.metrics.write_text("")
    assert "bare" in own_text(page_of(files))


def test_what_a_script_cannot_tell_is_left_open(tmp_path):
    parts = dict.fromkeys(["queue", "data_wait", "compute", "validation", "checkpoint", "lost"])
    measured = {
        "goodput": {
            "elapsed_s": 9.0, "parts": {**parts, "environment": 3.0, "other": 6.0}, "share": None,
        },
        "throughput": {
            "step_s": None, "samples_per_s": None, "steps": 0, "warmup_steps": 0,
            "global_batch": 32, "ranks": 2,
        },
    }  # fmt: skip
    text = own_text(page_of(write_run(tmp_path, "one", provenance=measured)))
    assert "goodput –" in text
    assert "environment 3.0 s" in text


def test_attempts_tell_where_when_why_and_what_was_lost(tmp_path):
    first = {
        "host": "n1", "job": "17", "started": "2026-01-31T10:00:00.000Z", "ended": "2026-01-31T10:01:30.000Z",
        "end": "hung", "reason": "rank 1 <stopped> at step 42; run the same command again to resume",
        "steps_done": 42, "steps_lost": 12, "lost_s": 25.0,
    }  # fmt: skip
    last = {**first, "job": None, "end": "sealed", "reason": "trained to its end", "steps_lost": 0}
    provenance = {"attempts": 2, "attempt_log": [first, last]}
    page = page_of(write_run(tmp_path, "mlp", provenance=provenance))
    rows = (
        page.partition('<section class="attempts">')[2].partition("</section>")[0].split("<tr")[2:]
    )
    cells = [re.findall(r"<td [^>]*>(.*?)</td>", row) for row in rows]
    assert cells[0][:4] == ["2026-01-31 10:00:00", "n1", "17", "90.0 s"]
    assert cells[0][4:] == ["42", "12", "25.0 s", "hung: rank 1 &lt;stopped&gt; at step 42"]
    assert cells[1][2::5] == ["–", "sealed"]


def test_many_classes_give_the_worst_mistakes_instead_of_a_table(tmp_path):
    size = MAX_CLASSES + 1
    counts = [[9 if row == column else 0 for column in range(size)] for row in range(size)]
    counts[3][5] = 7
    confusion = {"classes": [f"class {index}" for index in range(size)], "counts": counts}
    page = page_of(write_run(tmp_path, "one", evaluation={"confusion": confusion}))
    assert 'class="confusion"' not in page
    assert "class 3 class 5 7" in own_text(page)


def test_a_thousand_classes_give_the_worst_mistakes_and_the_hardest_classes(tmp_path):
    generator = np.random.default_rng(3)
    label, noise = generator.integers(0, 1000, (2, 40_000))
    predicted = np.where(generator.random(40_000) < 0.9, label, noise)
    label[:300], predicted[:300] = 17, 5
    found = Confusion(1000)
    found.add(label, predicted)
    confusion = encode(found.describe([f"class {index}" for index in range(1000)]))
    text = own_text(page_of(write_run(tmp_path, "one", evaluation={"confusion": confusion})))
    assert (
        f"The most frequent of {confusion['num_mistakes']:,} mistakes among 1,000 classes" in text
    )
    assert re.search(r"class 17 class 5 30\d ", text)
    share = 100 * found.right[17] / found.rows[17]
    assert f"class 17 {share:.1f} % {found.rows[17]}" in text
    assert "counts may be too low" not in text


def test_a_capped_confusion_without_its_lists_is_malformed(tmp_path):
    for confusion in ({"num_classes": 3}, {"mistakes": [], "hardest": [{}]}, {"counts": 3}):
        with pytest.raises(DataError, match="has not the form"):
            page_of(write_run(tmp_path, "one", evaluation={"confusion": confusion}))


def test_two_runs_of_one_name_are_told_apart(tmp_path):
    runs = [
        write_run(tmp_path, "same", **{stem: {"run": f"same-{end}"} for stem in
                  ("run", "evaluation", "provenance")})
        for end in "ab"
    ]  # fmt: skip
    text = own_text(page_of(*runs))
    assert "same-a" in text
    assert "same-b" in text


def test_thinned_curve_keeps_ends_and_extremes():
    values = [math.sin(index / 50) for index in range(5000)]
    values[1234] = 40.0
    thinned = thin(curve(values), 300)
    assert len(thinned.steps) <= 300
    assert (thinned.steps[0], thinned.steps[-1]) == (0, 4999)
    assert max(thinned.values) == 40.0
    assert list(thinned.steps) == sorted(set(thinned.steps))


def test_short_curve_is_not_thinned():
    short = curve([1.0, 2.0, 3.0])
    assert thin(short, 300) is short


def test_a_later_line_of_the_same_step_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "train_loss": 9.0}\n\n{"step": 5, "train_loss": 1.0}\n')
    assert read_curves(path)["train_loss"].values == (1.0,)


def test_panels_follow_what_was_recorded(tmp_path):
    full = specs(page_of(write_run(tmp_path / "full", "full")))[0]
    bare = write_run(tmp_path / "bare", "bare", lines=['{"step": 1, "train_loss": 0.5}'])
    assert len(full["concat"]) == 3
    assert len(specs(page_of(bare))[0]["concat"]) == 1


def test_the_page_is_rendered_from_report_json_alone(tmp_path):
    repeats = [write_run(tmp_path / "runs", f"a_seed={seed}", seed=seed) for seed in (1, 2)]
    png = "data:image/png;base64,iVBORw0KGgo="
    sample = {"row": 7, "label": "1", "predicted": "2", "loss": 1.25, "image": png}
    other = write_run(
        tmp_path / "runs", "b\u202e", lr=0.3, num_steps=900, accuracy=0.5,
        asked={"varied": {"optim.lr": 0.3, "seed": 7}, "notes": {"b": "odd"}, "tags": ("x",)},
        evaluation={"samples": {"hardest": [sample], "typical": []}},
        provenance={
            "environment": {"python": "3.11.7", "packages": {"a": "1"}},
            "goodput": {"elapsed_s": 9.0, "parts": {"compute": 7.5}, "share": 0.8},
            "training": {"steps": 900, "best_score": 0.3, "interventions": []},
        },
    )  # fmt: skip
    page = tmp_path / "report" / "index.html"
    write_report([*repeats, other], page, generated_from="config/runs.tsv", project="P")
    written = page.read_bytes()
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file():
            path.unlink()
    report = read_record(page.with_name("report.json"), Report, remedy="")
    assert render_page(report).encode() == written
    assert png in written.decode()


def test_write_report_makes_the_folder_and_leaves_no_partial_file(tmp_path):
    target = tmp_path / "results" / "report.html"
    write_report([write_run(tmp_path / "runs", "one")], target, generated_from="config/runs.tsv")
    assert sorted(path.name for path in target.parent.iterdir()) == [
        "report.html",
        "report.json",
        "runs.csv",
    ]
    assert target.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("is_early", [True, False])
def test_the_leaderboard_marks_a_training_that_early_stopping_ended(tmp_path, is_early):
    training = {"epochs": 2, "steps": 549, "stopped_early": is_early}
    page = page_of(write_run(tmp_path, "one", provenance={"training": training}))
    marked = '549, <span title="early stopping ended 1 of 1 training">early</span></td>'
    assert (marked in page) == is_early
    assert ("549</td>" in page) != is_early


def test_what_was_done_where_a_training_diverged_is_told(tmp_path):
    made = {
        "step": 9,
        "epoch": 0,
        "rank": 1,
        "cause": "the training loss is NaN",
        "lr": 0.01,
        "factor": 1.0,
    }
    done = [
        {**made, "first": 8, "action": "skip"},
        {**made, "step": 30, "first": 29, "action": "lower", "factor": 0.5, "lr": None},
    ]
    training = {"epochs": 2, "steps": 100, "stopped_early": False}
    page = own_text(
        page_of(
            write_run(tmp_path, "one", provenance={"training": {**training, "interventions": done}})
        )
    )
    assert "step 9 the training loss is NaN (lr 0.01): skipped the updates of steps 8 to 9" in page
    assert (
        "step 30 the training loss is NaN: multiplied the learning rate by 0.5 from step 29" in page
    )
    assert "diverged" not in own_text(
        page_of(write_run(tmp_path, "two", provenance={"training": training}))
    )


def test_a_run_names_the_certificate_that_its_code_resumes_exactly(tmp_path):
    path = "results/certificates/resume-0123456789ab.json"
    certificate = {"path": path, "sha256": "ab" * 32, "verdict": "survived"}
    assert "resumes exactly" not in page_of(write_run(tmp_path, "without"))
    page = page_of(write_run(tmp_path, "with", provenance={"certificate": certificate}))
    assert path in page
    assert "survived <code>shardline drill resume</code>" in page


HOSTILE = "<img src=x onerror=alert(1)>\u202e</dd><script>alert(1)</script> مرحبا \ud800 {{ 7*7 }}"


def test_samples_that_a_model_describes_are_shown_and_nothing_of_them_is_markup(tmp_path):
    png = "data:image/png;base64,iVBORw0KGgo="
    names = {"1": HOSTILE}
    box = {"at": [0.1, 0.2, 0.5, 1], "label": HOSTILE, "score": 0.75}
    samples = {
        "hardest": [
            {"row": 7, "loss": None, "image": png, "boxes": {"true": [box], "predicted": [box] * 9, "left_out": 2}},
            {"row": 8, "loss": 1.25, "mask": {"true": png, "predicted": "javascript:alert(1)", "classes": names}},
        ],
        "typical": [{"row": 9, "text": {"prompt": HOSTILE, "true": " \n", "predicted": ""}, "label": HOSTILE}],
    }  # fmt: skip
    evaluation = {"samples": samples, "measured_by": "model", "task": "none", "confusion": None}
    page = page_of(write_run(tmp_path, "x", evaluation=evaluation))
    shown = markup(page)
    for text in (
        "row 7, loss not finite",
        "row 8, loss 1.2",
        "and 3 more",
        "2 more boxes not drawn",
        "␣⏎",
    ):
        assert text in shown
    assert shown.count('<rect class="predicted"') == 9
    assert shown.count('<rect class="ghost"') == 1
    assert 'x="0.1" y="0.2" width="0.4" height="0.8"' in shown
    assert shown.count("onerror") == shown.count("&lt;img src=x onerror")
    assert "<script>alert" not in page
    assert "javascript:" not in page
    assert "\u202e" not in page
    assert re.findall(r'<img src="([^"]*)"', shown) == ["#image-0"] * 3
    assert "7*7" in shown
