"""Ranks that a server forks: what they see, how they end, and what is left when Snakemake or their job ends.

The servers of these tests import only a part of what ranks need; `ranks/test_warm_ranks.py` trains with real ones.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shardline.core.rank_environment import rank_variables
from shardline.supervision.warm import client
from shardline.supervision.warm.client import VARIABLE, Cold, start_warm
from shardline.supervision.warm.keeper import mapped_libraries
from tests.support.warm_server import held

PROGRAM = "tests.support.warm_program"
# a job that starts a warm rank and then waits, to be killed
JOB = """
import sys
from tests.unit.supervision.test_warm_ranks import start
warm = start("wait", sys.argv[1])
print(warm.pid, warm.stdout.readline(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def shared():
    """A Snakemake of several tests, and its server, which has imported the store of several ranks."""
    with held() as (_, offer), pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, offer)
        start("exit", "0", modules=("numpy", "shardline.launch.stores")).wait()
        yield offer


@pytest.fixture
def server(shared, monkeypatch):
    """Let a test use the shared server."""
    monkeypatch.setenv(VARIABLE, shared)


@pytest.fixture
def snakemake(monkeypatch):
    """A Snakemake of one test."""
    with held() as (holder, offer):
        monkeypatch.setenv(VARIABLE, offer)
        yield holder


def variables(**changes: str) -> dict[str, str]:
    """Return a rank's environment."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**own, **rank_variables(1, {}, ""), **changes}


def start(*args, ranks=1, modules=("numpy",), grace_s=5.0, env=None, **options):
    """Start ranks of the test's program."""
    return start_warm(
        args, module=PROGRAM, env=env or variables(), ranks=ranks, run_id="test", grace_s=grace_s,
        package="pytorch_lightning", modules=modules, **options,
    )  # fmt: skip


def said(*args, **options) -> str:
    """Return what ranks of the test's program print until their end."""
    warm = start(*args, **options)
    output = warm.stdout.read()
    assert warm.wait() == 0
    return output


def servers() -> list[str]:
    """Return the names of servers that listen; their connections have the names too, without the flag."""
    return re.findall(r" 00010000 .*(@shardline-\S+)", Path("/proc/net/unix").read_text())


def gone(pid: int) -> bool:
    """Return whether a process has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def eventually(condition, limit_s=120.0):
    """Wait for what another process does."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_libraries_are_found_below_a_folder_with_a_space():
    maps = (
        "7f00-7f10 r-xp 00000000 fe:00 123    /a folder/numpy.libs/libopenblas64.so\n"
        "7f10-7f20 r--p 00001000 fe:00 123    /a folder/numpy.libs/libopenblas64.so\n"
        "7f20-7f30 r--p 00000000 fe:00 124    /my openblas/other.so\n"
        "7f30-7f40 rw-p 00000000 00:00 0      [heap]\n"
    )
    assert mapped_libraries(maps, "openblas") == {"/a folder/numpy.libs/libopenblas64.so"}


def test_a_value_that_is_no_utf_8_reaches_a_forked_rank(snakemake):
    odd = os.fsdecode(b"se\xf1or\n\xff=\xc3\xa9")
    found = json.loads(said("describe", env=variables(ODD=odd)))
    assert found["env"]["ODD"] == odd


def test_a_forked_rank_sees_what_a_started_one_sees(server, tmp_path):
    own = {"GOTO_NUM_THREADS": "5", "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    env = variables(OPENBLAS_NUM_THREADS="2", **own)
    start("exit", "0", env={name: value for name, value in env.items() if name not in own})
    before = os.umask(0o027)
    try:
        cold = subprocess.run(
            [sys.executable, "-m", PROGRAM, "describe"], env=env, stdin=0, capture_output=True,
            text=True, check=True, start_new_session=True,
        ).stdout  # fmt: skip
        warm = start("describe", env=env)
    finally:
        os.umask(before)
    found, expected = json.loads(warm.stdout.read()), json.loads(cold)
    assert warm.wait() == 0
    for one in (found, expected):
        one["env"].pop(VARIABLE, None)
    assert found == expected
    assert found["umask"] == 0o027
    assert found["temporary"] == str(tmp_path)
    assert (
        len([name for name in servers() if f"-{os.environ[VARIABLE].partition(':')[0]}-" in name])
        == 1
    )


@pytest.mark.parametrize(
    ("args", "code", "output"),
    [
        (("exit", "0"), 0, "on stderr"),
        (("exit", "3"), 3, "on stderr"),
        (("raise", "no"), 1, "ValueError: no"),
        (("kill", "9"), -9, ""),
        (("kill", "11"), -11, ""),
    ],
)
def test_exit_codes_signals_and_output_are_those_of_the_program(server, args, code, output):
    warm = start(*args)
    assert output in warm.stdout.read()
    assert warm.wait() == code == warm.returncode


def test_a_rank_ends_as_python_ends(server, tmp_path):
    """Threads are waited for, functions of `atexit` are called, and open files get what was written."""
    words = [sys.executable, "-m", PROGRAM, "leave-open", str(tmp_path / "cold")]
    cold = subprocess.run(words, env=variables(), capture_output=True, text=True, check=False)
    warm = start("leave-open", str(tmp_path / "warm"))
    assert warm.stdout.read() == cold.stdout == "no linea thread\nat exit\n"
    assert warm.wait() == cold.returncode == 4
    assert (tmp_path / "warm").read_text() == (tmp_path / "cold").read_text() == "written"


def test_a_job_may_ask_the_ranks_to_end(server, tmp_path):
    warm = start("wait", str(tmp_path / "pid"))
    assert warm.stdout.readline() == "waits\n"
    with pytest.raises(subprocess.TimeoutExpired):
        warm.wait(0.01)
    warm.terminate()
    assert warm.stdout.read() == "told to end\n"
    assert warm.wait() == 5


def test_the_processor_time_of_the_ranks_and_their_memory_are_measured(server):
    warm = start("burn", "0.4", ranks=2)
    assert warm.wait() == 0
    assert 0.8 <= warm.used.cpu_s < 8
    assert warm.used.peak_rss_bytes > 5 << 20


@pytest.mark.parametrize(
    ("how", "said"), [("3", "exited with code 3"), ("-9", "exited on signal 9")]
)
def test_the_first_of_several_ranks_that_fails_ends_the_others(server, how, said):
    warm = start("first-fails", how, ranks=3)
    output = warm.stdout.read()
    assert re.search(rf"process rank 1 with PID \d+ on node {os.uname().nodename} {said}", output)
    assert warm.wait() == 1, "torchrun's agent has this code too"


def test_ranks_that_do_not_stop_are_killed_after_the_grace_time(server, tmp_path):
    warm = start("wait", str(tmp_path / "pid"), ranks=2, grace_s=0.2)
    assert [warm.stdout.readline() for _ in range(2)] == ["waits\n"] * 2
    for child in psutil.Process(warm.pid).children():
        child.suspend()  # SIGTERM stays pending
    warm.terminate()
    assert warm.wait() == 1


def test_a_killed_job_takes_its_ranks_along(server, tmp_path):
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(tmp_path / "pid")], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    keeper = int(job.stdout.readline().split()[0])
    rank = int((tmp_path / "pid").read_text())
    assert not gone(keeper)
    assert not gone(rank)
    job.kill()
    eventually(lambda: gone(keeper) and gone(rank))
    job.communicate()


def test_the_server_ends_with_snakemake_also_by_sigkill_and_running_ranks_go_on(
    snakemake, tmp_path
):
    warm = start("wait", str(tmp_path / "pid"))
    warm.stdout.readline()
    name = f"@shardline-{os.geteuid()}-{snakemake.pid}-"
    assert any(one.startswith(name) for one in servers())
    snakemake.kill()
    eventually(lambda: not any(one.startswith(name) for one in servers()))
    assert warm.returncode is None
    assert not gone(warm.pid)
    snakemake.wait()
    with pytest.raises(Cold, match="has ended"):
        start("exit", "0")
    warm.terminate()
    assert warm.wait() == 5


def test_jobs_share_a_server_and_another_environment_has_its_own(snakemake):
    one = start("exit", "0")
    for env in (variables(), variables(OPENBLAS_NUM_THREADS="3"), variables(HF_HOME="/elsewhere")):
        warm = start("describe", env=env)
        assert (
            json.loads(warm.stdout.read())["env"]["OPENBLAS_NUM_THREADS"]
            == env["OPENBLAS_NUM_THREADS"]
        )
        assert warm.wait() == 0
    assert one.wait() == 0
    name = f"@shardline-{os.geteuid()}-{snakemake.pid}-"
    assert len({each for each in servers() if each.startswith(name)}) == 2
    start("exit", "0", env=variables(HF_HOME="/a")).wait()
    with pytest.raises(Cold, match="servers of other environments"):
        start("exit", "0", env=variables(HF_HOME="/b"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('broken')", r"could not import .*RuntimeError: broken"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=[99], daemon=True).start()",
            "imports have started threads",
        ),
        ("import sys; sys.exit(1)", "could not import"),
        ("import subprocess; a = subprocess.Popen(['sleep', '5'])", "have started processes"),
        ("import socket; a = socket.socketpair()", "have opened connections"),
    ],
)
def test_what_is_unusual_after_the_imports_makes_ranks_start_cold(
    snakemake, tmp_path, monkeypatch, source, reason
):
    (tmp_path / "unusual.py").write_text(source)
    env = variables(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(Cold, match=reason):
        start("exit", "0", modules=("unusual",), env=env)


def test_a_server_whose_files_have_changed_is_replaced(snakemake, tmp_path):
    module = tmp_path / "changing.py"
    module.write_text("print('imported')")
    env = variables(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    first = start("exit", "0", modules=("changing",), env=env)
    assert first.stdout.read() == "imported\non stderr\n", "as in a program that imports the module"
    module.write_text("print('imported again')")
    with pytest.raises(Cold, match=re.escape(f"{module} has changed")):
        start("exit", "0", modules=("changing",), env=env)
    again = start("exit", "0", modules=("changing",), env=env)
    assert "imported again" in again.stdout.read()


SETTINGS = """
import os, tempfile
from pathlib import Path
try:
    SETTING = Path(os.environ["SETTING"]).read_text()
except FileNotFoundError:
    SETTING = "default"
os.environ["CACHE"] = tempfile.gettempdir() + "/cache"
os.environ["CHANGED"] = "new"
os.environ.pop("REMOVED", None)
os.environ.get("SHLVL")
{name: value for name, value in os.environ.items() if name.startswith("PREFIX_")}
dict(os.environ), os.environ.copy()  # as fsspec does
print(SETTING)
"""


def test_what_imports_read_and_set_is_that_of_the_job(snakemake, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "reading.py").write_text(SETTINGS)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    common = {
        "PYTHONPATH": path, "SETTING": str(tmp_path / "setting"), "CHANGED": "old", "REMOVED": "1", "SHLVL": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    env = variables(**common)
    options = {"modules": ("reading",), "env": env}
    assert said("exit", "0", **options) == "default\non stderr\n"
    env |= {"TMPDIR": str(tmp_path / "own"), "CUDA_VISIBLE_DEVICES": "1"}
    found = json.loads(said("describe", **options).removeprefix("default\n"))["env"]
    cold = subprocess.run(
        [sys.executable, "-c", "import json, os, reading; print(json.dumps({**os.environ}))"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = json.loads(cold.stdout.removeprefix("default\n"))
    for one in (found, expected):
        one.pop(VARIABLE, None)
        one.pop("_", None)  # of a shell
    assert found == expected
    assert (found["CACHE"], found["CHANGED"]) == (str(tmp_path / "own/cache"), "new")
    with pytest.raises(Cold, match="imports have read SHLVL, which has another value"):
        start("exit", "0", modules=("reading",), env={**env, "SHLVL": "2"})
    (tmp_path / "setting").write_text("mine")  # the imports looked for this file
    with pytest.raises(Cold, match=re.escape(f"{tmp_path / 'setting'} has changed")):
        start("exit", "0", **options)
    assert said("exit", "0", **options) == "mine\non stderr\n"


def test_without_an_offer_of_this_snakemake_ranks_start_cold(monkeypatch):
    for text in ("", "1:2", f"{os.getpid()}:0:1", "999999999:3:4"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(Cold):
            start("exit", "0")


def test_an_offer_is_a_pipe_of_this_process_and_can_be_withdrawn(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1:2:3")
    client.offer(is_on=True)
    pid, fd, inode = map(int, os.environ[VARIABLE].split(":"))
    assert pid == os.getpid()
    assert os.fstat(fd).st_ino == inode
    warm = start("exit", "0")
    assert warm.wait() == 0
    client.offer(is_on=False)
    assert VARIABLE not in os.environ


def test_signals_reach_each_rank_once(server, tmp_path):
    # with code 0, since the first rank that fails has the others ended once more
    warm = start("wait", str(tmp_path / "pid"), "0", ranks=2)
    assert [warm.stdout.readline() for _ in range(2)] == ["waits\n"] * 2
    os.kill(warm.pid, signal.SIGTERM)  # as to torchrun's agent
    assert warm.stdout.read().count("told to end") == 2
    assert warm.wait() == 0
