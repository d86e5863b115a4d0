"""Ranks on a list of hosts without a scheduler: two machines, each with its own network, over real ssh."""

import json
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.ledger import read_ledger
from tests.support.lan import HOSTS, Lan
from tests.support.machines import Machine
from tests.support.processes import wait_until
from tests.support.rotation import rotating
from tests.support.workspace import REPOSITORY, TINY_CONFIG, Workspace

LOCAL = REPOSITORY / "profiles" / "local"
GUIDE = REPOSITORY / "docs/how-to/run-on-hosts.md"
LAUNCHERS = ["none", "torchrun", "mpirun"]
ONE_ALWAYS = ["none", *rotating("torchrun", "mpirun")]


# A whole training, as a user starts it


@dataclass(frozen=True)
class Training:
    """What a training left."""

    path: Path

    def read(self, pattern: str) -> str:
        return Workspace(self.path).the(pattern).read_text()

    @property
    def samples(self) -> dict[int, list[int]]:
        """The row ids of each step."""
        return read_ledger(Workspace(self.path).the("store/work/*/ledger"))

    @property
    def losses(self) -> list[tuple[int, float]]:
        records = map(json.loads, self.read("results/runs/*/metrics.jsonl").splitlines())
        return [(r["step"], r["train_loss"]) for r in records if "train_loss" in r]

    @property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        world = json.loads(self.read("results/runs/*/provenance.json"))["world"]
        return [rank["host"] for rank in world["ranks"]]


def train(
    machine: Machine, path: Path, profile: Path, geometry: tuple[int, int], **runtime: Any
) -> Training:
    """Train the tiny project by `snakemake --profile` on a machine."""
    nodes, devices = geometry
    row = {"name": "run", "dataset": "table", "model": "mlp", "trainer.max_epochs": 2}
    runtime = {"oversubscribe": True, "ledger": True, "log_every_steps": 1, **runtime}
    workspace = Workspace(path)
    workspace.configure(
        {**TINY_CONFIG, "runtime": runtime}, [{**row, "nodes": nodes, "devices": devices}]
    )
    command = [
        str(profile) if word == str(LOCAL) else word
        for word in workspace.command("--until", "train", "--cores", "2")
    ]
    done = machine.run(*command, cwd=path, timeout=600, check=False)
    logs = "".join(log.read_text() for log in path.glob("logs/train/*.log"))
    assert done.returncode == 0, done.stdout + logs
    return Training(path)


def documented_profile(folder: Path, launcher: str) -> Path:
    """Write the guide's profile for these hosts, with one thread for each rank."""
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    text = text.replace("node-a", HOSTS[0]).replace("node-b", HOSTS[1])
    profile = yaml.safe_load(text)
    profile["config"]["runtime"] |= {"launcher": launcher, "threads_per_rank": 1}
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return folder


