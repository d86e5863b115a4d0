"""What the logger plugin makes of events and of what jobs report: lines, whatever the names, widths and numbers."""

import io
import json
import logging
import logging.config
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake
from hypothesis import example, given
from hypothesis import strategies as st
from snakemake.exceptions import LockException, format_exception_to_string
from snakemake.sourcecache import SourceCache
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.tests import TestLogHandlerBase

from shardline.core.files import write_json
from shardline.core.job_progress import JobProgress, is_shown_by_logger, job_progress
from shardline.pipeline import training
from shardline.supervision.rank_lines import RankLines
from snakemake_logger_plugin_shardline import LogHandler
from snakemake_logger_plugin_shardline.board import Board, results_of
from snakemake_logger_plugin_shardline.board_lines import screen, table
from snakemake_logger_plugin_shardline.display import Display
from snakemake_logger_plugin_shardline.job_progress import ReportedProgress, parse
from snakemake_logger_plugin_shardline.output import STREAM, PlainOutput
from snakemake_logger_plugin_shardline.summary import summary
from snakemake_logger_plugin_shardline.terminal_text import cells, clip, visible, wrap

TEXTS = st.text(
    alphabet=st.one_of(
        st.sampled_from("wide-名前🙂é\u0301 \t\x1b\x07\x9b\u202e\u2066\ud800\n"),
        st.characters(max_codepoint=0x2FFF),
    ),
    max_size=90,
)
COUNTS = st.none() | st.integers(0, 10**12)
NUMBERS = st.none() | st.floats()
REPORTS = st.fixed_dictionaries(
    {},
    optional={
        "title": TEXTS, "step": COUNTS, "steps": COUNTS, "epoch": COUNTS, "epochs": COUNTS, "rate": NUMBERS,
        "left_s": st.none() | st.floats(max_value=1e9, allow_nan=False), "unit": TEXTS,
        "metrics": st.dictionaries(TEXTS, NUMBERS, max_size=4), "error": TEXTS, "stopped": st.booleans(),
    },
)  # fmt: skip
WORKFLOW = str(Path(snakemake.__file__).with_name("workflow.py"))
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def board_of(reports, states=(), clock=None) -> Board:
    board = Board(clock or Clock())
    board.plan({"train": len(reports), "total": len(reports)})
    for number, report in enumerate(reports):
        job = board.start(number, "train", f"Training run{number}", [f"logs/{number}.log"])
        job.progress = parse(report)
        if number < len(states):
            job.state = states[number]
            job.causes = [job.progress.error or "failed"] if job.state == "failed" else []
    return board


@given(
    reports=st.lists(REPORTS, max_size=40),
    states=st.lists(st.sampled_from(["running", "failed", "done"]), max_size=40),
    width=st.integers(1, 220),
    height=st.integers(1, 60),
)
def test_a_screen_fits_whatever_the_jobs_report_and_shows_no_hidden_character(
    reports, states, width, height
):
    board = board_of(reports, states)
    lines = screen(board, width, height)
    assert 0 < len(lines) <= height
    assert max(map(cells, lines)) <= width
    assert not any(HIDDEN.search(line) or "\n" in line for line in lines)


@given(
    reports=st.lists(REPORTS, max_size=8),
    states=st.lists(st.sampled_from(["running", "failed", "done"]), max_size=8),
    rows=st.lists(
        st.fixed_dictionaries({"title": TEXTS, "done": st.booleans(), "headline": TEXTS}),
        max_size=8,
    ),
    width=st.none() | st.integers(10, 220),
)
def test_a_table_has_a_row_for_each_result_and_breaks_no_word_of_a_cause(
    reports, states, rows, width
):
    board = board_of(reports, states)
    board.results = results_of([*rows, None, "no row"])
    lines = summary(board, width)
    assert not any(HIDDEN.search(line) for line in lines)
    words = {word for line in lines for word in line.split()}
    for job in board.jobs.values():
        if job.state == "failed":
            assert set(visible(job.causes[0]).split()) <= words
    failed = sum(job.state == "failed" for job in board.jobs.values())
    assert len(lines) > failed


