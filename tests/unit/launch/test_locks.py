"""Locks on devices: real files and processes; the devices are simulated."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.config.settings.run_settings import RunSettings
from shardline.errors import LaunchError
from shardline.launch import device_share as share_module
from shardline.launch.device_share import around, device_share, preferred
from shardline.launch.gpus import Gpu
from shardline.launch.locks import lock_folder, locked, others

GPUS = tuple(f"GPU-{number}" for number in range(4))
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SHARDLINE_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def machine(monkeypatch):
    """A machine of four GPUs and eight cores, whose controller starts four runs at a time."""
    known = tuple(Gpu(uuid=uuid, model="A100") for uuid in GPUS)
    monkeypatch.setattr(share_module, "list_gpus", lambda: known)
    monkeypatch.setattr(share_module, "num_gpus", lambda: 4)
    monkeypatch.setattr(share_module, "_cores", lambda: [*range(8)])


def share(devices=1, *, env=None, **changes):
    settings = RunSettings(devices=devices, accelerator=changes.pop("accelerator", "auto"))
    known = {"title": f"of {devices}", "threads": 1, **changes}
    env = {"SHARDLINE_CORES_PER_RUN": "2", **(env or {})}
    return device_share(settings, env=env, **known)


def test_jobs_lock_devices_in_a_fixed_order_and_no_device_twice():
    with locked("gpu", GPUS, 2, title="a") as a, locked("gpu", GPUS, 1, title="b") as b:
        assert (a.units, b.units) == (GPUS[:2], GPUS[2:3])
        assert (a.beside, b.beside) == ((), (f"a, process {os.getpid()}",))
        with locked("core", ["0"], 1, title="c") as c:
            assert c.beside == (), "cores are another kind"
    assert others("gpu", ()) == ()


def test_all_or_none():
    with locked("gpu", GPUS, 3, title="a"):
        with locked("gpu", GPUS, 2, title="b", waits=False) as b:
            assert b.units == ()
        with locked("gpu", GPUS, 1, title="c", waits=False) as c:
            assert c.units == GPUS[3:], "the job that got none has released the free GPU"
    with pytest.raises(LaunchError, match="a needs 5 gpus, and this machine offers 4"):
        locked("gpu", GPUS, 5, title="a").__enter__()


def train(number, needs, seconds, done):
    """Lock devices as a job of a controller does, and record when."""
    with locked("gpu", GPUS, needs, title=f"job {number}") as found:
        begin = time.monotonic()
        time.sleep(seconds)
        done.put((begin, time.monotonic(), found.units))


def test_two_controllers_never_use_a_gpu_at_once_and_the_largest_job_is_not_passed_over():
    done, needs = FORK.Queue(), (1, 2, 4, 1, 3, 1)
    jobs = [FORK.Process(target=train, args=(i, n, 0.1, done)) for i, n in enumerate(needs)]
    for job in jobs:
        job.start()
    ended = [done.get(timeout=60) for _ in jobs]
    for job in jobs:
        job.join()
    assert sorted(len(units) for *_, units in ended) == sorted(needs)
    for begin, end, units in ended:
        for other_begin, other_end, other in ended:
            if (begin, end) != (other_begin, other_end) and set(units) & set(other):
                assert end <= other_begin or other_end <= begin


def hold(units, until):
    """Lock devices until an event. A process that the test forks later must not inherit the locks."""
    with locked("gpu", units, len(units), title="first"):
        until.wait(60)


def test_a_job_that_needs_all_devices_is_served_before_later_ones():
    done, end = FORK.Queue(), FORK.Event()
    first = FORK.Process(target=hold, args=(GPUS[:1], end))
    large = FORK.Process(target=train, args=(0, 4, 0, done))
    small = FORK.Process(target=train, args=(1, 1, 0, done))
    first.start()
    wait_for(lambda: others("gpu", ()))
    large.start()
    wait_for(lambda: _is_locked(lock_folder() / "gpu.turn"))
    small.start()
    time.sleep(0.5)  # it would lock one of the three free GPUs
    assert done.empty()
    end.set()
    # by when they began: a thread of each process sends, so the second may arrive first
    ended = sorted(done.get(timeout=60) for _ in range(2))
    assert [len(units) for *_, units in ended] == [4, 1]
    for job in (first, large, small):
        job.join()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_locked(path):
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


RANK = "import sys, time; print('ready', flush=True); time.sleep(600)"
JOB = """
import subprocess, sys
from shardline.launch.locks import locked
with locked("gpu", ["GPU-0"], 1, title="job") as found:
    rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], pass_fds=found.descriptors)
    print(rank.pid, flush=True)
    rank.wait()
