"""A real Slurm on one computer, for tests and by hand.

    python -m tests.support.slurm.cluster --nodes 2 -- srun --nodes=2 hostname

Every machine (`login`, `n1`, `n2`, ...) has its own hostname, network, processes, munge and
shared memory; the files are shared. Nothing is written outside the cluster's folder, nothing
leaves the computer, and nothing outlives the process that made the cluster.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.daemons import Daemons
from tests.support.machines import (
    Machine,
    MachineError,
    login_environment,
    plug_in,
    require_programs,
)
from tests.support.slurm import settings

INSTALL = (
    "apt-get install -y --no-install-recommends "
    "slurm-wlm slurmctld slurmd slurm-client munge openmpi-bin iproute2 procps"
)
PROGRAMS = ["unshare", "nsenter", "ip", "munged", "slurmctld", "slurmd", "srun", "mpirun"]
ACCOUNTING_INSTALL = "apt-get install -y --no-install-recommends slurmdbd mariadb-server"
ACCOUNTING_PROGRAMS = ["slurmdbd", "mariadbd", "mariadb-install-db"]
START_S = 180.0


class SlurmCluster:
    """A context manager that runs slurmctld on `login` and one slurmd on every node."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 2,
        cpus: int = 2,
        gpus: int = 2,
        accounting: bool = False,
        changes: Mapping[str, str] | None = None,
    ) -> None:
        """Write the cluster's files.

        Args:
            folder: Empty folder for configuration, state and logs.
            nodes: Number of nodes, named n1, n2, ...
            cpus: CPUs per node; they may exceed this computer's.
            gpus: GPUs per node: device files that schedule and bind but compute nothing.
            accounting: Also run slurmdbd with a database, so that sacct answers.
            changes: slurm.conf keys that differ, such as `{"PreemptMode": "CANCEL"}`.
        """
        self.folder = folder.resolve()
        self.hosts = settings.node_names(nodes)
        self._gpus = gpus
        self._accounting = accounting
        self._machines: dict[str, Machine] = {}
        self._daemons = Daemons(self.folder / "log")
        self._ending = ExitStack()
        for name in ("slurm", "log", "state", *(f"spool/{host}" for host in self.hosts)):
            (self.folder / name).mkdir(parents=True)
        changes = {**(settings.ACCOUNTING if accounting else {}), **(changes or {})}
        conf = settings.slurm_conf(
            self.hosts, cpus=cpus, gpus=gpus, folder=self.folder, changes=changes
        )
        self._write("slurm/slurm.conf", conf)
        self._write("slurm/gres.conf", settings.gres_conf(gpus))
        self._write("slurm/cgroup.conf", "CgroupPlugin=autodetect\n")
        self._write("slurm/slurmdbd.conf", settings.SLURMDBD_CONF, mode=0o600)
        self._write("hosts", settings.hosts_file(self.hosts))
        self._write("munge.key", os.urandom(64).hex(), mode=0o600)

    def __enter__(self) -> Self:
        """Start every machine and daemon and wait until all nodes are idle.

        Raises:
            MachineError: a program is missing, or a daemon failed; the message ends with its log.
        """
        require_programs(PROGRAMS, install=INSTALL)
        if self._accounting:
            require_programs(ACCOUNTING_PROGRAMS, install=ACCOUNTING_INSTALL)
        with ExitStack() as ending:
            self._ending = ending
            login = self._switch_on("login")
            for words in (
                ("link", "add", "switch0", "type", "bridge"),
                ("address", "add", self._address("login"), "dev", "switch0"),
                ("link", "set", "switch0", "up"),
            ):
                login.run("ip", *words)
            if self._accounting:
                self._start_accounting()
            self.start_controller()
            for host in self.hosts:
                self.start_node(host, wait=False)
            self.wait_for_nodes("idle")
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    # Use

    @property
    def env(self) -> dict[str, str]:
        """The environment of a user on the login machine."""
        return login_environment()

    @property
    def login(self) -> Machine:
        """The machine on which users submit."""
        return self._machines["login"]

    def node(self, name: str) -> Machine:
        """Return a node that is up."""
        return self._machines[name]

    def run(
        self,
        *program: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 180,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the login machine, as `Machine.run` does."""
        return self.login.run(*program, cwd=cwd, env=env, timeout=timeout, check=check)

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a shell script and return the job's id; its output is dropped."""
        words = ("--parsable", "--output=/dev/null", *options, f"--wrap={script}")
        return self.run("sbatch", *words).stdout.strip()

    def scontrol(self, *words: str) -> str:
        """Run scontrol and return what it says."""
        return self.run("scontrol", *words).stdout

    def job_state(self, job_id: str) -> str:
        """Return a job's state in squeue's words, such as `RUNNING`."""
        words = ("--noheader", "--states=all", "--format=%T", f"--jobs={job_id}")
        return self.run("squeue", *words).stdout.strip()

    def node_states(self) -> dict[str, str]:
        """Return each node's state in sinfo's words, such as `idle` or `down*`."""
        words = ("--noheader", "--Node", "--partition=main", "--format=%N %T")
        answer = self.run("sinfo", *words, check=False)
        # While the controller is away the answer is an error message.
        lines = answer.stdout.splitlines() if answer.returncode == 0 else []
        return dict(line.split(maxsplit=1) for line in lines)

    def wait_for_nodes(self, state: str, *names: str, timeout: float = START_S) -> None:
        """Wait until nodes (all, if none is named) are in a state such as `idle` or `down`.

        Raises:
            MachineError: a daemon ended, or the time is over; the message ends with the logs.
        """

        def reached() -> bool:
            states = self.node_states()
            return all(states.get(name, "").rstrip("*") == state for name in names or self.hosts)

        self.wait_until(reached, f"{', '.join(names or self.hosts)} {state}", timeout=timeout)

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout: float = 180) -> None:
        """Wait until something holds, as `Daemons.wait_until` does."""
        self._daemons.wait_until(condition, what, timeout=timeout)

    def logs(self) -> str:
        """Return the last lines of every daemon's log."""
        return self._daemons.logs()

    # Accidents

    def kill_node(self, name: str) -> None:
        """Cut a node's network and power: nobody hears another word from it."""
        # The network first: a dying process would say goodbye to its peers.
        self.login.run("ip", "link", "delete", name)
        node = self._machines.pop(name)
        node.switch_off()
        self._daemons.forget(node)

    def start_node(self, name: str, *, wait: bool = True) -> None:
        """Start a node that is off; its slurmd registers with the controller."""
        node = self._switch_on(name)
        plug_in(self.login, node, address=self._address(name))
        # The same after each start, as on a real network card: the other nodes remember it.
        hardware_address = f"02:00:00:00:00:{self.hosts.index(name) + 1:02x}"
        node.run("ip", "link", "set", "eth0", "address", hardware_address)
        for index in range(self._gpus):
            node.run("mknod", f"/run/gpu{index}", "c", "1", "3")
        self._daemons.start(node, "slurmd", "-D", "-N", name)
        if wait:
            self.wait_for_nodes("idle", name)

    def stop_controller(self) -> None:
        """End slurmctld in the orderly way; running jobs do not notice."""
        self._daemons.stop("slurmctld-login")

    def start_controller(self) -> None:
        """Start slurmctld with the state that an earlier one saved."""
        self._daemons.start(self.login, "slurmctld", "-D")

    def _write(self, name: str, text: str, *, mode: int = 0o644) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(mode)

    def _address(self, name: str) -> str:
        address = settings.LOGIN_ADDRESS if name == "login" else settings.node_address(name)
        return f"{address}/{settings.NETWORK_BITS}"

    def _switch_on(self, name: str) -> Machine:
        """Start a machine with its munge."""
        # The standard paths, as on a site: jobs need no SLURM_CONF, which the plugin would drop.
        bindings = {self.folder / "hosts": "/etc/hosts", self.folder / "slurm": "/etc/slurm"}
        machine = Machine(name, bindings)
        self._ending.callback(self._daemons.forget, machine)
        self._ending.enter_context(machine)
        self._machines[name] = machine
        machine.run("mkdir", "/run/munge")
        paths = [f"--key-file={self.folder / 'munge.key'}", "--seed-file=/run/munge/seed"]
        self._daemons.start(machine, "munged", "--foreground", "--force", *paths)
        socket = Path(f"/proc/{machine.pid}/root/run/munge/munge.socket.2")
        self.wait_until(socket.exists, f"munged on {name}")
        return machine

    def _start_accounting(self) -> None:
        """Start a private database and slurmdbd on the login machine."""
        common = ("--no-defaults", "--user=root", f"--datadir={self.folder / 'database'}")
        self.login.run("mariadb-install-db", *common, "--auth-root-authentication-method=normal")
        self.login.run("mkdir", "/run/mysqld")
        self._daemons.start(
            self.login, "mariadbd", *common, "--skip-networking",
            "--socket=/run/mysqld/mysqld.sock", "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        socket = Path(f"/proc/{self.login.pid}/root/run/mysqld/mysqld.sock")
        self.wait_until(socket.exists, "the database")
        self._daemons.start(self.login, "slurmdbd", "-D")
        add = ("sacctmgr", "--immediate", "add", "cluster", settings.COMMON["ClusterName"])
        self.wait_until(lambda: self.run(*add, check=False).returncode == 0, "slurmdbd")


def main() -> int:
    """Run a command on the login machine of a new cluster and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.slurm.cluster", description=__doc__
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=2, help="per node")
    parser.add_argument("--gpus", type=int, default=2, help="per node")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and a database")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="slurm.conf"
    )
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    changes = dict(change.split("=", 1) for change in options.set)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        SlurmCluster(
            Path(folder),
            nodes=options.nodes,
            cpus=options.cpus,
            gpus=options.gpus,
            accounting=options.accounting,
            changes=changes,
        ) as cluster,
    ):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's
        return subprocess.run(
            cluster.login.command(*options.program), env=cluster.env, check=False
        ).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MachineError as error:
        sys.exit(str(error))
