"""The cluster of the tests is a real one, and leaves nothing behind."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.machines import Machine, kill_group
from tests.support.processes import wait_until
from tests.support.rotation import rotating
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