"""


def test_a_killed_job_frees_its_devices_when_its_last_rank_has_ended():
    job = subprocess.Popen([sys.executable, "-c", JOB, RANK], stdout=subprocess.PIPE, text=True)
    lines = {job.stdout.readline().strip(), job.stdout.readline().strip()}
    rank = int(next(line for line in lines if line.isdecimal()))
    assert others("gpu", ()) == (f"job, process {job.pid}",)
    job.kill()
    job.wait()
    assert others("gpu", ()), "a rank still computes on the GPU"
    with locked("gpu", GPUS, 1, title="next") as found:
        assert found.units == ("GPU-1",)
    os.kill(rank, signal.SIGKILL)
    wait_for(lambda: not others("gpu", ()))


def test_a_folder_of_another_kind_is_rejected(folder):
    folder.write_text("")
    with pytest.raises(LaunchError, match="cannot be used"):
        lock_folder()


# shares of jobs


def test_ranks_see_the_gpus_that_their_job_locked(machine):
    with share(2) as a, share(1) as b:
        assert a.env["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
        assert b.env["CUDA_VISIBLE_DEVICES"] == "GPU-2"
        assert (a.company(), b.company()) == ((f"of 1, process {os.getpid()}",), b.beside)
        assert not a.cores & b.cores
    inherited = {"CUDA_VISIBLE_DEVICES": "3,1"}
    with share(1, env=inherited) as a, share(1, env=inherited) as b:
        seen = a.env["CUDA_VISIBLE_DEVICES"], b.env["CUDA_VISIBLE_DEVICES"]
        assert seen == ("GPU-3", "GPU-1")


def test_a_run_alone_locks_all_gpus_and_sees_its_own(machine):
    with share(1, alone=True) as a:
        assert (a.units, a.env["CUDA_VISIBLE_DEVICES"]) == (GPUS, "GPU-0")
        assert a.company() == ()


def test_runs_on_cpus_get_cores_of_their_own_and_gpus_do_not_wait_for_cores(machine):
    with ExitStack() as stack:
        given_ = [stack.enter_context(share(accelerator="cpu")) for _ in range(4)]
        assert [sorted(one.cores) for one in given_] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        more = stack.enter_context(share(4, accelerator="cpu"))
        assert (more.kind, len(more.units)) == ("core", 4)
        on_gpu = stack.enter_context(share(1))
        assert (on_gpu.kind, on_gpu.cores) == ("gpu", frozenset()), "no core is free: not bound"
        assert stack.enter_context(share(8, accelerator="cpu", oversubscribe=True)).kind == ""


def test_a_job_of_a_scheduler_locks_nothing(machine, monkeypatch, folder):
    settings = RunSettings(devices=4)
    with device_share(settings, title="a", threads=1, env={}) as found:
        assert (found.env, found.descriptors, found.company()) == ({}, (), ())
    assert not folder.exists()


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 16))
def test_as_many_runs_as_fit_get_disjoint_blocks_of_cores(num_cores, need, per_run):
    cores = [*range(100, 100 + num_cores)]
    order = preferred(cores, need=need, per_run=per_run)
    assert sorted(order) == cores
    if need > per_run:
        return
    blocks = []
    while len(order) >= need and len(blocks) < num_cores // per_run:
        taken, order = order[:need], order[need:]
        blocks.append(around(taken, cores, per_run=per_run))
        assert set(taken) <= blocks[-1]
    assert sum(map(len, blocks)) == len(frozenset().union(*blocks)) or num_cores % per_run


def test_the_folder_is_not_cleaned_up_below_a_job():
    with locked("gpu", GPUS, 1, title="a"):
        descriptor = os.open(lock_folder(), os.O_RDONLY)
        with pytest.raises(BlockingIOError):  # as systemd-tmpfiles asks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
