"""Whom a hanging job waits for, what is told of it, and what a watchdog reads of its rank and its job."""

import faulthandler
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict

import pytest

from shardline.errors import Stopped
from shardline.launch.preflight import rendezvous
from shardline.records.attempts import Attempt
from shardline.supervision.failure_records import killed_rank, read_failures, report_failure
from shardline.supervision.watchdog import Task
from shardline.supervision.watchdog.diagnosis import (
    diagnose_hang,
    exit_message,
    hung_message,
    report_exit,
)
from shardline.supervision.watchdog.heartbeats import (
    RankHeartbeat,
    any_works,
    has_main_thread,
    heartbeat_file,
    read_heartbeats,
    requested_stop,
    waits_for_peers,
    write_heartbeat,
)
from shardline.supervision.watchdog.proc import exit_code_of, out_of_memory_kills, state_of

WAITS = {"waits": True}
OWN = {"waits": False}


def sign(rank, count=9, **known):
    host = f"n{rank // 2 + 1}"
    told = {"step": 12, "phase": "train", "place": 24, "ticks": 40, "idle_s": 600.0, "state": "S"}
    return RankHeartbeat(**{"rank": rank, "host": host, "pid": 7, "count": count, **told, **known})


CASES = {  # for each of four ranks on two hosts what differs, the diagnosis, and what it symptom like
    "stopped": ([WAITS, WAITS, WAITS, {"state": "T"}], [3], "stopped (state T)"),
    "gone": ([WAITS, {"state": "X"}, WAITS, WAITS], [1], "its process is gone"),
    "left": ([WAITS, {"state": "L", **OWN}, OWN, WAITS], [2], "it runs its own code"),
    "no sign": ([WAITS, WAITS, {"count": 5}, {"count": 5}], [2, 3], "sends no heartbeat"),
    "no sign, though last seen stopped": (
        [{"state": "T"}, WAITS, WAITS, {"count": 5}], [3], "sends no heartbeat"),
    "in Python": ([WAITS, OWN, WAITS, WAITS], [1], "runs its own code while other ranks wait"),
    "in Python, one of them later": (
        [WAITS, OWN, {**OWN, "place": 25}, WAITS], [1], "runs its own code while other ranks wait"),
    "on a disk": ([WAITS, {**OWN, "state": "D"}, WAITS, WAITS], [1], "a disk or a network file system"),
    "cut off": (
        [WAITS, WAITS, {**WAITS, "reaches_first": False}, {**WAITS, "reaches_first": False}],
        [2, 3], "it cannot reach the first rank's host over the network"),
    "behind": ([WAITS, {**WAITS, "step": 11}, WAITS, WAITS], [1], "it is behind the other ranks"),
    "behind in the step": ([OWN, OWN, {**OWN, "place": 23}, OWN], [2], "it is behind the other ranks"),
    "in another phase": (
        [WAITS, {**WAITS, "phase": "validation", "place": 0}, WAITS, WAITS], [0, 1, 2, 3], "all wait"),
    "the others go on": (
        [{"ticks": 50}, {"ticks": 50}, {"ticks": 50}, {"waits": None}], [3], "the other ranks make progress"),
    "unknown": ([WAITS] * 4, [0, 1, 2, 3], "all wait in a collective operation"),
    "no stacks": ([{}] * 4, [0, 1, 2, 3], "no evidence points to a single rank"),
}  # fmt: skip


@pytest.mark.parametrize(("differ", "ranks", "symptom"), CASES.values(), ids=CASES)
def test_the_surest_evidence_names_the_guilty(differ, ranks, symptom):
    before = [sign(rank, count=5) for rank in range(4)]
    after = [sign(rank, **known) for rank, known in enumerate(differ)]
    diagnosis = diagnose_hang(before, after)
    assert [one.rank for one in diagnosis.suspects] == ranks
    assert symptom in diagnosis.symptom


def test_a_first_host_that_nobody_reaches_is_the_one_that_is_cut_off():
    before = [sign(rank, count=5, **WAITS) for rank in range(6)]
    after = [sign(rank, **WAITS, reaches_first=False if rank > 1 else None) for rank in range(6)]
    diagnosis = diagnose_hang(before, after)
    assert [one.rank for one in diagnosis.suspects] == [0, 1]
    assert diagnosis.symptom == "no other host can reach it over the network"


