"""Starting commands on a list of hosts, for people without a scheduler.

`python -m shardline.launch.host_commands --hosts=a,b ... -- COMMAND` runs COMMAND on
each host through the remote shell, in the present folder, with the variables
that are named; the first host, this machine, is no exception, so that all
have the same environment. When one fails, or when this process ends, all are
ended: on the far side a command lives as long as the standard input that it
was given.
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
_CONNECTION = 255  # how ssh ends when it could not connect, or lost the connection


def main() -> int:
    """Start the command on every host; return the exit code of the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m shardline.launch.host_commands", description=__doc__
    )
    parser.add_argument("--hosts", required=True, help="names of the hosts, by commas")
    each = "ranks on each; 0: the command starts them"
    parser.add_argument("--ranks-per-host", type=int, required=True, help=each)
    port = "where the ranks meet, on the first"
    parser.add_argument("--port", type=int, required=True, help=port)
    parser.add_argument("--shell", required=True, help="what starts a command on a host")
    parser.add_argument("--variables", default="", help="names of the variables to pass, by commas")
    parser.add_argument("--passed", default="", help="names of those that no command line may hold")
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
    """Refuse listed hosts on which a plan's ranks cannot be started, whatever the launcher.

    Raises:
        LaunchError: names the host, what is wrong with it and the remedy.
    """
    if plan.hosts and not plan.job_id and not plan.prefix:
        check_is_here(plan.hosts[0])
        shell = shlex.split(plan.runtime.remote_shell)
        check_hosts(plan.hosts, shell, timeout_s=plan.runtime.rendezvous_timeout_s)


def check_is_here(host: str) -> None:
    """Refuse a first host that is another machine: the ranks meet on it, and its ports and CPUs are looked at.

    Raises:
        LaunchError: names the host and this machine.
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
            probe.bind(address)  # succeeds for this machine's own addresses alone
            return
    raise LaunchError(
        f"runtime.hosts begins with {host}, which is not this machine ({here}); "
        f"put {here} first, or start the pipeline on {host}"
    )


def check_hosts(hosts: Sequence[str], shell: Sequence[str], *, timeout_s: float) -> None:
    """Refuse hosts that cannot start a rank: no way to them, or another folder or environment there.

    Args:
        shell: words that start a command on a host, which follows them.
        timeout_s: seconds for all of them to answer.

    Raises:
        LaunchError: names the first of them, the error of it or of the remote shell, and the others.
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
            with probe:  # closes its output, and waits for it
                probe.kill()
    bad = [host for host, (code, _) in answers.items() if code != 0]
    if not bad:
        return
    code, output = answers[bad[0]]
    also = f" (nor do {', '.join(bad[1:])})" if bad[1:] else ""
    if code is None or code == _CONNECTION:
        output = f"no answer within {timeout_s:g} s" if code is None else output
        raise LaunchError(
            f"runtime.hosts: {bad[0]} does not answer to {socket.gethostname()}: {output}{also}; fix "
            f"the name, or see that `{shlex.join([*shell, bad[0], 'true'])}` works and asks for nothing"
        )
    raise LaunchError(
        f"runtime.hosts: {bad[0]} does not start Python for the ranks: {output or f'code {code}'}{also}; "
        f"{Path.cwd()} and {sys.executable} must be the same on every host"
    )


def _found(shell: Sequence[str]) -> Sequence[str]:
    if shell and shutil.which(shell[0]):
        return shell
    raise LaunchError(
        f"runtime.remote_shell={shlex.join(shell)!r} starts no program that is on this machine; "
        "install it (openssh-client), or name another"
    )


def _answer(probe: "subprocess.Popen[str]", deadline: float) -> tuple[int | None, str]:
    """Return how a probe ended, None if it did not, and the last line that it printed."""
    try:
        output, _ = probe.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None, ""
    return probe.returncode, (output.strip().splitlines() or [""])[-1]


def _places(hosts: tuple[str, ...], each: int, port: int) -> list[tuple[str, dict[str, str]]]:
    """Return the host of each command, and the variables that tell it its place."""
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
    """Return one line for the shell of a host: folder, variables and a command."""
    assignments = [f"{name}={value}" for name, value in sorted(variables.items())]
    words = ["env", *assignments, *command]
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(words)}"


def _run(commands: Sequence[tuple[str, Sequence[str]]], line: str) -> int:
    """Run each host's commands until one fails or all have ended well.

    Args:
        line: a line for the standard input of each.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    children = [
        # a pipe that gets nothing else: it closes when this process ends, however it ends
        subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=die_with_parent)
        for _, command in commands
    ]
    try:
        for child in children:
            assert child.stdin is not None
            with suppress(OSError):  # it has ended, as its exit code shows
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
        return (
            f"the connection to {host} broke off; see whether it is up, and run the pipeline again"
        )
    return f"a command on {host} ended with code {code}; all others are ended"


def _end(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    for child in children:
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()  # the remote command exits when its stdin closes
    deadline = time.monotonic() + _GRACE_S  # for all together: several hosts may be gone
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
