"""Job arrays of the Slurm plugin contain only jobs that request the same, and each task runs its own command."""

import logging
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snakemake_executor_plugin_slurm import Executor

from shardline.launch.slurm import arrays
from shardline.launch.slurm.allocation import parse_job
from shardline.launch.slurm.arrays import alike, array_script, arrays_of_equals
from tests.support.workspace import write_program

COMMAND = """python -m snakemake --config 'runtime={"variables": {"A": "$HOME `id` \\\\ %s"}}' 2>&1 && echo "done" """


class Resources(dict):
    """Resources of a job, as the plugin reads them."""

    __getattr__ = dict.get


class Job(SimpleNamespace):
    def is_group(self):
        return False


def job(name="a", threads=1, rule="train", **resources):
    return Job(
        name=rule, jobid=name, threads=threads, rule=SimpleNamespace(name=rule),
        resources=Resources(resources), wildcards=[str(name)],
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from(["", "gpu:1"]))))
def test_groups_request_the_same_and_contain_each_job_once(asked):
    jobs = [
        job(i, threads, nodes=nodes, gres=gres) for i, (threads, nodes, gres) in enumerate(asked)
    ]
    groups = alike(jobs)
    assert sorted(one.jobid for group in groups for one in group) == [*range(len(jobs))]
    requests = [{(one.threads, repr(one.resources)) for one in group} for group in groups]
    assert all(len(request) == 1 for request in requests)
    assert len(frozenset().union(*requests)) == len(groups)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0")), min_size=1, max_size=4))  # fmt: skip