@pytest.mark.parametrize(
    ("known", "works"),
    [
        ({"idle_s": 20.0}, True),
        ({"idle_s": 596.0}, False),  # of all ranks, in an end that hangs
        ({"idle_s": 20.0, "count": 5}, False),  # its host is lost
        ({"idle_s": 20.0, "state": "L"}, False),
        ({"idle_s": 20.0, "phase": "script"}, False),  # its program has ended
    ],
)
def test_a_script_that_has_ended_its_training_may_wait_for_a_rank_that_works(known, works):
    before = dict.fromkeys(range(4), 5)
    signs = [sign(rank, phase="end") for rank in range(3)] + [sign(3, **{"phase": "end", **known})]
    assert any_works(signs, before, limit_s=595.0) is works


def test_a_rank_whose_signs_cannot_be_read_here_is_not_accused():
    before, after = [sign(0, count=5)], [sign(0, **OWN)]
    assert [one.rank for one in diagnose_hang(before, after).suspects] == [0]


def test_the_message_names_ranks_step_time_and_the_remedy():
    diagnosis = diagnose_hang([sign(0, count=5)], [sign(0, phase="save")])
    told = hung_message(
        diagnosis, idle_s=612.3, timeout_s=600, stacks="logs/train/run/rank-*.stack"
    )
    assert told == (
        "rank 0 on n1 hangs at step 12 (save), no heartbeat for 612 s: it computes, or waits for something other "
        "than a rank; stacks of the ranks: logs/train/run/rank-*.stack; run the same command again to "
        "resume, and raise runtime.hang_timeout_s=600 if the step was just slow"
    )
    ending = diagnose_hang([], [sign(0, phase="end")])
    told = hung_message(ending, idle_s=612.3, timeout_s=600, stacks="s")
    assert "=600, or call shardline_io.alive() meanwhile, if the step was just slow" in told
    many = diagnose_hang([], [sign(rank) for rank in range(6)])
    told = hung_message(many, idle_s=600, timeout_s=600, stacks="s")
    assert told.startswith(
        "rank 0 on n1, rank 1 on n1, rank 2 on n2, rank 3 on n2, 2 more hang at "
    )


@pytest.mark.parametrize(
    ("code", "kills", "told"),
    [
        (-9, 0, "was killed by a signal (SIGKILL) at step 12 (train): by hand, out of memory, or"),
        (-9, 1, "was killed by a signal (SIGKILL) at step 12 (train), when the kernel killed a process for"),
        (-11, 1, "was killed by a signal (SIGSEGV) at step 12 (train): by hand"),
        (None, 0, "was killed by a signal at step 12 (train): by hand"),
        (3, 0, "exited with code 3 at step 12 (train) without an error message"),
    ],
)  # fmt: skip
def test_the_end_of_a_rank_that_told_nothing(code, kills, told):
    assert exit_message(sign(1), code, kills).startswith(f"rank 1 on n1 {told}")


def test_the_cause_of_an_attempt_that_another_followed_advises_no_resume():
    hang = hung_message(diagnose_hang([], [sign(0)]), idle_s=612, timeout_s=600, stacks="s")
    srun = killed_rank("srun: error: n1: task 1: Killed")
    assert srun is not None
    reasons = [exit_message(sign(1), -9, 0), srun, hang, str(Stopped("deadline", 20))]
    for reason, end in zip(
        reasons,
        ["compiled code", "compiled code", "was just slow", "saved at step 20"],
        strict=True,
    ):
        assert "same command" in reason
        cause = Attempt(host="n1", started="2026-01-01T00:00:00Z", reason=reason).cause
        assert cause is not None
        assert "same command" not in cause
        assert cause.endswith(end)
    assert Attempt(host="n1", started="2026-01-01T00:00:00Z").cause is None