@example("\t", 1)
@given(TEXTS, st.integers(1, 100))
def test_a_text_is_clipped_and_wrapped_between_words(text, width):
    shown = visible(text)
    assert cells(clip(shown.replace("\n", " "), width)) <= width
    lines = wrap(text, width)
    assert [word for line in lines for word in line.split()] == shown.split()
    for line in lines:
        assert cells(line) <= width or len(line.split()) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_any_document_beside_a_log_is_read_without_an_error(document):
    names = ("title", "step", "steps", "epoch", "unit", "metrics", "rate", "left_s", "error")
    for name in names:
        assert isinstance(parse({name: document}), ReportedProgress)


def test_a_thousand_runs_on_24_lines_are_counted():
    reports = [
        {"title": f"run{n}", "step": n, "steps": 1000, "metrics": {"loss": 0.5}}
        for n in range(1000)
    ]
    lines = screen(board_of(reports), 80, 24)
    assert lines[1] == "run1   step 1/1000   loss 0.5  0:00:00"
    assert len(lines) == 24
    assert lines[-2:] == ["and 978 more", "0 of 1000 jobs done, 0:00:00"]
    board = board_of([], ())
    board.results = results_of(
        [{"title": f"run{n}", "done": True, "headline": "accuracy 0.9"} for n in range(1000)]
    )
    lines = summary(board, 79)
    assert lines[-2] == "and 950 more done"


def test_columns_that_do_not_fit_are_left_out_and_the_time_stays():
    report = {
        "title": "mlp_lr=0.003", "step": 1200, "steps": 48000, "epoch": 2, "epochs": 40, "rate": 35.25, "left_s": 3723,
        "metrics": {"loss": 0.123456, "val_accuracy": float("nan"), "lr": 1},
    }  # fmt: skip
    jobs = [(job, 1.0) for job in board_of([report]).jobs.values()]
    whole = "mlp_lr=0.003  step 1200/48000  epoch 2/40  loss 0.1235  val_accuracy nan  35.25 steps/s  1:02:03 left"
    assert table(jobs, None) == [whole]
    assert table(jobs, 79) == [
        "mlp_lr=0.003  step 1200/48000  loss 0.1235  35.25 steps/s  1:02:03 left"
    ]
    assert table(jobs, 40) == ["mlp_lr=0.003  step 1200/48000"]


def test_a_row_is_done_failed_partly_or_skipped_and_left_out_where_nobody_asked_for_it():
    board = board_of([{}, {}, {}], ["done", "failed", "done"])
    rows = [
        {"title": name, "logs": [f"logs/{n}.log"]} for n, name in enumerate(["a", "b", "c", "d"])
    ]
    board.results = results_of([{**rows[0], "done": True}, *rows[1:]])
    states = [line.split()[:2] for line in summary(board, 80) if not line.startswith(" ")][:-1]
    assert states == [["a", "done"], ["c", "partly"], ["b", "failed"], ["d", "skipped"]]
    board.jobs[1].state = "done"
    assert not [line for line in summary(board, 80) if line.startswith("d")]


def test_an_error_that_the_executor_repeats_is_shown_once():
    board = board_of([{}], ["failed"])
    job = board.jobs[0]
    job.causes = ["no luck", "job 7 failed: no luck"]
    assert "\n".join(summary(board, None)).count("no luck") == 1
    job.causes = ["of one kind", "of another kind"]
    assert "of one kind\n    of another kind" in "\n".join(summary(board, None))


# --- the display, with events as Snakemake's -------------------------------------------------------


