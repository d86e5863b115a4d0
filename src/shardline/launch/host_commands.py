"""Start commands on a list of hosts through the remote shell, without a scheduler.

`python -m shardline.launch.host_commands --hosts=a,b ... -- COMMAND` runs COMMAND on
each host, in the current folder, with the named variables. The first host is this
machine; its command also starts through the remote shell, so that all hosts have
the same environment. When one command fails or this process exits, all commands
end: each remote command exits when its standard input closes.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shardline.core.errors import LaunchError
from shardline.core.process import die_with_parent
from shardline.core.world import World
from shardline.launch.commands import LaunchPlan
from shardline.launch.exit_on_stdin_close import READ_VARIABLES
from shardline.launch.export import export_world

_POLL_S = 0.05
_GRACE_S = 10.0
_CONNECTION = 255  # ssh's exit code when it cannot connect or loses the connection


def main() -> int:
    """Start the command on every host; return the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m shardline.launch.host_commands", description=__doc__
    )
    parser.add_argument("--hosts", required=True, help="names of the hosts, comma-separated")
    each = "ranks per host; 0: the command starts the ranks"
    parser.add_argument("--ranks-per-host", type=int, required=True, help=each)
    port = "port of the rendezvous on the first host"
    parser.add_argument("--port", type=int, required=True, help=port)
    parser.add_argument("--shell", required=True, help="remote shell, such as ssh")
    parser.add_argument("--variables", default="", help="variables to pass, comma-separated")
    parser.add_argument("--passed", default="", help="secret variables, passed by standard input")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    hosts, shell = tuple(args.hosts.split(",")), shlex.split(args.shell)
    names = [name for name in args.variables.split(",") if name]
    passed = {name: os.environ[name] for name in names if name in os.environ}
    secret = {name: os.environ[name] for name in filter(None, args.passed.split(","))}
    guard = [sys.executable, "-m", "shardline.launch.exit_on_stdin_close"]
    remote_command = [*guard, *([READ_VARIABLES] if secret else []), *args.command]
    commands = [
        (host, [*shell, host, _far_side({**passed, **place}, remote_command)])
        for host, place in _places(hosts, args.ranks_per_host, args.port)
    ]
    return _run(commands, json.dumps(secret) + "\n" if secret else "")


def check_machines(plan: LaunchPlan) -> None:
    """Check that the plan's ranks can start on each listed host, with any launcher.

    Raises:
        LaunchError: a host cannot start ranks; the message names the host, the fault and the remedy.
    """
    if plan.hosts and not plan.job_id and not plan.prefix:
        check_is_here(plan.hosts[0])
        shell = shlex.split(plan.runtime.remote_shell)
        check_hosts(plan.hosts, shell, timeout_s=plan.runtime.rendezvous_timeout_s)


def check_is_here(host: str) -> None:
    """Check that the first host is this machine: the ranks meet here, and its ports and CPUs are checked here.

    Raises:
        LaunchError: the first host is another machine; the message names both.
    """
    here = socket.gethostname()
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise LaunchError(
            f"runtime.hosts begins with {host}, which {here} cannot resolve ({error.strerror}); "
            "fix the name, or add it to /etc/hosts or DNS"
        ) from None
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)  # succeeds only for addresses of this machine
            return
    raise LaunchError(
        f"runtime.hosts begins with {host}, which is not this machine ({here}); "
        f"put {here} first, or start the pipeline on {host}"
    )


