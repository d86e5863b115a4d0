"""A network that drops, and a host that vanishes, in a training on two hosts, whatever starts the ranks."""

import json
import sys
import time
from contextlib import contextmanager

import pytest

from shardline.checkpoints.folder import last_step
from tests.support.lan import HOSTS
from tests.support.processes import wait_until
from tests.support.rotation import rotating

TIMEOUT_S = 8
JOB = """
import json, os, sys
from pathlib import Path
from shardline.config.resolved import ActualGeometry
from shardline.config.settings.config import Runtime
from shardline.pipeline.job_frame import job
from shardline.launch.start import prepare_start
from shardline.supervision.supervisor import run_ranks
work, program, runtime = Path(sys.argv[1]), json.loads(sys.argv[2]), Runtime(**json.loads(sys.argv[3]))
work.mkdir(parents=True, exist_ok=True)
with job(str(work / "log")) as log:
    start = prepare_start(
        program, run_id="test", runtime=runtime, env=os.environ, num_cpus=2,
        geometry=ActualGeometry(nodes=2, devices=1), accelerator="cpu",
    )
    run_ranks(start.command, env=start.env, log=log, work=work, title="t", ranks=2)
"""


# Waits in mid-training for what a test does, while a file `hold` is there.
MODEL = """
import time
from pathlib import Path

from shardline.training.models.linear import Linear


class Held(Linear):
    def training_step(self, batch, batch_idx):
        while self.global_step == 12 and Path("hold").exists():
            time.sleep(0.01)
        return super().training_step(batch, batch_idx)
"""


class Training:
    """A training with a rank on each host."""

    def __init__(self, lan, ranks, launcher, name="broken", timeout_s=TIMEOUT_S):
        self.lan, self.work = lan, ranks.root / name / "work"
        runtime = {
            "hosts": list(HOSTS), "interface": "eth0", "remote_shell": "ssh -o BatchMode=yes",
            "threads_per_rank": 1, "variables": {}, "pass_env": [], "launcher_args": [], "launcher": launcher,
            "rendezvous_timeout_s": 60, "stop_grace_s": 25,
        }  # fmt: skip
        spec = ranks.spec_file(name, hang_timeout_s=timeout_s)
        program = ["-m", "shardline.training.rank", str(spec)]
        self.process = lan["host-a"].popen(
            sys.executable, "-c", JOB, str(self.work), json.dumps(program), json.dumps(runtime),
            cwd=ranks.root,
        )  # fmt: skip

    def signs(self):
        return [
            json.loads(file.read_text()) for file in sorted(self.work.glob("watch/rank-*.json"))
        ]

    def wait_for_state(self):
        saved = self.work / "checkpoints"
        wait_until(lambda: last_step(saved) == 10 and len(self.signs()) == 2, self.process)

    def end(self):
        said, _ = self.process.communicate(timeout=600)
        return self.process.returncode, said


@pytest.fixture
def cut_off(lan, ranks):
    """Take host-b off the network for a while, and let a training that is held go on meanwhile."""

    @contextmanager
    def make():
        lan["switch"].run("ip", "link", "set", "host-b", "down")
        try:
            (ranks.root / "hold").unlink()
            yield
        finally:
            lan["switch"].run("ip", "link", "set", "host-b", "up")

    return make


@pytest.fixture
def ranks(prepare, workspace):
    """A run of two ranks on two nodes, saved at every fifth step, that is held at the 12th at first."""
    workspace.write("held.py", MODEL)
    workspace.write("hold", "")
    row = {"model": "held:Held", "trainer.max_epochs": 1, "global_batch": 4}
    return prepare(5, nodes=2, devices=1, **row)


@pytest.fixture
def goes_on(lan, ranks, record_property):
    """Run the command of a training again, hold its model against an unbroken one, and tell what was lost."""

    def check(launcher, seconds):
        started = time.monotonic()
        # on a busy machine, a rank that saves or seals is silent for longer than the timeout of the broken one
        assert Training(lan, ranks, launcher, timeout_s=600).end()[0] == 0
        broken_s = seconds + time.monotonic() - started
        started = time.monotonic()
        assert Training(lan, ranks, launcher, "whole", timeout_s=600).end()[0] == 0
        record_property("steps_lost", ranks.steps_lost("broken"))
        record_property("seconds_lost", broken_s - (time.monotonic() - started))
        assert ranks.model("broken") == ranks.model("whole")
        assert ranks.provenance("broken")["training"]["resumed_step"] > 0

    return check


@pytest.mark.fault
@pytest.mark.parametrize("launcher", rotating("none", "torchrun", "mpirun"))
def test_a_network_that_drops_is_named_and_the_same_command_goes_on(
    lan, cut_off, ranks, goes_on, launcher
):
    started = time.monotonic()
    training = Training(lan, ranks, launcher)
    training.wait_for_state()
    with cut_off():
        code, said = training.end()
    assert code != 0
    assert "rank 1 on host-b hangs at step " in said
    assert "it cannot reach the first rank's host over the network" in said
    stacks = sorted(path.name for path in (ranks.root / "broken/logs").glob("*.stack"))
    assert stacks == ["rank-0.stack", "rank-1.stack"]
    goes_on(launcher, time.monotonic() - started)


@pytest.mark.fault
@pytest.mark.rotating
def test_a_host_that_vanishes_is_named_and_the_same_command_goes_on(lan, cut_off, ranks, goes_on):
    started = time.monotonic()
    training = Training(lan, ranks, "none")
    training.wait_for_state()
    with cut_off():
        # what runs on it is ended only then, so that no connection tells the other host
        lan["host-b"].run("pkill", "-KILL", "-f", "shardline[.](training|supervision|launch)")
        code, said = training.end()
    assert code != 0
    assert "rank 1 on host-b hangs at step " in said
    assert "its host sends no heartbeat" in said
    goes_on("none", time.monotonic() - started)