@pytest.fixture(scope="module")
def on_one_machine(switched_on: Lan, tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("one")
    return train(switched_on["host-a"], folder, LOCAL, (1, 4), threads_per_rank=1)


@pytest.mark.parametrize("launcher", ONE_ALWAYS)
def test_two_hosts_give_what_one_machine_gives(lan, on_one_machine, tmp_path, launcher):
    left_out = shutil.ignore_patterns("runs", "latest", "reports", "report", "work", "logs")
    path = tmp_path / "project"
    shutil.copytree(on_one_machine.path, path, ignore=left_out, symlinks=True)
    trained = train(lan["host-a"], path, documented_profile(tmp_path, launcher), (2, 2))
    assert trained.hosts == ["host-a", "host-a", "host-b", "host-b"]
    assert trained.samples == on_one_machine.samples
    assert trained.losses == on_one_machine.losses


# What goes wrong, with ranks that do nothing but wait or fail

JOB = """
import json, os, sys
from pathlib import Path
from shardline.config.resolved import ActualGeometry
from shardline.config.settings.config import Runtime
from shardline.pipeline.job_frame import job
from shardline.launch.host_commands import check_machines
from shardline.launch.start import prepare_start
from shardline.supervision.supervisor import run_ranks
work, runtime = Path(sys.argv[1]), Runtime(**json.loads(sys.argv[2]))
(work / "job-pid").write_text(str(os.getpid()))
with job(str(work / "log")) as log:
    start = prepare_start(
        [str(work / "rank.py"), str(work)], run_id="test", runtime=runtime, env=os.environ,
        geometry=ActualGeometry(nodes=2, devices=2), accelerator="cpu", num_cpus=2,
    )
    check_machines(start.plan)
    run_ranks(start.command, env=start.env, log=log, work=work, title="t", ranks=4)
"""
RANK = """
import os, sys, time
from pathlib import Path
from shardline.supervision.failure_records import report_failure
from shardline.core.process import die_with_parent
from shardline.launch.resolve import resolve_world
die_with_parent()
work, rank = Path(sys.argv[1]), resolve_world(os.environ).rank
(work / f"rank-{rank}").touch()
if rank == 3 and (work / "fail").exists():
    while len(list(work.glob("rank-?"))) < 4:
        time.sleep(0.01)
    report_failure(work, "the culprit", rank=rank, log=work / "rank-3.log")
    sys.exit(3)
end = time.monotonic() + 600
while time.monotonic() < end:
    if (work / "hang").exists():  # as a watchdog does
        report_failure(work, "rank 3 hangs", rank=rank, log=None, kind="hung", code=137)
        os.kill(os.getpid(), 9)
    time.sleep(0.1)
"""


class Job:
    """A job on host-a with four ranks that wait, or of which the last fails."""

    def __init__(self, machine: Machine, work: Path, cwd: Path | None = None, **runtime: Any):
        (work / "rank.py").write_text(RANK)
        runtime = {
            "hosts": list(HOSTS), "interface": "eth0", "remote_shell": "ssh -o BatchMode=yes",
            "threads_per_rank": 1, "variables": {}, "pass_env": [], "launcher_args": [],
            "rendezvous_timeout_s": 60, "stop_grace_s": 25, **runtime,
        }  # fmt: skip
        self.machine, self.work = machine, work
        self.process = machine.popen(
            sys.executable, "-c", JOB, str(work), json.dumps(runtime), cwd=cwd or work
        )

    def wait_for_ranks(self) -> None:
        wait_until(lambda: len(list(self.work.glob("rank-?"))) == 4, self.process)

    def kill(self, number: signal.Signals) -> None:
        self.machine.run("kill", f"-{number.name[3:]}", (self.work / "job-pid").read_text())

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code, what the user saw and the log."""
        said, _ = self.process.communicate(timeout=300)
        return self.process.returncode, said, (self.work / "log").read_text()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_fails_on_the_other_host_is_what_one_sees(lan, tmp_path, launcher):
    (tmp_path / "fail").touch()
    code, said, _ = Job(lan["host-a"], tmp_path, launcher=launcher).end()
    assert code == 1
    place = f"rank 3 on host-b, its log is {tmp_path}/rank-3.log"
    assert said.strip() == f"{place}: the culprit"


@pytest.mark.parametrize("launcher", ONE_ALWAYS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_nothing_outlives_the_job(lan, tmp_path, launcher, number):
    job = Job(lan["host-a"], tmp_path, launcher=launcher)
    job.wait_for_ranks()
    job.kill(number)
    _, said, _ = job.end()
    if number == signal.SIGINT:
        assert "interrupted" in said


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            ["host-a", "host-off"],
            "runtime.hosts: host-off does not answer to host-a: ssh: connect to host host-off port 22: "
            "No route to host; fix the name, or make `ssh -o BatchMode=yes host-off true` work "
            "without a prompt",
        ),
        (
            ["host-a", "host-z"],
            "runtime.hosts: host-z does not answer to host-a: ssh: Could not resolve hostname host-z",
        ),
        (
            ["host-z", "host-a"],
            "runtime.hosts begins with host-z, which host-a cannot resolve",
        ),
        (
            ["host-b", "host-a"],
            "runtime.hosts begins with host-b, which is not this machine (host-a); put host-a first, or "
            "start the pipeline on host-b",
        ),
    ],
    ids=["off", "unknown", "unknown-first", "not-here"],
)  # fmt: skip
def test_a_host_that_cannot_be_used_is_named(lan, tmp_path, hosts, message):
    code, said, _ = Job(lan["host-a"], tmp_path, launcher="mpirun", hosts=hosts).end()
    assert code != 0
    assert message in said


def test_a_host_without_the_projects_folder_is_named(lan, tmp_path):
    lan["host-a"].run("mkdir", "-p", "/run/here")
    job = Job(lan["host-a"], tmp_path, cwd=Path("/run/here"), launcher="none")
    _, said, _ = job.end()
    assert "runtime.hosts: host-b cannot start Python for the ranks: " in said
    assert f"; make /run/here and {sys.executable} the same on every host" in said


def test_a_host_that_is_cut_off_is_named_and_ends_all(lan, tmp_path):
    shell = "ssh -o BatchMode=yes -o ServerAliveInterval=1"
    job = Job(lan["host-a"], tmp_path, launcher="none", remote_shell=shell)
    job.wait_for_ranks()
    lan["switch"].run("ip", "link", "set", "host-b", "down")
    try:
        code, said, log = job.end()
    finally:
        lan["switch"].run("ip", "link", "set", "host-b", "up")
    assert code != 0
    assert "lost the connection to host-b; check that it is up" in said + log


@pytest.mark.parametrize("launcher", ONE_ALWAYS)
def test_every_launcher_ends_after_a_hang_though_a_host_is_cut_off(lan, tmp_path, launcher):
    job = Job(lan["host-a"], tmp_path, launcher=launcher)
    job.wait_for_ranks()
    lan["switch"].run("ip", "link", "set", "host-b", "down")
    try:
        (tmp_path / "hang").touch()
        code, said, _ = job.end()
    finally:
        lan["switch"].run("ip", "link", "set", "host-b", "up")
    assert code != 0
    assert said.strip() == "rank 3 hangs"