def check_hosts(hosts: Sequence[str], shell: Sequence[str], *, timeout_s: float) -> None:
    """Check that each host is reachable and has the same folder and environment as this machine.

    Args:
        shell: command that starts a command on a host; the host and the command follow it.
        timeout_s: seconds in which all hosts must answer.

    Raises:
        LaunchError: a host fails; the message names the first such host, its error and the other hosts.
    """
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    line = _far_side(path, [sys.executable, "-c", "import shardline.launch.exit_on_stdin_close"])
    deadline = time.monotonic() + timeout_s
    probes = {
        host: subprocess.Popen(
            [*_found(shell), host, line],
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        for host in hosts
    }
    try:
        answers = {host: _answer(probe, deadline) for host, probe in probes.items()}
    finally:
        for probe in probes.values():
            with probe:  # closes the output, and waits for the process
                probe.kill()
    bad = [host for host, (code, _) in answers.items() if code != 0]
    if not bad:
        return
    code, output = answers[bad[0]]
    also = f" (the same on {', '.join(bad[1:])})" if bad[1:] else ""
    if code is None or code == _CONNECTION:
        output = f"no answer within {timeout_s:g} s" if code is None else output
        raise LaunchError(
            f"runtime.hosts: {bad[0]} does not answer to {socket.gethostname()}: {output}{also}; fix "
            f"the name, or make `{shlex.join([*shell, bad[0], 'true'])}` work without a prompt"
        )
    raise LaunchError(
        f"runtime.hosts: {bad[0]} cannot start Python for the ranks: {output or f'code {code}'}{also}; "
        f"make {Path.cwd()} and {sys.executable} the same on every host"
    )


def _found(shell: Sequence[str]) -> Sequence[str]:
    if shell and shutil.which(shell[0]):
        return shell
    raise LaunchError(
        f"runtime.remote_shell={shlex.join(shell)!r} is not on this machine's PATH; "
        "install it (openssh-client), or set another command"
    )


def _answer(probe: "subprocess.Popen[str]", deadline: float) -> tuple[int | None, str]:
    """Return a probe's exit code (None after a timeout) and the last line that it printed."""
    try:
        output, _ = probe.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None, ""
    return probe.returncode, (output.strip().splitlines() or [""])[-1]


def _places(hosts: tuple[str, ...], each: int, port: int) -> list[tuple[str, dict[str, str]]]:
    """Return the host of each command, and the environment variables that set its place."""
    if not each:
        return [(host, {}) for host in hosts]
    worlds = [
        World(
            rank=rank, local_rank=rank % each, world_size=len(hosts) * each, local_world_size=each,
            master_addr=hosts[0], master_port=port, launcher="none", hosts=hosts,
        )
        for rank in range(len(hosts) * each)
    ]  # fmt: skip
    return [(hosts[world.rank // each], export_world(world)) for world in worlds]


def _far_side(variables: Mapping[str, str], command: Sequence[str]) -> str:
    """Return a shell line for a host: change the folder, set the variables, run the command."""
    assignments = [f"{name}={value}" for name, value in sorted(variables.items())]
    words = ["env", *assignments, *command]
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(words)}"


def _run(commands: Sequence[tuple[str, Sequence[str]]], line: str) -> int:
    """Run each host's command until one fails or all succeed.

    Args:
        line: line to write to the standard input of each command.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    children = [
        # nothing else is written to this pipe: it closes when this process exits, even if killed
        subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=die_with_parent)
        for _, command in commands
    ]
    try:
        for child in children:
            assert child.stdin is not None
            with suppress(OSError):  # the command has exited; its exit code is checked below
                child.stdin.write(line.encode())
                child.stdin.flush()
        while not stop.is_set():
            codes = [child.poll() for child in children]
            for (host, _), code in zip(commands, codes, strict=True):
                if code:
                    print(_end_of(host, code), file=sys.stderr, flush=True)
                    return 1 if code < 0 else code
            if all(code == 0 for code in codes):
                return 0
            stop.wait(_POLL_S)
        return 128 + signal.SIGTERM
    finally:
        _end(children)


def _end_of(host: str, code: int) -> str:
    if code == _CONNECTION:
        return f"lost the connection to {host}; check that it is up, and run the pipeline again"
    return f"the command on {host} ended with code {code}; stopping all other hosts"


def _end(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    for child in children:
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()  # the remote command exits when its stdin closes
    deadline = time.monotonic() + _GRACE_S  # shared: several hosts may be gone
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
