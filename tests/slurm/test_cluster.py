"""The cluster of the tests is a real one, and leaves nothing behind."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.machines import Machine, MachineError, kill_group, require_programs
from tests.support.processes import wait_until
from tests.support.rotation import rotating
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.settings import node_address
from tests.support.workspace import REPOSITORY

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    server.accept()
"""
CLIENT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
"""


def reaches(machine: Machine, address: str, port: str) -> bool:
    """Say whether a machine can connect."""
    answer = machine.run(sys.executable, "-c", CLIENT, address, port, check=False)
    return answer.returncode == 0


def srun(slurm: SlurmCluster, *words: str) -> list[str]:
    """Run a step and return its lines, sorted; `--quiet`: without "queued and waiting"."""
    return sorted(slurm.run("srun", "--quiet", *words).stdout.splitlines())


def states(slurm: SlurmCluster, *jobs: str) -> list[str]:
    """Return the states of jobs."""
    return [slurm.job_state(job) for job in jobs]


def restarts(slurm: SlurmCluster, job: str) -> int:
    """Return how often Slurm has requeued a job."""
    words = slurm.scontrol("--oneliner", "show", "job", job).split()
    return int(dict(word.split("=", 1) for word in words if "=" in word)["Restarts"])


def test_machines_have_their_own_names_and_addresses(slurm):
    assert slurm.run("hostname").stdout == "login\n"
    for name in slurm.hosts:
        node = slurm.node(name)
        assert node.run("hostname").stdout == f"{name}\n"
        assert node_address(name) in node.run("ip", "-brief", "address").stdout


@pytest.mark.rotating
@pytest.mark.parametrize(("address", "open_to_others"), [("127.0.0.1", False), ("n1", True)])
def test_nodes_share_no_loopback(slurm, address, open_to_others):
    server = slurm.node("n1").popen(sys.executable, "-c", SERVER, address)
    port = server.stdout.readline().strip()
    assert reaches(slurm.node("n1"), address, port)
    assert reaches(slurm.node("n2"), address, port) == open_to_others
    assert reaches(slurm.login, address, port) == open_to_others
    kill_group(server, signal.SIGKILL)
    server.communicate()


@pytest.mark.rotating
def test_nodes_share_no_processes_and_no_shared_memory(slurm):
    slurm.node("n1").run("touch", "/dev/shm/segment")
    assert slurm.node("n2").run("ls", "/dev/shm").stdout == ""
    commands = slurm.node("n2").run("ps", "-eo", "args").stdout
    assert "slurmd -D -N n2" in commands
    assert "slurmd -D -N n1" not in commands
    assert "slurmctld" not in commands


@pytest.mark.parametrize(("cluster", "nodes"), [("slurm", 2), *rotating(("slurm4", 4))])
def test_a_step_runs_on_every_node(cluster, nodes, request):
    slurm = request.getfixturevalue(cluster)
    lines = srun(slurm, f"--nodes={nodes}", "--ntasks-per-node=2", "hostname")
    assert lines == sorted(slurm.hosts * 2)


@pytest.mark.rotating
def test_gpus_are_bound(slurm):
    show = ["printenv", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"]
    lines = srun(slurm, "--nodes=2", "--ntasks=2", "--gres=gpu:2", "--label", *show)
    assert lines == ["0: 0,1", "0: 0,1", "0: n1", "1: 0,1", "1: 0,1", "1: n2"]
    one_each = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--gpus-per-task=1"]
    assert srun(slurm, *one_each, "printenv", "CUDA_VISIBLE_DEVICES") == ["0", "0", "1", "1"]
    with pytest.raises(MachineError, match="Requested node configuration is not available"):
        srun(slurm, "--gres=gpu:3", "true")


@pytest.mark.rotating
def test_a_job_of_the_higher_partition_requeues_one_of_main(slurm):
    low = slurm.sbatch("sleep 1000", "--nodes=2", "--ntasks=4")
    slurm.wait_until(lambda: slurm.job_state(low) == "RUNNING", "the first job")
    high = slurm.sbatch("sleep 1000", "--partition=high", "--nodes=2", "--ntasks=4")
    slurm.wait_until(lambda: states(slurm, low, high) == ["PENDING", "RUNNING"], "preemption")
    slurm.run("scancel", high)
    slurm.wait_until(lambda: slurm.job_state(low) == "RUNNING", "the first job again")
    assert restarts(slurm, low) == 1
    slurm.run("scancel", low)
    slurm.wait_for_nodes("idle")


@pytest.mark.rotating
def test_a_job_outlives_a_restart_of_the_controller(slurm, tmp_path):
    finish = tmp_path / "finish"
    job = slurm.sbatch(f"until test -e {finish}; do sleep 0.1; done", "--nodes=2")
    slurm.wait_until(lambda: slurm.job_state(job) == "RUNNING", "the job")
    slurm.restart_controller()
    assert slurm.job_state(job) == "RUNNING"
    finish.touch()
    slurm.wait_until(lambda: slurm.job_state(job) == "COMPLETED", "the job's end")
    assert restarts(slurm, job) == 0
    slurm.wait_for_nodes("idle")


@pytest.mark.rotating
def test_a_node_dies_and_returns(start_slurm):
    slurm = start_slurm(changes={"SlurmdTimeout": "5"})
    job = slurm.sbatch("sleep 1000", "--nodes=2", "--no-requeue")
    slurm.wait_until(lambda: slurm.job_state(job) == "RUNNING", "the job")
    slurm.kill_node("n2")
    slurm.wait_for_nodes("down", "n2")
    slurm.wait_until(lambda: slurm.job_state(job) == "NODE_FAIL", "the job's end")
    slurm.start_node("n2")
    slurm.wait_for_nodes("idle")
    assert srun(slurm, "--nodes=2", "hostname") == ["n1", "n2"]


@pytest.mark.rotating
def test_a_program_gets_signals_and_limits(slurm, tmp_path):
    marker = tmp_path / "ready"
    script = f"trap 'exit 7' INT; touch {marker}; while :; do sleep 0.1; done"
    process = slurm.login.popen("bash", "-c", script)
    wait_until(marker.exists, process)
    kill_group(process, signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 7
    with pytest.raises(subprocess.TimeoutExpired):
        slurm.run("sleep", "1000", timeout=0.5)
    assert "sleep 1000" not in slurm.run("ps", "-eo", "args").stdout


def processes_with(mark: str) -> list[str]:
    """Return the command lines of this computer's processes whose environment has a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, *rotating(signal.SIGTERM)])
