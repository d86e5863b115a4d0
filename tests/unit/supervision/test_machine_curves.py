"""Machine curves: what is kept of many points, what a resumed training continues, and what the page draws."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import ValidationError, convert
from msgspec.structs import asdict

from shardline.records.base import encode
from shardline.records.measured import RankUsage, Resources, UsageCurve
from shardline.report.charts.resource_curves import MAX_RANKS, view_machine
from shardline.supervision import resource_usage
from shardline.supervision.resource_usage import (
    MAX_POINTS,
    MachineCurve,
    MachinePoint,
    halve,
    read_curve,
    sealed_curve,
    thin,
    write_curve,
)
from shardline.supervision.watchdog import Task
from shardline.supervision.watchdog.proc import usage_of
from shardline.training.heartbeat import Heartbeat
from shardline_io import heartbeat_memory
from shardline_io.heartbeat_memory import HeartbeatMemory
from tests.support.processes import wait_until
from tests.support.report_runs import render, write_run

AMOUNTS = st.integers(0, 2**40)
MEASURED = st.tuples(
    AMOUNTS, st.integers(0, 6400), st.none() | AMOUNTS, st.none() | st.integers(0, 100)
)


def point(s, rss_bytes=10**9, cpu_percent=100.0, attempt=1, **gpu):
    return MachinePoint(attempt=attempt, s=s, rss_bytes=rss_bytes, cpu_percent=cpu_percent, **gpu)


def points_of(measured, attempt=1):
    return [
        point(float(2 * at), rss, float(cpu), attempt, gpu_bytes=used, gpu_percent=percent)
        for at, (rss, cpu, used, percent) in enumerate(measured, 1)
    ]


@given(st.lists(MEASURED, min_size=1, max_size=80), st.integers(2, 20))
def test_thinning_keeps_ends_order_and_peaks(measured, most):
    points = points_of(measured)
    kept = thin(points, most)
    assert len(kept) <= most
    assert len(kept) * 2 >= min(len(points), most), "no more are dropped than needed"
    times = [one.s for one in kept]
    assert times == sorted(set(times))
    assert (times[0], times[-1]) == (points[0].s, points[-1].s)
    assert {one.s for one in kept} <= {one.s for one in points}
    assert max(one.rss_bytes for one in kept) == max(one.rss_bytes for one in points)
    gpu = [[one.gpu_bytes for one in some if one.gpu_bytes is not None] for some in (points, kept)]
    assert max(gpu[0], default=None) == max(gpu[1], default=None)
    low, high = (pick(one.cpu_percent for one in points) for pick in (min, max))
    assert all(low - 0.1 <= one.cpu_percent <= high + 0.1 for one in kept)


def test_two_points_become_one_of_the_highest_memory_and_the_mean_use():
    before = [point(2.0, 5), point(4.0, 9, 10.0, gpu_percent=0), point(6.0, 7, 30.0, 2)]
    assert halve(before) == [point(2.0, 5), point(6.0, 9, 20.0, 2, gpu_percent=0)]
    assert halve([]) == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_attempts_append_and_any_number_of_points_is_bounded(tmp_path_factory, attempts):
    work = tmp_path_factory.mktemp("work")
    expected = 0.0
    for number, num_points in enumerate(attempts, 1):
        curve = read_curve(work, 3, period_s=2.0)
        assert curve.begin(number) == number
        assert curve.last_s == expected, "continued where the attempt before was last seen"
        for _ in range(num_points):
            expected += curve.period_s
            curve.add(point(expected, attempt=number))
            assert len(curve.points) <= MAX_POINTS
        write_curve(work, 3, curve)
        assert read_curve(work, 3, period_s=2.0) == curve
    sealed = sealed_curve(work, 3, 1)
    sealed = encode(sealed) if sealed else {"s": [], "attempt": []}
    assert sealed["s"] == sorted(sealed["s"])
    assert sealed["attempt"] == sorted(sealed["attempt"])
    # an attempt of few points may have lent its last place to the one after it
    assert set(sealed["attempt"]) <= {at for at, many in enumerate(attempts, 1) if many}
    total = sum(attempts)
    assert len(sealed["s"]) >= min(total if total > 1 else 0, MAX_POINTS // 2)


def test_points_of_a_training_whose_attempts_were_deleted_are_left_out():
    curve = MachineCurve([point(2.0), point(4.0, attempt=2), point(6.0, attempt=3)], 2.0)
    assert curve.begin(0) == 4, "ranks that were started without a job"
    assert curve.begin(2) == 2
    assert curve.last_s == 4.0
    assert MachineCurve([], 2.0).begin(0) == 1


WHOLE = {
    "period_s": 2.0,
    "points": {
        name: [value] * 2 for name, value in asdict(point(1.0)).items()
    },
}  # fmt: skip


def damaged(name, column):
    return json.dumps({**WHOLE, "points": {**WHOLE["points"], name: column}})


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", json.dumps(WHOLE)[:40], damaged("s", [1.0]), damaged("rss_bytes", ["a", "b"]),
        damaged("cpu_percent", [float("nan")] * 2), damaged("s", None), damaged("attempt", [{}, {}]),
        damaged("rss_bytes", [None, 1]),
    ],
)  # fmt: skip
def test_a_damaged_file_of_points_begins_again_and_fails_nothing(tmp_path, text):
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine/rank-00000.json").write_text(text)
    assert read_curve(tmp_path, 0).points == []
    assert sealed_curve(tmp_path, 0, 1) is None


def test_a_folder_that_is_gone_fails_nothing(tmp_path):
    write_curve(tmp_path / "gone", 0, MachineCurve([point(2.0)], 2.0))
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(("world_size", "most"), [(1, MAX_POINTS), (8, 120), (1000, 16)])
def test_what_is_sealed_of_many_ranks_is_little(tmp_path, world_size, most):
    write_curve(tmp_path, 0, MachineCurve(points_of([(1, 2, None, None)] * MAX_POINTS), 2.0))
    curve = encode(sealed_curve(tmp_path, 0, world_size))
    assert list(curve) == ["attempt", "s", "rss_bytes", "cpu_percent"], "no column of a GPU"
    assert most // 2 < len(curve["s"]) <= most


@pytest.mark.parametrize("num_points", [0, 1])
def test_a_training_of_seconds_has_no_curve(tmp_path, num_points):
    write_curve(tmp_path, 0, MachineCurve([point(2.0)] * num_points, 2.0))
    assert sealed_curve(tmp_path, 0, 1) is None


PARENT = """
import subprocess, sys, threading
held = bytearray(b"1" * 30_000_000)
def start():
    code = "held = bytearray(b'1' * 50_000_000); sum(range(5_000_000)); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    sys.stdin.readline()
    child.communicate(b"\\n")
    print("ended", flush=True)
