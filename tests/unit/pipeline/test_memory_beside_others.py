"""A run that was ended for lack of memory beside others starts once more alone."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.launch import device_share as share_module
from shardline.launch.gpus import Gpu
from shardline.launch.locks import locked
from shardline.pipeline import started_ranks
from shardline.pipeline.started_ranks import LacksMemory, run_on_ranks
from shardline.supervision.supervisor import RankError

GPUS = ("GPU-0", "GPU-1")
RUN = SimpleNamespace(id="r", title="run r", settings=RunSettings(devices=1))
PROJECT = SimpleNamespace(runtime=Runtime(), measured={})


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of two GPUs whose ranks only report; yields what they report, and the locks of other jobs."""
    monkeypatch.setenv("SHARDLINE_LOCKS", str(tmp_path))
    monkeypatch.setenv("SHARDLINE_CORES_PER_RUN", "1")
    known = tuple(Gpu(uuid=uuid, model="A100") for uuid in GPUS)
    monkeypatch.setattr(share_module, "list_gpus", lambda: known)
    monkeypatch.setattr(share_module, "num_gpus", lambda: 2)
    monkeypatch.setattr(started_ranks, "python_of", lambda *args: ())
    monkeypatch.setattr(started_ranks, "RankTask", lambda **fields: SimpleNamespace(**fields))
    reported = SimpleNamespace(shares=[], errors=[], others=ExitStack(), kills=0)
    monkeypatch.setattr(started_ranks, "oom_kills", lambda: reported.kills)

    def start(share, *args, **options):
        reported.shares.append(share.units)
        if reported.errors:
            reported.others.close()
            reported.kills += 1
            raise reported.errors.pop(0)

    monkeypatch.setattr(started_ranks, "_start_on", start)
    with reported.others:
        yield reported


def run(tmp_path):
    known = {"work": tmp_path, "rank_logs": tmp_path, "log": tmp_path / "log"}
    run_on_ranks(PROJECT, RUN, None, **known)


@pytest.mark.parametrize(
    "error",
    [
        RankError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RankError("RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RankError("killed by SIGKILL", is_killed=True),  # and the kernel counted a kill
    ],
)  # fmt: skip
def test_once_more_under_a_lock_over_all_devices(machine, tmp_path, error):
    machine.others.enter_context(locked("gpu", GPUS, 1, title="another run"))
    machine.errors = [error]
    run(tmp_path)
    assert machine.shares == [("GPU-1",), GPUS]


@pytest.mark.parametrize(
    ("error", "is_beside"),
    [
        (RankError("CUDA out of memory"), False),  # it was alone already
        (RankError("out of luck"), True),
    ],
)
def test_what_would_end_alike_is_not_tried_again(machine, tmp_path, error, is_beside):
    if is_beside:
        machine.others.enter_context(locked("gpu", GPUS, 1, title="another run"))
    machine.errors = [error]
    with pytest.raises(RankError) as found:
        run(tmp_path)
    assert not isinstance(found.value, LacksMemory)
    assert len(machine.shares) == 1


def test_a_second_failure_is_the_run_s_own(machine, tmp_path):
    machine.others.enter_context(locked("gpu", GPUS, 1, title="another run"))
    machine.errors = [RankError("CUDA out of memory"), RankError("CUDA out of memory, again")]
    with pytest.raises(RankError, match="again") as found:
        run(tmp_path)
    assert not isinstance(found.value, LacksMemory)