def test_an_end_that_another_failure_explains_is_not_told(tmp_path):
    report_failure(tmp_path, "Connection closed by peer [10.0.0.2]", rank=0, log=None)
    report_exit(tmp_path, sign(1, pid=2**30), 0)
    assert [failure.rank for failure in read_failures(tmp_path)] == [1, 0]
    report_exit(tmp_path, sign(2, pid=2**30), 0)  # the launcher ends the others
    assert [failure.rank for failure in read_failures(tmp_path)] == [1, 0]


@pytest.mark.parametrize(("kills", "code"), [(0, 128), (1, 137)])
def test_a_signal_that_is_not_known_is_no_sigkill_unless_memory_ran_out(tmp_path, kills, code):
    report_exit(tmp_path, sign(1, pid=2**30), kills)
    (failure,) = read_failures(tmp_path)
    assert failure.code == code
    assert failure.is_killed


def test_linux_tells_state_and_end_of_a_process():
    child = subprocess.Popen(["sleep", "600"])
    assert state_of(child.pid) in "SRD"
    assert exit_code_of(child.pid) is None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but not asked about
    assert state_of(child.pid) == "Z"
    assert exit_code_of(child.pid) == -9
    child.wait()
    assert state_of(child.pid) == "X"
    assert exit_code_of(child.pid) is None
    assert out_of_memory_kills() >= 0


def test_signs_survive_a_round_and_a_torn_one_is_left_out(tmp_path):
    (tmp_path / "watch").mkdir()
    signs = [sign(0), sign(1, **WAITS)]
    for one in signs:
        write_heartbeat(tmp_path, one)
    heartbeat_file(tmp_path, 2).write_text('{"rank": 2, "ho')
    assert list(read_heartbeats(tmp_path, 4)) == signs
    write_heartbeat(tmp_path / "gone", sign(3))  # no reason to fail


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, None),
        (json.dumps({"reason": "deadline", "time": "2026-01-01T00:00:00Z"}), "deadline"),
        (json.dumps({"reason": "a whim"}), "requested"),
        ("", "requested"),
    ],
)
def test_the_jobs_wish_to_stop_is_read(tmp_path, text, reason):
    if text is not None:
        (tmp_path / "stop.json").write_text(text)
    assert requested_stop(tmp_path) == reason


def test_a_stack_tells_whether_its_main_thread_waits_for_other_ranks():
    other = 'Thread 0x01 (most recent call first):\n  File "/lib/threading.py", line 1 in wait\n\n'
    main = 'Current thread 0x02 (most recent call first):\n  File "{}", line 9 in f\n  File "/m.py", line 1 in main\n'
    for path, waits in {
        "/site-packages/torch/distributed/distributed_c10d.py": True,
        "/site-packages/torch/autograd/graph.py": True,
        rendezvous.__file__: True,
        "/home/me/model.py": False,
        "/home/me/torch/data.py": False,
    }.items():
        assert waits_for_peers(other + main.format(path)) is waits
    assert waits_for_peers("") is None


@pytest.mark.parametrize("others", [0, 3, 120])
def test_stacks_are_whole_with_the_main_thread_or_at_the_limit_of_faulthandler(tmp_path, others):
    """A busy machine writes them in pieces: what was written of the others' is not the end."""
    is_over = threading.Event()
    threads = [threading.Thread(target=is_over.wait) for _ in range(others)]
    for thread in threads:
        thread.start()
    with (tmp_path / "stack").open("wb") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    is_over.set()
    stack = (tmp_path / "stack").read_bytes()
    assert has_main_thread(stack)
    assert not has_main_thread(stack[: stack.rindex(b"Current" if others < 100 else b"...")])


def test_a_watchdog_imports_nothing_heavy():
    code = (
        "import sys, shardline.supervision.watchdog.__main__;"
        "print(sorted({'torch', 'numpy', 'yaml', 'pytorch_lightning', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_task_survives_the_command_line():
    task = Task(
        rank=1, num_ranks=2, pid=7, work="store/a b", logs="logs", first_host="", port=0, dump_signal=45,
        hang_timeout_s=600.0, startup_timeout_s=960.0,
    )  # fmt: skip
    assert Task(**json.loads(json.dumps(asdict(task)))) == task
