"""Commands on listed hosts, by remote shells that stay on this machine; tests/hosts has real ones."""

import os
import socket
import subprocess
import sys

import psutil
import pytest

from shardline.errors import LaunchError
from shardline.launch.host_commands import check_hosts, check_is_here

EXIT_ON_STDIN_CLOSE = [sys.executable, "-m", "shardline.launch.exit_on_stdin_close"]


@pytest.fixture
def shell(tmp_path):
    """Return a function that makes a remote shell of a few lines, in which `$host` and `$line` are set."""

    def make(code='exec sh -c "$line"'):
        path = tmp_path / "remote-shell"
        path.write_text(f"#!/bin/sh\nhost=$1 line=$2\n{code}\n")
        path.chmod(0o755)
        return [str(path)]

    return make


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", socket.gethostname()])
def test_the_first_host_may_be_called_by_any_name_of_this_machine(host):
    check_is_here(host)


def test_a_first_host_that_is_another_machine_is_refused():
    here = socket.gethostname()
    refused = rf"begins with 192\.0\.2\.1, which is not this machine \({here}\); put {here} first"
    with pytest.raises(LaunchError, match=refused):
        check_is_here("192.0.2.1")
    with pytest.raises(LaunchError, match=rf"begins with no\.invalid, which {here} cannot resolve"):
        check_is_here("no.invalid")


def test_hosts_that_start_python_are_good(shell):
    check_hosts(["a", "b"], shell(), timeout_s=60)


def test_what_the_remote_shell_says_is_told_with_the_remedy(shell):
    words = shell(
        'if [ $host = a ]; then exit 0; fi; echo "warning"; echo "Permission denied" >&2; exit 255'
    )
    with pytest.raises(LaunchError) as error:
        check_hosts(["a", "b", "c"], words, timeout_s=60)
    assert str(error.value) == (
        f"runtime.hosts: b does not answer to {socket.gethostname()}: Permission denied (the same on c); "
        f"fix the name, or make `{words[0]} b true` work without a prompt"
    )


def test_a_host_that_says_nothing_is_given_up(shell):
    with pytest.raises(LaunchError, match=r"a does not answer to .*: no answer within 0\.2 s; fix"):
        check_hosts(["a"], shell("exec sleep 600"), timeout_s=0.2)


def test_a_host_without_the_environment_is_told_from_one_that_is_away(shell):
    with pytest.raises(
        LaunchError, match=r"a cannot start Python .*: No module named shardline; make /"
    ):
        check_hosts(["a"], shell("echo No module named shardline; exit 1"), timeout_s=60)


def test_a_remote_shell_that_is_not_installed_is_named():
    with pytest.raises(
        LaunchError, match="runtime.remote_shell='no-such-shell -x' is not on this machine's PATH"
    ):
        check_hosts(["a"], ["no-such-shell", "-x"], timeout_s=60)


def remote(shell, *command, ranks=2):
    hosts = f"localhost,{socket.gethostname()}"
    return subprocess.run(
        [
            sys.executable, "-m", "shardline.launch.host_commands", f"--hosts={hosts}", "--port=23456",
            f"--ranks-per-host={ranks}", f"--shell={' '.join(shell)}", "--variables=SAID,UNSET", "--", *command,
        ],
        env={**os.environ, "SAID": "it's a \"word\" & more"},
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


def test_each_rank_is_told_its_place_and_the_variables(shell):
    done = remote(
        shell(), "sh", "-c", 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $SAID"'
    )
    said = '4 localhost:23456 it\'s a "word" & more'
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} {local} {said}" for rank, local in [(0, 0), (1, 1), (2, 0), (3, 1)]
    ], done.stderr


def test_one_that_fails_ends_all_and_is_named(shell):
    done = remote(shell(), "sh", "-c", "[ $RANK = 3 ] && exit 7; exec sleep 600")
    assert done.returncode == 7
    assert f"the command on {socket.gethostname()} ended with code 7" in done.stderr


def test_exit_on_stdin_close_passes_the_exit_code_on():
    with subprocess.Popen(
        [*EXIT_ON_STDIN_CLOSE, "sh", "-c", "exit 7"], stdin=subprocess.PIPE
    ) as process:
        assert process.wait(60) == 7  # its input is open until then


def test_a_command_and_what_it_started_end_with_its_input():
    stubborn = "trap '' TERM; sleep 600 & echo $!; sleep 600 & echo $!; wait"
    process = subprocess.Popen(
        [*EXIT_ON_STDIN_CLOSE, "sh", "-c", f"({stubborn}) & sleep 600"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    started = [psutil.Process(int(process.stdout.readline())) for _ in range(2)]
    process.stdin.close()
    assert process.wait(60) != 0
    _, alive = psutil.wait_procs(started, timeout=120)
    assert not alive
    process.stdout.close()