def test_nothing_outlives_the_process_that_made_the_cluster(number, tmp_path):
    mark, ready = uuid.uuid4().hex, tmp_path / "ready"
    script = f"touch {ready}; srun --nodes=2 sleep 1000"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.slurm.cluster", "--", "bash", "-c", script],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "MARK": mark, "TMPDIR": str(tmp_path)},
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: sum("sleep 1000" in line for line in processes_with(mark)) >= 3, process)
    assert any("slurmctld" in line for line in processes_with(mark))
    process.send_signal(number)
    process.wait(20)
    # The kernel ends the namespaces after the process; nothing says when it is done.
    watch = subprocess.Popen(["sleep", "20"], text=True)
    wait_until(lambda: processes_with(mark) == [], watch)
    watch.kill()
    watch.wait()
    # Files are all that a killed process cannot take along.
    assert bool(list(tmp_path.glob("slurm-*"))) == (number == signal.SIGKILL)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert "switch0" not in Path("/proc/net/dev").read_text()


@pytest.mark.rotating
def test_accounting_remembers_who_cancelled(start_slurm):
    slurm = start_slurm(nodes=1, accounting=True)
    job = slurm.sbatch("sleep 1000")
    slurm.run("scancel", job)
    sacct = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=State")
    slurm.wait_until(
        lambda: slurm.run(*sacct, f"--jobs={job}").stdout == "CANCELLED by 0\n", "accounting"
    )


@pytest.mark.rotating
def test_a_command_by_hand_keeps_its_exit_code_and_leaves_nothing(tmp_path):
    mark = uuid.uuid4().hex
    command = [
        sys.executable,
        "-m",
        "tests.support.slurm.cluster",
        "--nodes",
        "1",
        "--",
        "sh",
        "-c",
    ]
    ended = subprocess.run(
        [*command, "sinfo --noheader --partition=main --format=%N; exit 3"],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "MARK": mark, "TMPDIR": str(tmp_path)},
        text=True,
        stdout=subprocess.PIPE,
        check=False,
        timeout=600,
    )
    assert (ended.stdout.split(), ended.returncode) == (["n1"], 3)
    assert processes_with(mark) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rotating
def test_a_daemon_that_fails_is_named_with_its_log(tmp_path):
    cluster = SlurmCluster(tmp_path / "slurm", changes={"SchedulerType": "sched/no_such"})
    with pytest.raises(MachineError, match=r"slurmctld-login ended(.|\n)*sched/no_such"):
        cluster.__enter__()


def test_a_missing_program_is_named_with_its_remedy():
    with pytest.raises(MachineError, match="^no-such-program not found; run: apt-get install x$"):
        require_programs(["sh", "no-such-program"], install="apt-get install x")
