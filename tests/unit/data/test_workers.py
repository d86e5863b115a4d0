"""Where samples are transformed changes no bit; errors and dead processes are named."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from shardline.core.errors import ConfigError, DataError
from shardline.data.transforms.repeat_check import check_samples
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.data.workers import make_pool, parse_workers
from tests.support.transforms import Sleeps, Waits

HERE = "tests.support.transforms:"
PLACES = (0, "threads:1", "threads:3", "processes:2", "auto")


def samples(count: int = 10) -> list:
    found = []
    for row in range(count):
        x = np.arange(6, dtype=np.float32) + row
        x.flags.writeable = False
        found.append(((7, 0, 1, row), {"x": x, "y": str(row).encode(), "t": "é", "n": None}))
    return found


def where(key) -> str:
    return f"dataset web: row id {key[3]}"


def pool_of(place: str, written, *, tell=lambda line: None, has_chance: bool = True):
    spec = TransformSpec(written=written, what="data.transform", has_chance=has_chance)
    return make_pool(place, spec, where=where, tell=tell)


def content(samples: list) -> list:
    return [
        {name: v.tobytes() if name == "x" else v for name, v in s.items() if name != "by"}
        for s in samples
    ]


@pytest.mark.parametrize("place", PLACES)
def test_samples_have_the_same_bits_wherever_they_are_transformed(place):
    written = [{"type": HERE + "Noise", "scale": 0.5}, HERE + "Half"]
    alone = pool_of("0", written)
    wanted = content(alone.submit(samples()).result())
    pool = pool_of(place, written)
    try:
        pending = [pool.submit(samples()[a:b]) for a, b in ((0, 3), (3, 4), (4, 4), (4, 10))]
        found = [sample for one in pending for sample in one.result()]
        assert content(found) == wanted
        if str(place).startswith("processes"):
            assert os.getpid() not in {sample["by"] for sample in found}
    finally:
        pool.close()


@pytest.mark.parametrize("place", ["0", "threads:2", "processes:1"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Fails", r"dataset web: row id 3: data.transform=\S+:Fails failed: KeyError: 'missing'\n.*return sample"),
        ("Refuses", r"dataset web: row id 0: data.transform=\S+:Refuses: column y is wrong, expected"),
        ("NoDict", r"row id 0: data.transform=\S+:NoDict returned ndarray, expected a dict by column"),
        ("Writes", r"row id 0: data.transform=\S+:Writes failed: ValueError: assignment destination is read-only"),
    ],
)  # fmt: skip
def test_an_error_is_the_same_wherever_it_happens_and_names_sample_and_step(place, name, message):
    pool = pool_of(place, HERE + name)
    try:
        with pytest.raises(DataError, match=message):
            pool.submit(samples()).result()
    finally:
        pool.close()


def test_what_cannot_be_sent_between_processes_is_an_error_with_the_way_out():
    pool = pool_of("processes:1", HERE + "Unsendable")
    try:
        with pytest.raises(DataError, match="cannot be sent to another process.*threads:n"):
            pool.submit(samples()).result()
    finally:
        pool.close()


def test_a_process_that_dies_is_an_error_and_no_hang():
    pool = pool_of("processes:2", HERE + "Ends")
    try:
        for _ in range(3):
            with pytest.raises(DataError, match=r"process \d+ ended by signal 9 \(SIGKILL\) while"):
                pool.submit(samples()).result()
    finally:
        pool.close()


def test_processes_let_stop_signals_pass_and_end_with_the_pool():
    pool = pool_of("processes:2", HERE + "Noise")
    assert len(pool.submit(samples()).result()) == 10
    processes = [psutil.Process(process.pid) for process in pool.processes]
    for process in processes:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            process.send_signal(number)
    assert len(pool.submit(samples()).result()) == 10
    pool.close()
    assert not any(process.is_running() for process in processes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_a_parent_that_is_killed_even_while_they_work(tmp_path: Path, number):
    (tmp_path / "slow.py").write_text(
        textwrap.dedent("""
        import os, time
        class Slow:
            def __call__(self, sample, generator):
                os.write(1, b"working\\n")  # in one piece: two processes write
                time.sleep(600)
        """)
    )
    parent = textwrap.dedent("""
        from shardline.data.transforms.transform_steps import TransformSpec
        from shardline.data.workers import make_pool
        pool = make_pool("processes:2", TransformSpec(written="slow:Slow", what="data.transform"), where=str)
        print(*[process.pid for process in pool.processes], flush=True)
        pool.submit([((0, 0, 0, row), {}) for row in range(2)]).result()
        """)
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        lines = [process.stdout.readline() for _ in workers]
        process.send_signal(number)
        process.wait()
        assert lines == ["working\n"] * 2
        gone, alive = psutil.wait_procs(workers, timeout=30)
        assert (len(gone), alive) == (2, [])


def test_a_cancelled_batch_is_not_begun():
    pool = pool_of("threads:1", f"{HERE}Waits")
    try:
        running, waiting = pool.submit(samples(2)), pool.submit(samples(2))
        assert Waits.has_begun.wait(60)
        assert waiting.cancel()
        Waits.may_end.set()
        assert len(running.result()) == 2
        assert waiting.cancelled()
    finally:
        Waits.may_end.set()
        pool.close()


def test_auto_takes_threads_where_they_are_faster_and_tells_so(monkeypatch):
    monkeypatch.setattr("shardline.data.workers.num_cpus", lambda: 4)
    # a clock that does not count the time in which a busy machine does other work
    clock = SimpleNamespace(perf_counter=lambda: Sleeps.seconds)
    monkeypatch.setattr("shardline.data.workers.time", clock)
    lines: list[str] = []
    pool = pool_of("auto", HERE + "Sleeps", tell=lines.append)
    try:
        assert pool.chosen == "auto"
        assert len(pool.submit(samples()).result()) == 10
        assert pool.chosen == "threads:4"
        pool.submit(samples(2)).result()
        (line,) = lines
        assert line.startswith("data.workers=auto chose threads:4 (")
    finally:
        pool.close()


def test_auto_takes_the_calling_thread_where_a_sample_costs_nothing(monkeypatch):
    monkeypatch.setattr("shardline.data.workers._CHEAP_S", 10.0)
    lines: list[str] = []
    pool = pool_of("auto", HERE + "Half", tell=lines.append)
    assert len(pool.submit(samples()).result()) == 10
    assert pool.chosen == "0"
    assert lines[0].startswith("data.workers=auto chose 0 (")


def test_a_number_alone_is_one_of_threads():
    assert parse_workers(3) == parse_workers("3") == parse_workers("threads:3") == ("threads", 3)


@pytest.mark.parametrize(
    "written", ["thread:2", "threads", "threads:0", "processes:-1", -1, "two", ""]
)
def test_another_setting_is_refused(written):
    with pytest.raises(ConfigError, match="data.workers=.*expected auto, 0, a number of"):
        parse_workers(written)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("no.such:Thing", r"data.transform=no.such:Thing does not import: ModuleNotFoundError"),
        ([HERE + "Half", HERE + "Nothing"], r"data.transform.1=\S+:Nothing does not import"),
        (
            {"type": HERE + "Noise", "loud": 1},
            r"data.transform.type=\S+Noise takes scale=1.0, but not loud; remove loud",
        ),
        (HERE + "Alone", r"Alone cannot be called with \(sample, generator\).*`def __call__"),
    ],
)
def test_a_transform_that_cannot_be_made_is_named_at_once(written, message):
    for place in ("0", "threads:2", "processes:2"):
        with pytest.raises(ConfigError, match=message):
            pool_of(place, written)


def test_an_eval_transform_is_called_with_the_sample_alone():
    pool = pool_of("0", [HERE + "Alone", HERE + "Half"], has_chance=False)
    assert pool.submit(samples(1)).result()[0]["x"].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    with pytest.raises(ConfigError, match=r"Noise cannot be called with \(sample\) "):
        pool_of("0", HERE + "Noise", has_chance=False)


@pytest.mark.parametrize("of", ["random", "numpy.random", "torch"])
@pytest.mark.parametrize("has_chance", [True, False])
def test_a_transform_that_draws_from_a_global_generator_is_refused(of, has_chance):
    written = [HERE + "Half", {"type": HERE + "Global", "of": of}]
    spec = TransformSpec(written=written, what="data.transform", has_chance=has_chance)
    message = rf"web: row id 0: data.transform.1=\S+:Global draws .* global generator of {of},.*"
    remedy = (
        "draw all random numbers from the generator"
        if has_chance
        else "do not use random numbers in data"
    )
    with pytest.raises(ConfigError, match=message + remedy):
        check_samples(spec, samples(1), where)


def test_a_transform_that_gives_two_results_is_refused():
    spec = TransformSpec(written=HERE + "Counts", what="data.transform")
    with pytest.raises(ConfigError, match="Counts gives two results for one sample and equal"):
        check_samples(spec, samples(1), where)


def test_a_transform_that_keeps_to_its_generator_passes_the_check():
    spec = TransformSpec(written=[HERE + "Noise", HERE + "Half"], what="data.transform")
    check_samples(spec, samples(), where)


@pytest.mark.parametrize("place", ["threads:2", "processes:2", "auto"])
def test_in_tests_mode_each_call_is_checked(monkeypatch, place):
    monkeypatch.setenv("SHARDLINE_CHECK_TRANSFORMS", "1")
    pool = pool_of(place, {"type": HERE + "Global", "of": "random"})
    assert pool.chosen == "0"
    with pytest.raises(ConfigError, match="global generator of random"):
        pool.submit(samples()).result()