def test_each_task_runs_its_own_command_whatever_it_quotes(words):
    commands = [f"printf %s {shlex.quote(word)}; exit {n}" for n, word in enumerate(words)]
    script = array_script(commands) + "\n--an-option\nof-the-plugin"
    for number, word in enumerate(words, start=1):
        env = {**os.environ, "SLURM_ARRAY_TASK_ID": str(number)}
        done = subprocess.run(["sh"], input=script.encode(), env=env, capture_output=True)
        assert (done.stdout.decode(), done.returncode) == (word, number - 1)
    env["SLURM_ARRAY_TASK_ID"] = str(len(words) + 1)
    assert subprocess.run(["sh"], input=script.encode(), env=env).returncode == 1


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Executor:
    """An executor that submits to a program which keeps what it gets."""
    monkeypatch.setattr(Executor, "run_jobs", Executor.run_jobs)  # the patch is undone
    monkeypatch.setattr(arrays, "_TOGETHER_S", 0.05)
    arrays_of_equals()
    arrays_of_equals()  # once is enough
    given_to = f"mktemp -p {tmp_path} sbatch.XXXXXX"
    sbatch = f'f=$({given_to}); echo "$@" >$f.options; cat >$f.script; rm $f; echo 70'
    write_program(tmp_path / "bin" / "sbatch", sbatch)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(Executor, "get_account_arg", lambda self, job: iter([""]))
    monkeypatch.setattr(Executor, "get_partition_arg", lambda self, job: "")
    monkeypatch.setattr(Executor, "run_job_pre", lambda self, job: None)
    monkeypatch.setattr(
        Executor, "format_job_exec", lambda self, job: COMMAND.replace("%s", job.wildcards[0])
    )
    it = object.__new__(Executor)
    options = SimpleNamespace(
        pass_command_as_script=False, requeue=True, no_requeue=False, qos=None, reservation=None,
        disable_memory_fudge=False,
    )  # fmt: skip
    it.workflow = SimpleNamespace(executor_settings=options, workdir_init=str(tmp_path))
    it.slurm_logdir, it.max_array_size, it.array_jobs = tmp_path / "log", 4, {"train"}
    it.run_uuid, it._failed_nodes, it._submitted_job_clusters = "id", set(), set()
    it.logger, it._main_event_loop = logging.getLogger("test"), None
    it._job_submission_executor = ThreadPoolExecutor(1)
    it.submitted = []
    monkeypatch.setattr(
        Executor, "report_job_submission", lambda self, info: it.submitted.append(info)
    )
    return it


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test, and no timer, say when the jobs that wait are submitted."""
    monkeypatch.setattr(arrays, "_TOGETHER_S", 3600.0)


def wait_for(executor: Executor, number: int) -> None:
    import time

    end = time.monotonic() + 120
    while len(executor.submitted) < number and time.monotonic() < end:
        time.sleep(0.02)
    executor._job_submission_executor.shutdown()
    assert len(executor.submitted) == number


@pytest.mark.usefixtures("patient")
def test_an_array_for_each_request_and_a_job_for_a_single_one(executor: Executor, tmp_path: Path):
    many = [job(f"run{n}", mem_mb=100, nodes=1, runtime=60) for n in range(6)]
    large = [job("large", mem_mb=100, nodes=2, runtime=60)]
    executor.run_jobs([*many[:2], *large])  # those that are ready first
    executor.run_jobs(many[2:])
    executor.run_jobs([])
    executor.shardline_waiting._submit()
    wait_for(executor, 7)
    scripts = sorted(tmp_path.glob("sbatch.*.options"))
    asked = sorted(path.read_text().split("-D")[1].split()[1:2] for path in scripts)
    assert asked == [["--array=1-2"], ["--array=1-4"], ["--wrap=" + COMMAND.split()[0]]]
    ids = {(info.job.jobid, info.external_jobid) for info in executor.submitted}
    assert ids == {("large", "70"), *((f"run{n}", f"70_{n % 4 + 1}") for n in range(6))}
    for info in executor.submitted:
        if "_" in info.external_jobid:
            log = info.aux["slurm_logfile"]
            assert log == tmp_path / "log" / "rule_train" / f"{info.external_jobid}.log"
    for path in scripts:
        assert "--mem 100 " in path.read_text()
        text = path.with_suffix(".script").read_text()
        if "--array=1-4" in path.read_text():
            assert array_script(COMMAND.replace("%s", f"run{n}") for n in range(4)) in text


def test_jobs_that_wait_for_their_turn_do_not_hold_others_back(executor: Executor):
    # the plugin keeps a job for itself while more than one other is ready and not selected
    executor.workflow.dag = SimpleNamespace(ready_jobs=[job(n) for n in range(9)])
    executor.run_jobs([job("selected")])
    wait_for(executor, 1)


def test_other_rules_are_left_to_the_plugin(executor: Executor):
    executor.run_jobs([job(1, rule="evaluate"), job(2, rule="evaluate")])
    wait_for(executor, 2)
    assert [info.external_jobid for info in executor.submitted] == ["70", "70"]


@pytest.mark.usefixtures("patient")
def test_nothing_is_submitted_after_ctrl_c(executor: Executor):
    executor.run_jobs([job(1), job(2)])
    executor._job_submission_executor.shutdown(cancel_futures=True)
    executor.shardline_waiting._submit()
    assert not executor.submitted


TASK = "JobId={} ArrayJobId=36 ArrayTaskId={} JobName=x JobState=RUNNING Restarts=0 NodeList=n{} NumCPUs=2"


def test_the_last_task_of_an_array_finds_itself_among_all_tasks():
    text = "\n".join(TASK.format(*one) for one in [(37, 1, 1), (36, 3, 3), (38, 2, 2)])
    found = parse_job("36", text)
    assert (found.job_id, found.name, found.hosts) == ("36", "36_3", ("n3",))
    alone = parse_job("38", TASK.format(38, 2, 2))
    assert (alone.job_id, alone.name, alone.hosts) == ("38", "36_2", ("n2",))
    plain = parse_job("9", "JobId=9 JobName=x JobState=RUNNING NodeList=n1 NumCPUs=2")
    assert (plain.job_id, plain.name) == ("9", "9")