thread = threading.Thread(target=start)
thread.start()
print("started", flush=True)
thread.join()
sys.stdin.readline()
"""


def test_linux_tells_memory_and_cpu_of_a_process_with_its_children():
    """A child that a thread started counts, and what it used still does when it has ended."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout.readline() == "started\n"
    wait_until(lambda: usage_of(parent.pid)[0] > 80e6 and usage_of(parent.pid)[1] > 0, parent)
    used_s = usage_of(parent.pid)[1]
    parent.stdin.write("\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == "ended\n"
    rss_bytes, later_s = usage_of(parent.pid)
    assert 30e6 < rss_bytes < 80e6
    assert later_s >= used_s
    own = usage_of(os.getpid())[0]
    assert own > 10e6
    parent.kill()
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(2):  # ended, and then gone
        with pytest.raises((ProcessLookupError, FileNotFoundError)):
            usage_of(parent.pid)
        parent.communicate()


def test_a_sampler_continues_the_curve_at_its_period(tmp_path, monkeypatch):
    now, used = SimpleNamespace(s=100.0), SimpleNamespace(cpu_s=7.0)
    monkeypatch.setattr(resource_usage.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(resource_usage, "usage_of", lambda pid: (10**9, used.cpu_s))
    memory = HeartbeatMemory()
    task = Task(
        rank=1, num_ranks=2, pid=7, work=str(tmp_path), logs="", first_host="", port=0, dump_signal=45,
        hang_timeout_s=0.0, startup_timeout_s=0.0, attempt=2,
    )  # fmt: skip
    write_curve(tmp_path, 1, MachineCurve([point(2.0), point(8.0, attempt=1)], 2.0))
    sampled = resource_usage.Sampler(task, memory)
    for at, cpu_s in ((101, 8.0), (102, 10.0), (103, 11.0), (105, 5.0)):
        now.s, used.cpu_s = at, cpu_s
        memory.record_gpu(0, 45) if at == 103 else None
        sampled.sample_if_due()
    assert read_curve(tmp_path, 1).points[2:] == [
        point(10.0, cpu_percent=150.0, attempt=2),
        # less CPU time than before: a child's was lost
        point(13.0, cpu_percent=0.0, attempt=2, gpu_bytes=0, gpu_percent=45),
    ]


def test_the_use_of_a_gpu_is_recorded_and_a_failing_nvml_fails_nothing(monkeypatch):
    """By a GPU that is simulated: none is there."""
    calls = []

    def utilization():
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("cuda driver can't be loaded")
        return 0

    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2**34)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setattr(
        "shardline.training.heartbeat.time.monotonic", iter(range(2, 99, 2)).__next__
    )
    memory = heartbeat_memory.adopt(HeartbeatMemory())
    assert memory.gpu() == (None, None)
    callback = Heartbeat()
    for device, found in (("cpu", (None, None)), ("cuda", (2**34, 0))):
        strategy = SimpleNamespace(root_device=torch.device(device))
        trainer = SimpleNamespace(global_step=3, strategy=strategy)
        callback.on_train_start(trainer, None)
        callback.on_train_batch_end(trainer, None, None, None, 0)
        assert memory.gpu() == found
    for _ in range(3):
        callback.on_validation_batch_end(trainer, None, None, None, 0)
    assert memory.gpu() == (2**34, None)
    assert len(calls) == 2, "NVML is not asked again"


def curve_of(num_points=50, rss=2 * 10**9, **more):
    columns = {
        "attempt": [1 if at < num_points // 2 else 2 for at in range(num_points)],
        "s": [2.0 * at for at in range(1, num_points + 1)],
        "rss_bytes": [rss + at for at in range(num_points)],
        "cpu_percent": [150.0] * num_points,
    }
    return {**columns, **more}


def view_of(*curves):
    ranks = [
        RankUsage(rank=rank, host="n1", peak_rss_bytes=9, cpu_s=1.0, curve=convert(one, UsageCurve))
        for rank, one in enumerate(curves)
    ]
    return view_machine(Resources(num_cpus=4, memory_bytes=8 * 10**9, ranks=ranks))


def test_the_panels_show_memory_and_cpu_and_of_a_gpu_what_is_known():
    view = view_of(curve_of(), curve_of(gpu_bytes=[None] * 49 + [7 * 10**8]))
    titles = [panel["layer"][0]["encoding"]["y"]["title"] for panel in view.spec["concat"]]
    assert titles == ["memory, GB", "CPU, % of a core", "GPU memory, MB"]
    assert (
        view.description
        == "memory at most 2 GB, CPU at most 150 % of a core, GPU memory at most 700 MB"
    )
    assert [row["run"] for row in view.rows] == list(view.legend) == ["rank 0", "rank 1"]
    assert view.rows[0]["gpu_bytes"] == [None] * 50
    assert view.rows[1]["gpu_bytes"][-1] == 700
    assert len({len(value) for value in view.rows[0].values() if isinstance(value, list)}) == 1
    assert set(view.rows[0]["attempt"]) == {1, 2}


def test_of_many_ranks_those_with_the_most_memory_are_drawn():
    view = view_of(*(curve_of(rss=10**9 + rank * 10**8) for rank in range(30)))
    assert (len(view.rows), view.num_ranks) == (MAX_RANKS, 30)
    assert [row["run"] for row in view.rows][-1] == "rank 29"


def test_one_specification_stands_for_runs_of_one_kind():
    one, same, other = view_of(curve_of()), view_of(curve_of(55)), view_of(curve_of(rss=5))
    assert one.name == same.name != other.name
    assert one.spec == same.spec
    assert one.legend == {}


STRANGE = st.recursive(
    st.none() | st.booleans() | st.floats(-1e9, 1e9) | st.text(max_size=3) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["s", "attempt", "rss_bytes", "cpu_percent", "gpu_bytes"]), inner, max_size=5
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(STRANGE, st.sampled_from([*curve_of(), "gpu_percent"]), STRANGE)
def test_what_is_no_curve_is_refused(strange, name, column):
    for curve in (strange, {**curve_of(2), name: column}):
        with suppress(ValidationError):
            json.dumps(view_of(curve).rows, allow_nan=False)
    assert view_machine(None) is None


def test_a_run_without_points_has_no_figure_and_one_with_them_has(tmp_path):
    ranks = [{"rank": 0, "host": "n1", "peak_rss_bytes": 9, "cpu_s": 1.0}]
    machine = {"num_cpus": 4, "memory_bytes": 8 * 10**9}
    without = write_run(tmp_path, "a", provenance={"resources": {**machine, "ranks": ranks}})
    ranks = [{**ranks[0], "curve": curve_of()}]
    with_curve = write_run(tmp_path, "b", provenance={"resources": {**machine, "ranks": ranks}})
    options = {"generated_from": "config/runs.tsv"}
    assert 'class="drawn machine"' not in render([without], **options)
    page = render([without, with_curve], **options)
    assert page.count('class="drawn machine"') == 1
    assert page.count('<script type="application/json" id="machine-') == 1
