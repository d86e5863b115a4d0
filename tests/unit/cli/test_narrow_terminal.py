"""What the `shardline` command prints on a terminal of 80 columns: no word is broken, and none is lost."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from shardline.cli.check import _show
from shardline.cli.display.evidence_views import show_comparison
from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import say
from shardline.cli.display.upkeep_views import show_explanation, show_runs
from shardline.config.causes import Cause
from shardline.results.check.found import Finding
from shardline.results.diff import Change, Comparison
from shardline.results.states import State

WIDTH = 80
WORD = st.text(st.sampled_from("abz-_=.:/0é名"), min_size=1, max_size=60)
LONG = st.text(st.sampled_from("ab/"), min_size=90, max_size=120)  # may go beyond the last column
NAME = WORD | st.sampled_from(["net", "mlp_lr=0.003_model_args.width=64", "mypkg.models:Net"])
SENTENCE = st.lists(WORD | LONG, min_size=1, max_size=12).map(" ".join)
LINES = st.lists(SENTENCE, min_size=1, max_size=3).map(
    "\n  ".join
)  # the second names a file's line
WARNING = st.builds(lambda sentence: {"sentence": sentence}, SENTENCE)
FAILURE = st.builds(lambda sentence: {"sentence": sentence, "log": "logs/train/abc.log"}, LINES)
RUN = st.fixed_dictionaries(
    {
        "run": NAME, "dataset": NAME, "model": NAME, "id": st.just("a77ef5251890"), "progress": st.none(),
        "state": st.sampled_from(list(State)), "step": st.none() | st.integers(0, 10**6),
        "headline": st.none() | st.just({"metric": "accuracy", "value": 0.5}),
        "failure": st.none() | FAILURE, "warnings": st.lists(WARNING, max_size=2),
        "bases": st.lists(st.builds(lambda name: {"name": f"run:{name}"}, NAME), max_size=1),
    }
)  # fmt: skip
CAUSES = st.lists(
    st.builds(Cause, kind=st.sampled_from(["settings", "code"]), text=SENTENCE),
    min_size=1,
    max_size=4,
)
CHANGES = st.lists(
    st.builds(
        Change, metric=NAME, headline=st.sampled_from(["", "max"]), old=st.floats(), new=st.none() | st.floats(),
        interval=st.none() | st.just((-0.03, 0.05)), basis=st.just(""), verdict=SENTENCE,
    ),
    min_size=1, max_size=4,
)  # fmt: skip
FINDINGS = st.lists(
    st.builds(
        Finding, kind=st.sampled_from(["error", "warning", "not checked"]), sentence=LINES,
        runs=st.lists(NAME, max_size=5).map(tuple),
    ),
    max_size=5,
)  # fmt: skip


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a call prints on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", "24")

    def read(call):
        call()
        out, err = capsys.readouterr()
        return out + err

    return read


def holds(shown: str, *texts: str) -> None:
    """Hold what is shown against the texts: each line fits unless it has one word, and no word is broken or lost."""
    for line in shown.splitlines():
        assert cell_len(line) <= WIDTH or len(line.split()) == 1, line
    words = shown.split()
    for text in texts:
        for word in text.split():
            assert word in words


HELD = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@HELD
@given(runs=st.lists(RUN, min_size=1, max_size=4))
def test_a_list_of_runs(printed, runs):
    failed = [one["failure"]["sentence"] for one in runs if one["failure"]]
    cells = [one[key] for one in runs for key in ("run", "dataset", "model", "id")]
    warnings = [found["sentence"] for one in runs for found in one["warnings"]]
    bases = [base["name"] for one in runs for base in one["bases"]]
    holds(printed(lambda: show_runs(runs)), *failed, *warnings, *cells, *bases)


@HELD
@given(findings=FINDINGS)
def test_findings_of_a_check(printed, findings):
    shown = printed(lambda: _show(findings, 6, as_json=False))
    holds(shown, *(one.text for one in findings))


@HELD
@given(causes=CAUSES, sentence=LINES, name=NAME)
def test_why_a_run_has_failed(printed, causes, sentence, name):
    failure = SimpleNamespace(sentence=sentence, log="logs/train/a.log", rule="train", when="now")
    explanation = SimpleNamespace(
        run=SimpleNamespace(name=name, id="a77ef5251890"), state=State.FAILED, compared_with=None,
        causes=causes, failure=failure, progress=None, variables=(), edited="", length="",
    )  # fmt: skip
    shown = printed(lambda: show_explanation(explanation))
    holds(shown, sentence, *(one.text for one in causes))


@HELD
@given(causes=CAUSES, changes=CHANGES, name=NAME)
def test_two_runs_side_by_side(printed, causes, changes, name):
    comparison = Comparison(old=name, new="net", causes=causes, circumstances=[], metrics=changes)
    shown = printed(lambda: show_comparison(comparison))
    holds(shown, name, *(one.text for one in causes), *(one.verdict for one in changes))


@HELD
@given(sentence=LINES)
def test_an_error_with_which_a_command_ends(printed, sentence):
    holds(printed(lambda: say(sentence, is_error=True)), sentence)


def test_a_table_that_is_too_wide_has_its_first_column_on_lines_of_their_own(printed):
    rows = [
        ("mlp_lr=0.003_model_args.width=64", "rings", "mypkg.models:Net", "failed, step 1,200")
    ] * 2
    shown = printed(lambda: show_rows(("run", "dataset", "model", "state"), rows))
    assert shown.splitlines()[:2] == [
        "run                                dataset   model              state",
        "mlp_lr=0.003_model_args.width=64   rings     mypkg.models:Net   failed, step",
    ]
    rows = [(f"{rows[0][0]}_{rows[0][0]}", *rows[0][1:], "accuracy 0.9722", "a77ef5251890")]
    shown = printed(
        lambda: show_rows(("run", "dataset", "model", "state", "headline", "identity"), rows)
    )
    assert shown.splitlines() == [
        "run",
        "  dataset   model              state              headline          identity",
        rows[0][0],
        "  rings     mypkg.models:Net   failed, step       accuracy 0.9722   a77ef5251890",
        "                               1,200",
    ]


def test_lines_into_a_pipe_are_as_long_as_they_need_to_be(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    say("word " * 300 + "end")
    assert capsys.readouterr().out == "word " * 300 + "end\n"
