"""What is told where the jobs of a run on Slurm cannot be cancelled; that they are: tests/slurm."""

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm import Executor

from shardline.launch.slurm import scancel as slurm_cancel
from shardline.launch.slurm.scancel import cancel_by_name
from tests.support.workspace import write_program

pytestmark = pytest.mark.usefixtures("plugin")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "cancel_jobs", Executor.cancel_jobs)  # to be set back
    cancel_by_name()


def executor(*clusters: str) -> SimpleNamespace:
    return SimpleNamespace(
        run_uuid="a-run", logger=logging.getLogger(__name__),
        _job_submission_executor=ThreadPoolExecutor(1), _submitted_job_clusters=set(clusters),
    )  # fmt: skip


def scancel(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "scancel", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")


def test_all_clusters_that_have_jobs_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    scancel(tmp_path, f'echo "$@" >>{tmp_path}/asked', monkeypatch)
    Executor.cancel_jobs(executor(), [])
    Executor.cancel_jobs(executor("one"), [])
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--name a-run"] * 2 + ["--name a-run --clusters=all"] * 2
    assert not caplog.text


def test_a_refusal_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    scancel(tmp_path, "echo 'no controller' >&2; exit 1", monkeypatch)
    Executor.cancel_jobs(executor(), [])
    assert "could not be cancelled (no controller) and may keep running; " in caplog.text
    assert "cancel them with: scancel --name a-run" in caplog.text


def test_what_waits_to_be_submitted_is_not_and_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scancel(tmp_path, f"echo >>'{tmp_path}/asked'", monkeypatch)
    stopped, is_answered = executor(), threading.Event()
    under_way, waiting = (
        stopped._job_submission_executor.submit(is_answered.wait) for _ in range(2)
    )
    cancelling = threading.Thread(target=Executor.cancel_jobs, args=(stopped, []))
    cancelling.start()
    while not (tmp_path / "asked").exists():
        assert cancelling.is_alive()
    is_answered.set()
    cancelling.join()
    assert (tmp_path / "asked").read_text() == "\n\n"  # once more when that one is submitted
    assert under_way.result()
    assert waiting.cancelled()


def test_a_submission_that_does_not_heed_the_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    scancel(tmp_path, f"echo >>'{tmp_path}/asked'", monkeypatch)
    monkeypatch.setattr(slurm_cancel, "_SUBMISSION_S", 0.2)
    write_program(tmp_path / "sbatch", f"trap '' INT TERM\nsleep 1000 &\n>'{tmp_path}/begun'\nwait")
    stopped, started = executor(), []

    def submit() -> None:  # as the plugin does
        call = "sbatch --job-name a-run; :"
        started.append(subprocess.Popen(call, shell=True, stdout=subprocess.PIPE))
        started[0].communicate()

    stopped._job_submission_executor.submit(submit)
    while not (tmp_path / "begun").exists():
        pass
    cancelling = threading.Thread(target=Executor.cancel_jobs, args=(stopped, []), daemon=True)
    cancelling.start()
    cancelling.join(60)
    assert not cancelling.is_alive()
    assert started[0].returncode == -9
    assert (tmp_path / "asked").read_text() == "\n\n"
    assert "a submission is still running" in caplog.text


# A signal that another thread receives does not end the main thread's wait, as one that comes just before the wait.
LATE = """
import signal, sys, threading, time
from types import SimpleNamespace
from snakemake.scheduling.job_scheduler import JobScheduler
from shardline.launch.slurm.scancel import cancel_by_name

def scheduler_waits():
    frame, names = sys._current_frames()[main], []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[0] == "wait" and "schedule" in names

def press():
    while not scheduler_waits():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

main = threading.get_ident()
cancel_by_name()
cancel_by_name()
scheduler = SimpleNamespace(
    workflow=SimpleNamespace(dag=SimpleNamespace(queue_input_jobs=[])), _open_jobs=threading.Semaphore(0),
    _executor=SimpleNamespace(cancel=lambda: print("cancelled")),
)
threading.Thread(target=press, daemon=True).start()
print(JobScheduler.schedule(scheduler))
"""


def test_a_ctrl_c_that_comes_while_the_scheduler_begins_to_wait_cancels_the_jobs():
    command = ["env", "--default-signal=INT", sys.executable, "-c", LATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["cancelled", "False"]


@pytest.mark.parametrize(
    ("arguments", "is_taken"), [((), True), ((False,), False), ((True, 0.01), False)]
)
def test_the_semaphore_of_the_scheduler_is_taken_as_ever(arguments, is_taken):
    semaphore = slurm_cancel._Heeding(int(is_taken))
    assert semaphore.acquire(*arguments) is is_taken
    assert semaphore._value == 0
