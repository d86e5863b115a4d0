"""Machines made of namespaces: each has its own hostname, network, processes and shared memory."""

import ctypes
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, TypeVar

Result = TypeVar("Result")

# A machine's first process: it makes the machine, says so, and then waits on a pipe whose other
# end the test process alone holds. However that one ends, the pipe closes, this process ends,
# and the kernel ends every other process of the machine and frees its namespaces. Bash, since
# the first process must also reap orphans.
FIRST_PROCESS = """
set -e
echo "$1" >/proc/sys/kernel/hostname
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
for binding in "${@:2}"; do mount --bind "${binding%%:*}" "${binding##*:}"; done
ip link set lo up
echo ready
read -r || true
"""
UNSHARE = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid"]
# What a shell started by hand inside an allocation would hand on to the cluster under test.
SCHEDULER_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")


class MachineError(RuntimeError):
    """A machine, or something on it, did not start; the message names what and the remedy."""


def system_path() -> str:
    """Return PATH with the folders of daemons, which a user's own often lacks."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def require_programs(programs: Sequence[str], *, install: str) -> None:
    """Refuse a computer on which machines cannot be made.

    Args:
        programs: Names of the programs that must be found.
        install: The command that installs them, for the message.

    Raises:
        MachineError: a program or root is missing.
    """
    missing = [name for name in programs if shutil.which(name, path=system_path()) is None]
    if missing:
        raise MachineError(f"{', '.join(missing)} not found; run: {install}")
    if os.geteuid() != 0:
        raise MachineError(
            f"user id {os.geteuid()} may not make namespaces and device files; run as root"
        )


class Machine:
    """One machine; it ends with the block, or with this process, however either ends.

    Files are shared with this computer, as on a cluster with a shared filesystem, except for
    /run, /dev/shm and the bindings.
    """

    def __init__(self, name: str, bindings: Mapping[Path, str]) -> None:
        """Switch the machine on.

        Args:
            name: Its hostname.
            bindings: File or folder of this computer -> the path at which the machine sees it.

        Raises:
            MachineError: the machine could not be made; the message holds the reason.
        """
        self.name = name
        bound = [f"{source}:{target}" for source, target in bindings.items()]
        # In a session of its own: a Ctrl-C meant for the tests must not switch machines off
        # before the tests have ended what runs on them.
        self._holder = subprocess.Popen(
            [
                *UNSHARE, "--fork", "--kill-child", "--mount-proc",
                "bash", "-c", FIRST_PROCESS, "first-process", name, *bound,
            ],
            env={**os.environ, "PATH": system_path()},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            _, reason = self._holder.communicate()
            raise MachineError(
                f"machine {name} did not start ({reason.strip()}); run as root; a container needs "
                "--privileged"
            )

    @property
    def pid(self) -> int:
        """Process id, on this computer, of the process that holds the machine."""
        return self._holder.pid

    def command(self, *program: str, cwd: Path | None = None) -> list[str]:
        """Return the command line, for this computer, that runs a program on the machine.

        A signal to the process group reaches the program alone: the process that waits for it
        out here ignores what the program may want to handle.
        """
        return [
            "env", "--ignore-signal=INT,TERM,USR1,USR2",
            "nsenter", "--target", str(self.pid), "--mount", "--net", "--uts", "--ipc",
            f"--pid=/proc/{self.pid}/ns/pid_for_children", "--",
            "env", "--default-signal", f"--chdir={cwd or Path.cwd()}", *program,
        ]  # fmt: skip

    def popen(
        self,
        *program: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a program on the machine, as a process group of its own; output is one stream."""
        return subprocess.Popen(
            self.command(*program, cwd=cwd),
            env={**login_environment(), **(env or {})},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(
        self,
        *program: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 180,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the machine to its end.

        Raises:
            MachineError: it failed and `check` is set; the message holds its output.
            subprocess.TimeoutExpired: it took longer than `timeout` seconds; it is killed.
        """
        process = self.popen(*program, cwd=cwd, env=env)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as expired:
            kill_group(process, signal.SIGKILL)
            expired.output, _ = process.communicate()
            raise
        if check and process.returncode != 0:
            raise MachineError(
                f"{' '.join(program)} on {self.name} ended with code {process.returncode}: {output}"
            )
        return subprocess.CompletedProcess(program, process.returncode, output)

    def switch_off(self) -> None:
        """End the machine and everything on it without warning, as a power cut does.

        Nothing of it is left on return: the holder ends after the kernel has ended the rest.
        """
        self._holder.communicate()  # closes the pipe that the first process waits on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.switch_off()


def kill_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a program started by `Machine.popen` and to its children."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def end_of(process: subprocess.Popen[str], told: Callable[[], str], *, timeout_s: float) -> int:
    """Wait for the end of such a program and return its exit code; if none comes, tell what it told."""
    try:
        process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(process, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"it did not end; it told\n{told()}") from None
    return process.returncode


def login_environment() -> dict[str, str]:
    """Return this process's environment without what belongs to another scheduler's job."""
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(SCHEDULER_PREFIXES)
    }
    return {**inherited, "PATH": system_path()}


def plug_in(switch: Machine, node: Machine, *, address: str) -> None:
    """Connect a node to the bridge `switch0` on another machine.

    Args:
        switch: The machine that has the bridge.
        node: The machine that gets `eth0`; the other end bears its name.
        address: The node's address with prefix length, such as `10.77.0.1/24`.
    """
    # Only the network namespace is entered: `netns PID` is read in this process's own terms.
    here = ["nsenter", "--target", str(switch.pid), "--net", "ip", "link"]
    peer = ["peer", "name", "eth0", "netns", str(node.pid)]
    for command in (
        [*here, "add", node.name, "type", "veth", *peer],
        [*here, "set", node.name, "master", "switch0", "up"],
    ):
        subprocess.run(command, env={**os.environ, "PATH": system_path()}, check=True)
    node.run("ip", "address", "add", address, "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")


def in_network_of(machine: Machine, function: Callable[[], Result]) -> Result:
    """Call a function with a machine's network in place of this computer's.

    A socket belongs for good to the network in which it was made, whoever uses it later; so a
    server can run in this process and be heard on the machine alone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    outcome: list[Result] = []
    failures: list[BaseException] = []

    def enter_and_call() -> None:
        try:
            with Path(f"/proc/{machine.pid}/ns/net").open() as namespace:
                if libc.setns(namespace.fileno(), 0) != 0:  # of this thread alone
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            outcome.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=enter_and_call)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return outcome[0]
