"""A launcher that does not end after a hang, and what it started outside of its process group, are ended."""

import subprocess

from shardline.supervision import supervisor
from shardline.supervision.failure_records import report_failure

# As Open MPI does: a remote shell in a group of its own holds the launcher's output open.
LAUNCHER = "set -m; sleep 600 & wait"


def test_a_stuck_launcher_is_ended_after_a_hang_with_all_of_its_session(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.01)
    monkeypatch.setattr(supervisor, "_STUCK_S", 0.01)
    command = ["bash", "-c", LAUNCHER]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    with supervisor.end_stuck_launcher(tmp_path, launcher.pid):
        report_failure(tmp_path, "rank 1 hangs", rank=1, log=None, kind="hung", code=137)
        launcher.communicate(timeout=60)  # its output is closed by all
    assert launcher.returncode == -9
