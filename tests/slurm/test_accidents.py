"""What happens to a job on a real Slurm ends in a right result or in a failure that is named.

The accidents happen side by side, each on a cluster of its own, through the
shipped profile; the tests then look at what each came to.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import kill_group
from tests.support.needs import params_to_run
from tests.support.rotation import rotating
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.counting import PATIENCE_S, Counting, write_slow
from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import Workspace

AT_ONCE = 6  # accidents; they mostly wait


def cancelled(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    run.cluster.run("scancel", run.job)
    run.check_failure(
        f"SLURM-job '{run.job}' failed, SLURM status is: 'CANCELLED'",
        "cancelled by scancel or by an administrator; run the same command again",
    )


def longer_than_its_limit(run: Counting) -> None:
    run.start("--default-resources", "runtime=1", "mem_mb=100")
    run.wait_for_start()
    run.check_failure("longer than its limit of 00:01:00, raise runtime in the profile")


def node_lost(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    run.cluster.kill_node("n2")
    run.wait_for_state("PENDING")
    run.cluster.start_node("n2", wait=False)
    run.wait_for_start(2)
    run.finish()
    assert run.end() == 0, run.told()
    run.check_result(starts=2)
    assert len(set(run.starts())) == 1  # Slurm's requeue, not a second job


def node_lost_for_good(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    run.cluster.scontrol("update", f"JobId={run.job}", "Requeue=0")
    run.cluster.kill_node("n2")
    run.wait_for_state("NODE_FAIL")
    run.cluster.start_node("n2", wait=False)
    run.check_failure("a node of n[1-2] failed, and Slurm may not requeue the job")


def controller_away(run: Counting) -> None:
    run.start("--verbose")
    run.wait_for_start()
    run.cluster.stop_controller()
    run.finish()
    run.wait_until((run.path / "result").exists, "the result")
    # the plugin's question has failed once; five such would have it forget the job
    run.wait_until(
        lambda: "Slurm's controller is down or unreachable" in run.told(),
        "a question without answer",
    )
    run.cluster.start_controller()
    assert run.end() == 0, run.told()
    run.check_result(starts=1)


def preempted(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    high = run.cluster.sbatch("sleep 1000", "--partition=high", "--nodes=2", "--ntasks=4")
    run.wait_for_state("PENDING")
    run.wait_until(lambda: run.cluster.job_state(high) == "RUNNING", "the other job")
    run.cluster.run("scancel", high)
    run.wait_for_start(2)
    log = run.path / "logs" / "slurm" / "rule_count" / f"{run.job}.log"
    assert log.read_text().splitlines().count("started") == 2  # the first start's part is kept
    run.finish()
    assert run.end() == 0, run.told()
    run.check_result(starts=2)


def preempted_for_good(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    high = run.cluster.sbatch("sleep 1000", "--partition=high", "--nodes=2", "--ntasks=4")
    run.wait_for_state("PREEMPTED")
    run.cluster.run("scancel", high)
    run.check_failure(f"SLURM-job '{run.job}' failed", "preempted by a job of higher priority")


def refused(run: Counting) -> None:
    run.cluster.scontrol("update", "PartitionName=main", "State=DRAIN")
    run.start()
    assert run.end() == 1
    assert "Required partition not available (inactive or drain)" in run.told()
    run.cluster.scontrol("update", "PartitionName=main", "State=UP")
    (run.path / "told").unlink()
    run.start()
    run.wait_for_start()
    run.finish()
    assert run.end() == 0, run.told()
    run.check_result(starts=1)


def interrupted(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    _press_ctrl_c(run)


def interrupted_while_asking(run: Counting) -> None:
    asking = run.delay("squeue", before="touch asking; sleep 5; rm asking")
    run.start()
    run.wait_for_start()
    run.wait_until((run.path / "asking").exists, "a question")
    asking.unlink()
    _press_ctrl_c(run)


def interrupted_while_submitting(run: Counting) -> None:
    # the job is there, and its id has not reached Snakemake
    submitting = run.delay("sbatch", after="sleep 1000")
    run.start()
    run.wait_for_start()
    submitting.unlink()
    _press_ctrl_c(run)


def _press_ctrl_c(run: Counting) -> None:
    assert run.process is not None
    kill_group(run.process, signal.SIGINT)
    run.wait_for_state("CANCELLED")
    run.check_failure("Terminating processes on user request")


def _let_forget(run: Counting, do: Callable[[], object]) -> None:
    """Let the job end while Snakemake sleeps, as its computer may, until Slurm has forgotten it."""
    assert run.process is not None
    run.cluster.run("kill", "-STOP", *run.lines("pid"))
    # nsenter, which waits for Snakemake, stops too, and has to before both may continue
    status = Path(f"/proc/{run.process.pid}/stat")
    run.wait_until(lambda: status.read_text().rpartition(") ")[2].startswith("T"), "a stop")
    # a question under way would still be answered with what comes now
    asking = f"ps --ppid {run.lines('pid')[0]} --format stat= | grep --invert-match Z"
    run.wait_until(
        lambda: not run.cluster.run("bash", "-c", f"{asking} || true").stdout, "an answer"
    )
    do()
    listed = ("squeue", "--noheader", "--states=all", "--format=%i")
    run.wait_until(lambda: run.job not in run.cluster.run(*listed).stdout.split(), "forgetting")
    kill_group(run.process, signal.SIGCONT)


def forgotten(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    _let_forget(run, run.finish)
    assert run.end() == 0, run.told()
    run.check_result(starts=1)


def forgotten_failure(run: Counting) -> None:
    run.start()
    run.wait_for_start()
    _let_forget(run, lambda: run.cluster.run("scancel", run.job))
    run.check_failure("MissingOutputException", "some output files are missing")


SHORT_MEMORY: dict[str, Any] = {"changes": {"MinJobAge": "2"}}
SOON_LOST: dict[str, Any] = {"changes": {"SlurmdTimeout": "5"}}
ACCIDENTS: dict[str, tuple[Callable[[Counting], None], dict[str, Any]]] = {
    "walltime": (longer_than_its_limit, {}),
    "node-lost": (node_lost, SOON_LOST),
    "node-lost-accounting": (node_lost, {**SOON_LOST, "accounting": True}),
    "node-lost-for-good": (node_lost_for_good, SOON_LOST),
    "controller-away": (controller_away, {}),
    "preempted-for-good": (preempted_for_good, {"changes": {"PreemptMode": "CANCEL"}}),
    "preempted": (preempted, {}),
    "cancelled": (cancelled, {}),
    "cancelled-accounting": (cancelled, {"accounting": True}),
    "refused": (refused, {}),
    "interrupted": (interrupted, {}),
    "interrupted-while-asking": (interrupted_while_asking, {}),
    "interrupted-while-submitting": (interrupted_while_submitting, {}),
    "forgotten": (forgotten, SHORT_MEMORY),
    "forgotten-accounting": (forgotten, {**SHORT_MEMORY, "accounting": True}),
    "forgotten-failure": (forgotten_failure, SHORT_MEMORY),
}


# One of each kind; the others of it are of the rotating tier.
ALWAYS = (
    "node-lost", "controller-away", "preempted", "cancelled-accounting", "refused",
    "interrupted", "forgotten",
)  # fmt: skip
OTHERS = [name for name in ACCIDENTS if name not in ALWAYS]


@pytest.fixture(scope="module")
def accidents(
    request: pytest.FixtureRequest,
    start_slurm: Callable[..., SlurmCluster],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[None]]]:
    """Have the accidents that are tested happen, some at a time."""
    wanted, runs = params_to_run(request, "name"), {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name in filter(wanted.__contains__, ACCIDENTS):
            accident, options = ACCIDENTS[name]
            run = Counting(tmp_path_factory.mktemp(name) / "project", start_slurm(**options))
            runs[name] = pool.submit(accident, run)
        yield runs


@pytest.mark.parametrize("name", [*ALWAYS, *rotating(*OTHERS)])
def test_an_accident_ends_well(name: str, accidents: dict[str, Future[None]]):
    accidents[name].result()


@pytest.fixture
def queued(slurm: SlurmCluster, tmp_path: Path) -> Pipeline:
    """Return a project whose jobs are queued and stay so."""
    pipeline = Pipeline(Workspace(tmp_path), slurm)
    pipeline.configure(runtime={"launcher": "srun"}, nodes=2, devices=2)
    slurm.scontrol("update", "PartitionName=main", "State=DOWN")
    return pipeline


def jobs_of(slurm: SlurmCluster) -> list[str]:
    return slurm.run("squeue", "--noheader", "--format=%i").stdout.split()


def test_the_project_asks_shardlines_sacct(slurm: SlurmCluster, queued: Pipeline):
    process = slurm.login.popen(*queued.command(), cwd=queued.path)

    def cancel_until_it_ends() -> bool:  # one job may be submitted after another
        if jobs := jobs_of(slurm):
            slurm.run("scancel", *jobs)
        return process.poll() is not None

    slurm.wait_until(cancel_until_it_ends, "an end", timeout=PATIENCE_S)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "cancelled by scancel or by an administrator; run the same command again" in told


def test_the_project_cancels_what_is_being_submitted(slurm: SlurmCluster, queued: Pipeline):
    # Not a sleep of the shell, which misses a Ctrl-C that comes while it starts a program.
    submitted = queued.path / "submitted"
    program = f"import pathlib, time; pathlib.Path({str(submitted)!r}).touch(); time.sleep(1000)"
    after = f"exec {shlex.join([sys.executable, '-c', program])}"
    slow = write_slow(queued.path / "bin" / "sbatch", after=after)
    path = f"PATH={slow.parent}:{os.environ['PATH']}"
    process = slurm.login.popen("env", path, *queued.command(), cwd=queued.path)
    slurm.wait_until(submitted.exists, "a submission", timeout=PATIENCE_S)
    assert jobs_of(slurm)
    kill_group(process, signal.SIGINT)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Terminating processes on user request" in told
    assert jobs_of(slurm) == []
