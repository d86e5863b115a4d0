"""Ranks on a list of hosts without a scheduler: two machines, each with its own network, over real ssh."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.ledger import read_ledger
from tests.conftest import REPOSITORY, TINY_CONFIG, Workspace, require, wait_until
from tests.slurm.daemons import Daemons
from tests.slurm.machines import Machine, MachineError, plug_in, require_programs

INSTALL = (
    "apt-get install -y --no-install-recommends "
    "openssh-server openssh-client openmpi-bin iproute2 procps"
)
PROGRAMS = ["unshare", "nsenter", "ip", "sshd", "ssh", "ssh-keygen", "mpirun"]
# `host-off` has an address at which nobody answers.
LOCAL = REPOSITORY / "profiles" / "local"
GUIDE = REPOSITORY / "docs" / "hosts.md"
HOSTS = ("host-a", "host-b")
LAUNCHERS = ["none", "torchrun", "mpirun"]
ADDRESSES = {
    "switch": "10.78.0.254",
    "host-a": "10.78.0.1",
    "host-b": "10.78.0.2",
    "host-off": "10.78.0.9",
}
SSHD_CONFIG = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PidFile none
"""
SSH_CONFIG = """
IdentityFile {folder}/key
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
"""


class Lan:
    """Machines `host-a` and `host-b` on one switch; root of each may enter the other by ssh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._machines: dict[str, Machine] = {}
        self._ending = ExitStack()
        self.etc = folder / "etc"
        (self.etc / "ssh").mkdir(parents=True)
        (folder / "log").mkdir()
        self._daemons = Daemons(folder / "log")

    def __enter__(self) -> "Lan":
        require_programs(PROGRAMS, install=INSTALL)
        self._write_etc()
        with ExitStack() as ending:
            self._ending = ending
            switch = self._switch_on("switch")
            for words in (
                ("link", "add", "switch0", "type", "bridge"),
                ("link", "set", "switch0", "up"),
            ):
                switch.run("ip", *words)
            for name in HOSTS:
                machine = self._switch_on(name)
                plug_in(switch, machine, address=f"{ADDRESSES[name]}/24")
                machine.run("mkdir", "/run/sshd")
                sshd = machine.run("sh", "-c", "command -v sshd").stdout.strip()
                self._daemons.start(machine, sshd, "-D", "-e")
            self.wait_until(
                lambda: all(self._is_open(name) for name in HOSTS),
                lambda: f"sshd answers; the logs say\n{self._daemons.logs()}",
            )
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def wait_until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Ask again and again until something holds, for a minute."""
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"not within a minute: {what()}"
            time.sleep(0.05)

    def _is_open(self, name: str) -> bool:
        return (
            self["host-a"].run("ssh", "-o", "BatchMode=yes", name, "true", check=False).returncode
            == 0
        )

    def _write_etc(self) -> None:
        lines = [f"{address} {name}\n" for name, address in ADDRESSES.items()]
        (self.etc / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
        users = [f"root:x:0:0::{self.folder}:/bin/bash", "sshd:x:100:65534::/run/sshd:/bin/false"]
        (self.etc / "passwd").write_text("\n".join(users) + "\n")
        (self.etc / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        ssh = self.etc / "ssh"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / "key")], check=True
        )
        key = (ssh / "key.pub").read_text()
        (ssh / "known_hosts").write_text("".join(f"{name} {key}" for name in ADDRESSES))
        (ssh / "sshd_config").write_text(SSHD_CONFIG.format(folder=ssh))
        (ssh / "ssh_config").write_text(SSH_CONFIG.format(folder=ssh))

    def _switch_on(self, name: str) -> Machine:
        names = ("hosts", "passwd", "shadow", "ssh")
        machine = Machine(name, {self.etc / part: f"/etc/{part}" for part in names})
        self._ending.callback(self._daemons.forget, machine)
        self._ending.enter_context(machine)
        self._machines[name] = machine
        return machine

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def processes(self) -> set[str]:
        """Return number and command line of what runs on the hosts."""
        listed = ["ps", "-e", "--format", "pid=,args="]
        return {
            f"{name} {line}"
            for name in HOSTS
            for line in self[name].run(*listed).stdout.splitlines()
            if not line.endswith(" ".join(listed))
        }


@pytest.fixture(scope="module")
def switched_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    try:
        with Lan(tmp_path_factory.mktemp("lan")) as lan:
            yield lan
    except MachineError as error:
        require(False, str(error))


@pytest.fixture
def lan(switched_on: Lan) -> Iterator[Lan]:
    """Two hosts, on which a test leaves no process."""
    before = switched_on.processes()
    yield switched_on
    switched_on.wait_until(
        lambda: switched_on.processes() == before,
        lambda: f"nothing is left on the hosts: {switched_on.processes() - before}",
    )


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
    """Write the profile of docs/hosts.md for these hosts, with one thread for each rank."""
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


@pytest.mark.parametrize("launcher", LAUNCHERS)
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
from shardline.jobs import job
from shardline.launch.remote import check_machines
from shardline.launch.start import prepare_start
from shardline.supervise import run_ranks
work, runtime = Path(sys.argv[1]), json.loads(sys.argv[2])
(work / "job-pid").write_text(str(os.getpid()))
with job(str(work / "log")) as log:
    start = prepare_start(
        [str(work / "rank.py"), str(work)], run_id="test", runtime=runtime, env=os.environ,
        settings={"nodes": 2, "devices": 2, "accelerator": "cpu"}, num_cpus=2,
    )
    check_machines(start.plan)
    run_ranks(start.command, env=start.env, log=log, work=work, title="t", ranks=4)
"""
RANK = """
import os, sys, time
from pathlib import Path
from shardline.launch.failures import report_failure
from shardline.launch.process import die_with_parent
from shardline.launch.resolve import resolve_world
die_with_parent()
work, rank = Path(sys.argv[1]), resolve_world(os.environ).rank
(work / f"rank-{rank}").touch()
if rank == 3 and (work / "fail").exists():
    while len(list(work.glob("rank-?"))) < 4:
        time.sleep(0.01)
    report_failure(work, "the culprit", rank=rank, log=work / "rank-3.log")
    sys.exit(3)
time.sleep(600)
"""


class Job:
    """A job on host-a with four ranks that wait, or of which the last fails."""

    def __init__(self, machine: Machine, work: Path, cwd: Path | None = None, **runtime: Any):
        (work / "rank.py").write_text(RANK)
        runtime = {
            "hosts": list(HOSTS), "interface": "eth0", "remote_shell": "ssh -o BatchMode=yes",
            "threads_per_rank": 1, "variables": {}, "launcher_args": [],
            "rendezvous_timeout_s": 60, **runtime,
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


@pytest.mark.parametrize("launcher", LAUNCHERS)
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
            "No route to host; mend the name, or see that `ssh -o BatchMode=yes host-off true` works and "
            "asks for nothing",
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
    assert "runtime.hosts: host-b does not start Python for the ranks: " in said
    assert f"; /run/here and {sys.executable} must be the same on every host" in said


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
    assert "the connection to host-b broke off; see whether it is up" in said + log
