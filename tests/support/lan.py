"""Two machines on one switch, each with its own network, over real ssh."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemons import Daemons
from tests.support.machines import Machine, MachineError, plug_in, require_programs
from tests.support.needs import require

INSTALL = (
    "apt-get install -y --no-install-recommends "
    "openssh-server openssh-client openmpi-bin iproute2 procps"
)
PROGRAMS = ["unshare", "nsenter", "ip", "sshd", "ssh", "ssh-keygen", "mpirun"]
# `host-off` has an address at which nobody answers.
HOSTS = ("host-a", "host-b")
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
        """Return number and command line of what runs on the hosts, but for sshd, which changes its title."""
        listed = ["ps", "-e", "--format", "pid=,args="]
        return {
            f"{name} {line}"
            for name in HOSTS
            for line in self[name].run(*listed).stdout.splitlines()
            if not line.endswith(" ".join(listed)) and "/sshd -D" not in line
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
        lambda: switched_on.processes() <= before,
        lambda: f"nothing is left on the hosts: {switched_on.processes() - before}",
    )