def record(event=None, msg="", level=logging.INFO, path=WORKFLOW, **extra) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", level, path, 1, msg, (), None)
    for key, value in {"event": event, **extra}.items():
        setattr(made, key, value)
    return made


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """A display that writes lines into a text, by a clock that the test moves."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    stream, clock = io.StringIO(), Clock()
    display = Display(PlainOutput(stream), clock=clock)
    yield SimpleNamespace(display=display, clock=clock, text=stream.getvalue)
    display.close()


def start(shown, number, rule="train", message=None):
    shown.display.take(
        record(LogEvent.JOB_INFO, jobid=number, rule_name=rule, rule_msg=message or f"Training run{number}",
               log=[f"logs/{number}.log"], output=["out"])
    )  # fmt: skip


def report(number, **fields):
    Path(f"logs/{number}.progress.json").write_text(json.dumps(fields))


def test_without_a_terminal_each_training_has_a_line_every_30_seconds(shown):
    shown.display.take(record(LogEvent.RUN_INFO, "Job stats", stats={"train": 1, "total": 1}))
    start(shown, 1)
    report(
        1,
        title="run1",
        step=5,
        steps=10,
        epoch=1,
        epochs=2,
        metrics={"loss": 0.5},
        rate=0.5,
        left_s=10,
    )
    for shown.clock.now in (10.0, 31.0, 45.0, 62.0):
        shown.display.tick()
    lines = [line for line in shown.text().splitlines() if "step 5/10" in line]
    assert len(lines) == 2
    assert re.fullmatch(
        r"..:..:..  run1  step 5/10  epoch 1/2  loss 0.5  0.5 steps/s  0:00:10 left", lines[0]
    )


def test_many_jobs_of_a_rule_are_counted(shown):
    shown.display.take(record(LogEvent.RUN_INFO, stats={"build_shards": 64, "total": 64}))
    for number in range(64):
        start(shown, number, "build_shards", f"Cutting shards {number}")
        shown.clock.now += 1
        shown.display.take(record(LogEvent.JOB_FINISHED, job_id=number))
    lines = [line.split("  ")[1] for line in shown.text().splitlines()]
    assert lines == [f"build_shards {done}/64 done" for done in (30, 60, 64)]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_note_of_a_job_that_succeeded_is_shown_with_its_end(shown, is_terminal):
    shown.display._output.is_terminal = is_terminal
    shown.display.take(record(LogEvent.RUN_INFO, stats={"train": 64, "total": 64}))
    start(shown, 1)
    report(1, note="stopped early at\nstep 5 of 9")
    shown.clock.now += 2
    shown.display.take(record(LogEvent.JOB_FINISHED, job_id=1))
    lines = [line.split("  ")[1] for line in shown.text().splitlines() if "  " in line]
    assert lines[0] == "Training run1: done in 0:00:02, stopped early at step 5 of 9"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_warning_that_several_jobs_have_is_shown_once(shown, is_terminal):
    shown.display._output.is_terminal = is_terminal
    shown.display.take(record(LogEvent.RUN_INFO, stats={"build_shards": 64, "total": 64}))
    for number in (1, 2, 3):
        start(shown, number, "build_shards", f"Cutting shards {number}")
        report(number, warning="1 file was read" if number < 3 else "2 files were read")
        shown.display.take(record(LogEvent.JOB_FINISHED, job_id=number))
    assert shown.text().count("1 file was read") == 1
    assert shown.text().count("2 files were read") == 1


def test_a_failed_job_is_named_at_once_and_explained_at_the_end_once(shown):
    start(shown, 1)
    report(1, title="run1", step=1, error="optim.lr=1e30: the weights are infinite")
    error = {"jobid": 1, "rule_name": "train", "rule_msg": None, "log": ["logs/1.log"], "aux": {}}
    shown.display.take(
        record(
            LogEvent.ERROR,
            "RuleException:\nCalledProcessError in file x",
            logging.ERROR,
            exception="RuleException",
        )
    )
    shown.display.take(record(LogEvent.JOB_ERROR, "Error in rule train", logging.ERROR, **error))
    assert "Training run1: failed; log: logs/1.log" in shown.text()
    assert "infinite" not in shown.text()
    shown.display.take(
        record(None, "Exiting because a job execution failed. Look above", logging.ERROR)
    )
    shown.display.take(record(results=[{"title": "run1", "done": False, "logs": ["logs/1.log"]}]))
    shown.display.take(
        record(
            LogEvent.ERROR,
            "WorkflowError:\nAt least one job did not complete successfully.",
            logging.ERROR,
        )
    )
    shown.display.close()
    assert shown.text().count("optim.lr=1e30: the weights are infinite") == 1
    assert shown.text().splitlines()[-4:-1] == [
        "run1  failed", "    optim.lr=1e30: the weights are infinite", "    log: logs/1.log",
    ]  # fmt: skip
    assert "Exiting" not in shown.text()
    assert "WorkflowError" not in shown.text()


def test_an_attempt_that_leaves_at_once_is_not_shown_and_one_that_works_is(shown):
    def fail():
        shown.display.take(
            record(LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1, rule_name="train", rule_msg=None,
                   log=["logs/1.log"], aux={})
        )  # fmt: skip

    for seconds in (60, 1, 60, 2):
        start(shown, 1)
        shown.clock.now += seconds
        shown.display.tick()
        fail()
    lines = [line.split("  ", 1)[1] for line in shown.text().splitlines()]
    failed = "Training run1: failed; log: logs/1.log"
    assert lines == ["Training run1", failed, "Training run1, attempt 3", failed]


def test_an_attempt_that_leaves_the_report_of_the_one_before_is_not_shown_however_late_it_ends(
    shown,
):
    def fail():
        error = {"jobid": 1, "rule_name": "train", "log": ["logs/1.log"]}
        shown.display.take(record(LogEvent.JOB_ERROR, "", logging.ERROR, **error))

    for number, is_at_work in enumerate((True, False, True)):
        start(shown, 1)
        if is_at_work:
            report(1, error="no luck")  # in the place of the one before
            os.utime("logs/1.progress.json", (time.time() + number,) * 2)
        shown.clock.now += 20  # no time for a table yet
        shown.display.tick()
        fail()
    lines = [line.split("  ", 1)[1] for line in shown.text().splitlines()]
    failed = "Training run1: failed; log: logs/1.log"
    assert lines == ["Training run1", failed, "Training run1, attempt 3", failed]


def test_of_several_attempts_the_last_ones_sentence_is_shown(shown):
    for cause in (
        "no luck",
        "no luck; not started again",
        "not retried, since two attempts failed: no luck",
    ):
        start(shown, 1)
        report(1, error=cause)
        shown.display.take(
            record(
                LogEvent.JOB_ERROR,
                "",
                logging.ERROR,
                jobid=1,
                rule_name="train",
                log=["logs/1.log"],
            )
        )
    shown.display.close()
    assert shown.text().count("no luck") == 1
    assert "    not retried, since two attempts failed: no luck" in shown.text().splitlines()


def test_what_an_executor_knows_of_a_failure_is_the_cause_where_the_job_reports_none(shown):
    start(shown, 1)
    error = {
        "jobid": 1,
        "rule_name": "train",
        "rule_msg": "SLURM job '7' failed",
        "log": ["logs/1.log"],
        "aux": {},
    }
    shown.display.take(record(LogEvent.JOB_ERROR, "Error", logging.ERROR, **error))
    shown.display.close()
    assert "    SLURM job '7' failed" in shown.text().splitlines()


def test_a_failed_job_whose_log_is_in_a_storage_is_of_its_run(shown):
    log = "az://box/project/logs/train/1.log (send to storage)"
    error = {"jobid": 1, "rule_name": "train", "rule_msg": None, "log": [log], "aux": {}}
    shown.display.take(record(LogEvent.JOB_INFO, jobid=1, rule_name="train", rule_msg="Training run1",
                              log=[log], output=["out"]))  # fmt: skip
    shown.display.take(record(LogEvent.JOB_ERROR, "Error", logging.ERROR, **error))
    rows = [{"title": "run1", "logs": ["logs/train/1.log"], "cause": "it failed"}]
    shown.display.take(record(None, None, results=rows))
    assert shown.text().splitlines()[-4:-1] == [
        "run1  failed", "    it failed", "    log: az://box/project/logs/train/1.log",
    ]  # fmt: skip


def test_a_job_that_was_interrupted_is_explained_though_snakemake_reports_no_end(shown):
    start(shown, 1)
    report(1, error="interrupted: saved at step 12; the same command resumes from there")
    shown.display.close()
    assert shown.text().count("interrupted: saved at step 12") == 1


@pytest.mark.parametrize("is_reported", [True, False])  # whether Snakemake tells the job's end
def test_a_job_that_was_stopped_has_not_failed(shown, is_reported):
    start(shown, 1)
    reason = "interrupted: saved at step 218; the same command resumes from there"
    report(1, title="run1", step=210, error=reason, stopped=True)
    if is_reported:
        error = {"jobid": 1, "rule_name": "train", "rule_msg": None, "log": ["logs/1.log"]}
        shown.display.take(record(LogEvent.JOB_ERROR, "Error", logging.ERROR, **error))
        assert "Training run1: stopped; log: logs/1.log" in shown.text()
    shown.display.take(record(results=[{"title": "run1", "done": False, "logs": ["logs/1.log"]}]))
    shown.display.close()
    *lines, total = shown.text().splitlines()
    assert lines[-3:] == ["run1  stopped", f"    {reason}", "    log: logs/1.log"]
    assert re.fullmatch(r"0 of 1 jobs done, 1 stopped, .*", total)
    assert "failed" not in shown.text()


def test_of_two_jobs_of_a_row_one_that_failed_decides(shown):
    for number, stopped in ((1, True), (2, False)):
        start(shown, number)
        report(number, error=f"end {number}", stopped=stopped)
    logs = ["logs/1.log", "logs/2.log"]
    shown.display.take(record(results=[{"title": "run1", "done": False, "logs": logs}]))
    assert "run1  failed" in shown.text()
    assert "1 failed, 1 stopped" in shown.text()


def test_a_locked_folder_comes_with_what_to_type(shown):
    locked = record(LogEvent.ERROR, str(LockException()), logging.ERROR, exception="LockException")
    shown.display.take(locked)
    assert shown.text().startswith(
        f"{Path.cwd()} is locked: another snakemake runs here, or one was killed"
    )
    assert "run the same command with --unlock at its end" in shown.text()
    assert "argument" not in shown.text(), "Snakemake's own sentence is in it"


def test_what_an_earlier_job_has_left_is_not_shown(shown):
    report(1, error="of yesterday", step=7)
    os.utime("logs/1.progress.json", (time.time() - 3600,) * 2)
    start(shown, 1)
    shown.clock.now = 31
    shown.display.tick()
    shown.display.take(
        record(
            LogEvent.JOB_ERROR, "", logging.ERROR, jobid=1, rule_name="train", log=["logs/1.log"]
        )
    )
    shown.display.close()
    assert "of yesterday" not in shown.text()


def test_messages_of_the_workflow_and_errors_stay_and_snakemakes_own_noise_does_not(shown):
    for noise in (
        "Building DAG of jobs...",
        "Select jobs to execute...",
        "Using shell: /bin/bash",
        "Elapsed time: 0:01",
    ):
        shown.display.take(record(None, noise))
    shown.display.take(record(LogEvent.RUN_INFO, "Job stats:\ntotal 3", stats={}))
    shown.display.take(
        record(None, "Nothing to be done (all requested files are present and up to date).")
    )
    shown.display.take(
        record(None, "Report: results/report/index.html", path="/home/snakemake/project/Snakefile")
    )
    shown.display.take(record(None, "Execute 3 things", path="/home/snakemake/project/Snakefile"))
    for _ in range(2):
        shown.display.take(record(None, "it is late", logging.WARNING))
    message = 'WorkflowError in file "/x/rules/common.smk", line 45:\nconfig/runs.tsv: column "lrr" is not known'
    message += '\n  own.py, line 3\n  File "/x/Snakefile", line 2, in __onstart\n  File "/x/c.smk", line 4, in check'
    shown.display.take(record(LogEvent.ERROR, message, logging.ERROR, exception="WorkflowError"))
    assert shown.text().splitlines() == [
        "Nothing to be done (all requested files are present and up to date).", "Report: results/report/index.html",
        "Execute 3 things", "it is late", 'config/runs.tsv: column "lrr" is not known', "  own.py, line 3",
    ]  # fmt: skip


def handler_of(**asked) -> LogHandler:
    settings = dict.fromkeys(
        ("dryrun", "verbose", "debug_dag", "stdout", "printshellcmds", "show_failed_logs"), False
    )
    return LogHandler(
        SimpleNamespace(**{**settings, "quiet": None, "nocolor": True, **asked}), None
    )


def test_a_display_that_fails_leaves_the_rest_to_snakemakes_own(capsys):
    handler = handler_of()
    handler.emit(record(LogEvent.JOB_INFO))  # without a single one of the fields that it has
    handler.emit(record(None, "a message of Snakemake"))
    handler.close()
    err = capsys.readouterr().err
    assert "the display failed (KeyError('jobid')); Snakemake's own lines follow" in err
    assert "a message of Snakemake" in err


def test_a_package_that_configures_logging_ends_no_display(capsys):
    handler = handler_of()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    handler.emit(record(None, "a message after it"))
    handler.close()
    handler.emit(record(None, "a message after the end"))
    assert capsys.readouterr().err == "a message after it\n"


@pytest.mark.parametrize("asked", ["dryrun", "verbose"])
def test_a_dry_run_and_verbose_are_shown_as_snakemake_shows_them(capsys, asked):
    handler = handler_of(**{asked: True})
    handler.emit(record(LogEvent.RUN_INFO, "Job stats:\ntotal 3", stats={}))
    handler.close()
    assert capsys.readouterr().err == "Job stats:\ntotal 3\n"
    assert STREAM not in os.environ, "jobs print their errors themselves"


@pytest.mark.parametrize(("asked", "is_told"), [("", True), ("dryrun", True), ("verbose", False)])
def test_a_home_that_cannot_be_written_is_told_in_one_sentence(capsys, asked, is_told):
    handler = handler_of(**({asked: True} if asked else {}))
    try:
        SourceCache(Path("/dev/null/home/.cache/snakemake/source-cache"))
    except NotADirectoryError as error:
        text = format_exception_to_string(error)
    handler.emit(record(LogEvent.ERROR, text, logging.ERROR, exception="NotADirectoryError"))
    handler.close()
    told = (
        "Snakemake cannot make its cache folder, which lies in HOME or in XDG_CACHE_HOME (NotADirectoryError: "
        "[Errno 20] Not a directory: '/dev/null/home'); set XDG_CACHE_HOME to a writable folder, "
        "and run the same command again"
    )
    assert " ".join(capsys.readouterr().err.split()) == (
        told if is_told else " ".join(text.split())
    )


def test_quiet_all_is_quiet(capsys):
    handler = handler_of(quiet=[SimpleNamespace(name="ALL")])
    handler.emit(record(None, "a message", logging.ERROR))
    handler.close()
    assert capsys.readouterr().err == ""


class TestInterface(TestLogHandlerBase):
    """The tests that Snakemake has for every logger plugin."""

    __test__ = True

    def get_log_handler_cls(self):
        return LogHandler

    def get_log_handler_settings(self):
        return None


def test_the_plugin_imports_light_and_knows_nothing_of_shardline():
    heavy = "{'rich', 'torch', 'snakemake', 'shardline', 'yaml'}"
    code = (
        f"import snakemake_logger_plugin_shardline, sys; print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what jobs report ------------------------------------------------------------------------------


def test_a_line_of_progress_is_reported_with_rate_and_time_left(tmp_path):
    job_progress.begin(tmp_path / "run.log")
    clock = Clock()
    lines = RankLines("wide", "val_accuracy", clock)
    lines("some output of a rank\n")
    lines("progress step=10/100 epoch=1/5 lr=0.1 val_accuracy=0.5 train_loss=nan\n")
    clock.now = 2.0
    job_progress._written = 0.0
    lines("progress step=20/100 epoch=2/5 train_loss=0.25\n")
    found = parse(json.loads((tmp_path / "run.progress.json").read_text()))
    assert (found.title, found.step, found.steps, found.epoch, found.epochs) == (
        "wide",
        20,
        100,
        2,
        5,
    )
    assert list(found.metrics.items())[:2] == [("train_loss", 0.25), ("val_accuracy", 0.5)]
    assert (found.rate, found.left_s) == (5.0, 16.0)


def test_names_of_metrics_may_have_spaces_in_a_line_of_progress(tmp_path):
    job_progress.begin(tmp_path / "run.log")
    line = "progress step=1/9 epoch=1/3 loss (train)=0.5 loss (val)=0.25 val/acc=0.75 hit@k=5=1\n"
    RankLines("wide", "val/acc")(line)
    found = parse(json.loads((tmp_path / "run.progress.json").read_text()))
    assert [*found.metrics.items()] == [
        ("loss (train)", 0.5), ("val/acc", 0.75), ("loss (val)", 0.25), ("hit@k=5", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line", ["progress step=0/0 \n", "progress step=1/10 x\n", "progress step=9/3 a=b=c e=1e999\n"]
)
def test_an_odd_line_of_a_script_is_reported_as_far_as_it_goes(tmp_path, line):
    job_progress.begin(tmp_path / "run.log")
    RankLines("script", "")(line)
    assert parse(json.loads((tmp_path / "run.progress.json").read_text())).step is not None


def test_an_error_is_added_to_the_report_and_a_new_job_begins_without(tmp_path):
    progress = JobProgress()
    progress.report(error="no job has begun")
    progress.begin(tmp_path / "run.log")
    progress.report(step=1)
    progress.report(note="it ended early")
    file = tmp_path / "run.progress.json"
    assert json.loads(file.read_text()) == {"step": 1, "note": "it ended early"}
    progress.report(error="it failed")
    assert json.loads(file.read_text())["error"] == "it failed"
    progress.begin(tmp_path / "run.log")
    assert not file.exists()
    progress.begin(tmp_path / "nowhere" / "run.log")
    progress.report(error="a folder that is missing is no error")


@pytest.mark.parametrize(
    ("steps", "reason", "expected"),
    [
        (
            549,
            "early stopping by val_loss",
            "early stopping by val_loss, early_stopping.patience: 5",
        ),
        (549, "the model set trainer.should_stop", "the model set trainer.should_stop"),
        (915, "early stopping by val_loss", None),
    ],
)
def test_a_training_reports_that_it_stopped_early(fake, monkeypatch, steps, reason, expected):
    fake.seal_all()
    run = fake.run("net")
    consumed = {"steps": steps, "planned": 915, "reasons": [reason]}

    def seal(*_, **__):
        write_json(run.folder / "provenance.json", {"training": {"consumed": consumed}})

    monkeypatch.setattr(training, "start_ranks", seal)
    job_progress.begin(fake.workspace.path / "run.log")
    training.train(fake.plan("net"), Path("log"), str(run.model), {})
    file = fake.workspace.path / "run.progress.json"
    note = f"stopped early at step {steps} of 915 ({expected})"
    assert (json.loads(file.read_text())["note"] if file.exists() else None) == (
        note if expected else None
    )


def test_a_job_prints_its_error_itself_unless_the_logger_shows_that_stream(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.delenv(STREAM, raising=False)
        assert not is_shown_by_logger(stream)
        status = os.fstat(stream.fileno())
        monkeypatch.setenv(STREAM, f"{status.st_dev}:{status.st_ino}")
        assert is_shown_by_logger(stream)
        assert not is_shown_by_logger(io.StringIO())
