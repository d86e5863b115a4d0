"""The node program as Azure ML starts it: real processes on two machines with networks of their own."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from snakemake_executor_plugin_azureml.node.place import find_place
from tests.azureml.node_jobs import (
    LAUNCH,
    MODULE,
    NODES,
    PATIENCE_S,
    Job,
    encoded,
    environment,
    launch,
    shell,
)
from tests.support.machines import Machine, MachineError, kill_group, plug_in, require_programs
from tests.support.needs import require

INSTALL = "apt-get install -y --no-install-recommends iproute2 openmpi-bin procps"
GEOMETRIES = [
    ("azureml-v1-mpi-2x4", 2, 1),
    ("azureml-v1-mpi-2x4", 2, 2),
    ("azureml-mpi-2x1-master-ip", 2, 1),
    ("azureml-v1-pytorch-2x4", 2, 2),
    ("azureml-v2-pytorch-2x4", 2, 1),
    ("azureml-v2-pytorch-2x4", 2, 2),
    ("azureml-v2-mpi-1x4", 1, 2),
]
TWO = ("azureml-v2-pytorch-2x4", 2, 1)
FOUR = ("azureml-v2-pytorch-2x4", 2, 2)


@contextmanager
def two_machines(bindings: Mapping[Path, str] = {}) -> Iterator[dict[str, Machine]]:
    """Yield the nodes; bindings are of `Machine`, and without any the machines' names mean no address."""
    try:
        require_programs(["unshare", "nsenter", "ip", "ps", "mpirun"], install=INSTALL)
        with ExitStack() as ending:
            switch = ending.enter_context(Machine("switch", {}))
            switch.run("ip", "link", "add", "switch0", "type", "bridge")
            switch.run("ip", "link", "set", "switch0", "up")
            nodes = {name: ending.enter_context(Machine(name, bindings)) for name in NODES}
            for name, node in nodes.items():
                plug_in(switch, node, address=f"{NODES[name]}/24")
            yield nodes
    except MachineError as error:
        require(False, str(error))


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, Machine]]:
    with two_machines() as nodes:
        yield nodes


@pytest.fixture
def job(machines, tmp_path) -> Iterator[Job]:
    """A job, of which no process is left on any machine."""
    job = Job(machines, tmp_path)
    yield job
    for process in job.processes.values():
        kill_group(process, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + PATIENCE_S
    while left := [
        line
        for machine in machines.values()
        for line in machine.run("ps", "-e", "--format", "stat=,args=").stdout.splitlines()
        if str(tmp_path) in line or MODULE in line or "sleep 1000" in line
    ]:
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.05)


RANK = "$SNAKEMAKE_AZUREML_RANK"


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: f"{g[0]}-{g[1]}x{g[2]}")
def test_one_command_on_every_process(job, geometry):
    recorded, nodes, each = geometry
    tell = launch(
        sys.executable, str(job.folder / "tell.py"), "a b", options="--file in/f.json --env GIVEN"
    )
    job.start(f"GIVEN='x y' {tell} >in/rule.log", geometry)
    assert job.codes() == [0] * nodes * each, job.logs()
    for rank in range(nodes * each):
        seen, name = job.seen(rank), list(NODES)[rank // each]
        assert (seen["host"], seen["cwd"]) == (name, str(job.folder / name))
        assert (seen["text"], seen["argv"], seen["env"]["GIVEN"]) == ('{"lr": 0.1}', ["a b"], "x y")
        assert environment(recorded, nodes, each, rank).items() <= seen["env"].items()
        world = json.loads(seen["env"]["SNAKEMAKE_AZUREML_WORLD"])
        address = NODES["node-a"] if nodes > 1 else "127.0.0.1"
        assert [entry["address"] for entry in world[:each]] == [address] * each
        assert [
            (entry["rank"], entry["node"], entry["host"], entry["local_rank"]) for entry in world
        ] == [(n, n // each, list(NODES)[n // each], n % each) for n in range(nodes * each)]
        # the service keeps a log of each process; of rank 0 the rule has it
        assert ("hello of rank" in job.log(rank)) == (rank > 0)
    assert (job.folder / "node-a/in/rule.log").read_text() == "hello of rank 0\n"
    left = sorted(str(path.relative_to(job.folder)) for path in job.folder.glob("node-*/**/*"))
    there = ["node-a/in", "node-a/in/f.json", "node-a/in/rule.log"]
    assert left == there + (["node-b/in", "node-b/in/f.json"] if nodes > 1 else [])


def test_one_process_opens_no_socket(job):
    check = "ls -l /proc/*/fd 2>/dev/null | grep socket: >$SHARED/sockets; env >$SHARED/env"
    geometry = ("azureml-v2-mpi-1x4", 1, 1)
    job.start(f"{check}; {launch('sh', '-c', 'exit 7', options='--file in/f.json')}", geometry)
    assert job.codes() == [7]
    assert (job.shared / "sockets").read_text() == ""
    assert "SNAKEMAKE_AZUREML_CONTROL" not in (job.shared / "env").read_text()
    assert '"rank": 0' in (job.shared / "env").read_text()


@pytest.mark.parametrize("code", [0, 5])
def test_a_job_without_any_launch_is_mirrored(job, code):
    job.start(f"echo once >>$SHARED/jobs; exit {code}", TWO)
    assert job.codes() == [code, code], job.logs()
    assert (job.shared / "jobs").read_text() == "once\n"


def test_launches_one_after_the_other_and_from_a_subfolder(job):
    command = f"{shell(f'touch $SHARED/first-{RANK}')} && mkdir sub && cd sub && echo x >g && "
    command += launch(
        "sh", "-c", f"cat g >$SHARED/second-{RANK}; pwd >>$SHARED/second-{RANK}", options="--file g"
    )
    job.start(command, TWO)
    assert job.codes() == [0, 0], job.logs()
    for rank, name in enumerate(NODES):
        assert (job.shared / f"first-{rank}").exists()
        assert (job.shared / f"second-{rank}").read_text() == f"x\n{job.folder / name}/sub\n"


def test_launches_at_once_take_turns(job):
    turn = "mkdir $SHARED/busy-$NODE_RANK || exit 9; sleep 0.3; rmdir $SHARED/busy-$NODE_RANK"
    job.start(f"{shell(turn)} & first=$!; {shell(turn)} && wait $first", TWO)
    assert job.codes() == [0, 0], job.logs()


def test_a_mount_at_another_path_on_each_node(job):
    (job.folder / "mount-node-a").mkdir()
    (job.folder / "mount-node-b").symlink_to("mount-node-a")
    text = f'echo "$0 $STORE" >"$STORE/told-{RANK}"'
    command = launch("sh", "-c", text, "--x=$STORE/y", options="--env STORE")
    command = command.replace("'--x=$STORE/y'", '"--x=$STORE/y"')
    job.start(command, TWO, but=(0, 1))
    for rank, name in enumerate(NODES):
        job._env[rank] = {**environment(*TWO, rank), "SHARED": str(job.shared)}
        job.start_one(rank, 1, command, "--mount", f"STORE={job.folder}/mount-{name}", wait_s=60)
    assert job.codes() == [0, 0], job.logs()
    for rank, name in enumerate(NODES):
        mount = job.folder / f"mount-{name}"
        assert (mount / f"told-{rank}").read_text() == f"--x={mount}/y {mount}\n"


# What goes wrong


def test_a_follower_that_fails_ends_the_others(job):
    command = f"[ {RANK} = 3 ] && exit 4; touch $SHARED/at-{RANK}; exec sleep 1000"
    job.start(f"{shell(command)}; echo $? >$SHARED/code; exit 6", FOUR)
    assert job.codes() == [6] * 4, job.logs()
    assert (job.shared / "code").read_text() == "4\n"
    assert (
        "rank 3 (node 1, host node-b, 10.0.0.5) ended with code 4; all other processes"
        in job.log(0)
    )


def test_rank_0_that_fails_ends_the_others(job):
    job.start(shell(f"[ {RANK} = 0 ] && kill -9 $$; exec sleep 1000"), TWO)
    assert job.codes() == [137, 137], job.logs()
    assert "rank 0 (node 0, host node-a, 10.0.0.4) was ended by SIGKILL (code 137)" in job.log(0)


def test_a_process_that_does_not_heed_sigterm_is_ended_after_the_grace_time(job):
    command = f"[ {RANK} = 1 ] && exit 4; trap '' TERM; touch $SHARED/deaf; sleep 1000 & wait; wait"
    job.start(shell(command), TWO, "--grace-s", "2")
    assert job.codes() == [4, 4], job.logs()


def test_a_program_that_is_not_there(job):
    job.start(f"{LAUNCH} -- no-such-program", TWO)
    assert job.codes() == [127, 127], job.logs()
    assert "no-such-program cannot be started: No such file" in job.log(1)


def test_a_different_file_on_a_follower_starts_nothing(job):
    (job.folder / "node-b" / "in").mkdir()
    (job.folder / "node-b" / "in" / "f.json").write_text("other")
    job.start(launch("touch", f"{job.shared}/started", options="--file in/f.json"), TWO)
    assert job.codes() == [1, 1], job.logs()
    assert "no process was started: rank 1 (node 1, host node-b, 10.0.0.5)" in job.log(0)
    assert "f.json already exists and differs from the leader's" in job.log(0)
    assert not (job.shared / "started").exists()
    assert (job.folder / "node-b" / "in" / "f.json").read_text() == "other"


def test_a_leader_that_dies_is_named_by_its_followers(job):
    job.start(shell(f"touch $SHARED/at-{RANK}; exec sleep 1000"), TWO)
    job.wait_for("at-0", "at-1")
    job.kill(0)
    assert job.codes()[1] == 1, job.logs()
    assert "the leader, rank 0, was lost before the job ended: the connection" in job.log(1)


def test_a_follower_that_dies_is_named_by_the_leader(job):
    job.start(f"{shell(f'touch $SHARED/at-{RANK}; exec sleep 1000')} || exit 8", TWO)
    job.wait_for("at-0", "at-1")
    job.kill(1)
    assert job.codes()[0] == 8, job.logs()
    assert "rank 1 (node 1, host node-b, 10.0.0.5) is lost: the connection was" in job.log(0)


def test_a_node_that_falls_silent_is_named(job, machines):
    job.start(
        f"{shell(f'touch $SHARED/at-{RANK}; exec sleep 1000')} || exit 8", TWO, "--silence-s", "2"
    )
    job.wait_for("at-0", "at-1")
    machines["node-b"].run("ip", "link", "set", "eth0", "down")
    try:
        assert job.codes() == [8, 1], job.logs()
    finally:
        machines["node-b"].run("ip", "link", "set", "eth0", "up")
    assert "rank 1 (node 1, host node-b, 10.0.0.5) is lost: Connection timed out" in job.log(0)


@pytest.mark.parametrize(
    ("geometry", "but", "named"),
    [
        (FOUR, (3,), "rank 3 (node 1) did not join within 3 s"),
        (FOUR, (2, 3), "rank 2 (node 1), rank 3 (node 1) did not join within 3 s"),
        (("azureml-v1-mpi-2x4", 2, 1), (1,), "rank 1 (node 1), of host 10.0.0.5 by AZ_BATCH_NODE_LIST, did not"),
    ],
)  # fmt: skip
def test_one_that_never_comes_is_named_before_the_deadline(job, geometry, but, named):
    job.start("touch $SHARED/started", geometry, but=(0, *but))
    others = [*job.processes]
    job.wait_until(lambda: all(f"rank {rank} of" in job.log(rank) for rank in others), "followers")
    job.start("touch $SHARED/started", geometry, wait_s=3, but=(*others, *but))
    assert set(job.codes()) == {1}, job.logs()
    for rank in job.processes:  # the others hear it
        assert named in job.log(rank)
    assert "did not join yet" in job.log(0)
    assert not (job.shared / "started").exists()


def test_a_leader_that_never_comes(job):
    job.start("true", TWO, wait_s=1, but=(0,))
    assert job.codes() == [1]
    assert (
        "rank 1 (node 1, host node-b) did not reach the leader, rank 0, within 1 s (10.0"
        in job.log(1)
    )


def test_an_environment_that_does_not_tell_where_the_leader_is(job):
    job.start("true", ("azureml-v2-mpi-2x1-localhost", 2, 1), wait_s=1)
    assert job.codes() == [1, 1]
    assert "no MASTER_ADDR, AZ_BATCH_MASTER_NODE, MASTER_IP" in job.log(1)
    assert "rank 1 (node 1) did not join" in job.log(0)


HOLDER = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
open(sys.argv[2], "w").close()
while True: server.accept()[0].sendall(b"220 some other program" if sys.argv[3] == "speaks" else b"")
"""


@pytest.mark.parametrize("how", ["speaks", "closes"])
def test_a_port_that_is_taken_is_named_and_the_next_is_used(job, machines, how):
    port = find_place(environment(*TWO, 0)).ports[0]
    words = [sys.executable, "-c", HOLDER, str(port), str(job.shared / "held"), how]
    holder = machines["node-a"].popen(*words)
    try:
        job.wait_for("held")
        job.start("true", TWO)
        assert job.codes() == [0, 0], job.logs()
    finally:
        kill_group(holder, signal.SIGKILL)
        holder.communicate()
    assert (
        f"port {port} cannot be used on node-a: Address already in use; trying the next port"
        in job.log(0)
    )


STRANGERS = """
import dataclasses, os, socket, sys, time
from snakemake_executor_plugin_azureml.node.follower import _join
from snakemake_executor_plugin_azureml.node.place import find_place
from snakemake_executor_plugin_azureml.node.secret import folder_of
place = find_place(os.environ)
at = ("10.0.0.4", place.ports[0])
for words in (b"GET / HTTP/1.0", bytes(2**10), b"\\xff" * 8):
    while True:
        try: socket.create_connection(at).sendall(words)
        except ConnectionRefusedError: time.sleep(0.05)
        else: break
place = dataclasses.replace(place, job="another")
_join(place, folder_of(place, {"SHARED": "/tmp"}), at, 60.0, 60.0)
"""


def test_strangers_and_another_jobs_processes_are_turned_away(job, machines):
    command = "ss -ltnH >$SHARED/open; ls -A $SHARED >$SHARED/files"
    job.start(command, TWO, but=(1,))
    env = environment(*TWO, 1)
    done = machines["node-b"].run(sys.executable, "-c", STRANGERS, env=env, check=False)
    assert "LostError: another job's leader listens on this port" in done.stdout, (
        done.stdout + job.logs()
    )
    port = find_place(env).ports[0]
    assert f"10.0.0.4:{port} " in machines["node-a"].run("ss", "-ltnH").stdout
    (secret,) = (job.shared / ".snakemake-azureml").glob("*/*")
    assert secret.stat().st_mode & 0o777 == 0o600
    job._env[1] = {**env, "SHARED": str(job.shared)}
    job.start_one(1, 1, command, wait_s=PATIENCE_S)
    assert job.codes() == [0, 0], job.logs()
    # once all have come there is neither a port to attack nor a secret to read
    assert (job.shared / "open").read_text() == ""
    assert (job.shared / "files").read_text().split() == ["files", "open"]


def test_two_processes_of_one_rank_are_named(job):
    job.start("true", FOUR, but=(2, 3))
    job._env[3] = {**environment(*FOUR, 1), "SHARED": str(job.shared)}
    job.start_one(3, 2, "true", wait_s=PATIENCE_S)
    assert set(job.codes()) == {1}, job.logs()
    assert "two processes are rank 1: one on node-" in job.log(0)


@pytest.mark.parametrize("whom", [(0, 1), (0,)])
def test_cancellation_ends_everything_within_the_grace_time(job, whom):
    deaf = "trap '' TERM; touch $SHARED/deaf; while true; do sleep 1000; done"
    beside = f"(setsid sh -c {shlex.quote(deaf)} &) ; "
    job.start(
        f"{beside}{shell(f'touch $SHARED/at-{RANK}; exec sleep 1000')}", TWO, "--grace-s", "3"
    )
    job.wait_for("at-0", "at-1", "deaf")
    job.kill(*whom, number=signal.SIGTERM)
    assert job.codes(20) == [143, 143], job.logs()


def test_cancellation_while_waiting_for_the_others(job):
    job.start("touch $SHARED/started", TWO, but=(1,))
    job.wait_until(lambda: "rank 0 of 2" in job.log(0), "start")
    job.kill(0, number=signal.SIGTERM)
    assert job.codes() == [143]
    assert not (job.shared / "started").exists()


# A command that runs on the followers beside the job


def test_a_follower_command_lives_as_long_as_the_job(job):
    beside = f"env >$SHARED/beside-{RANK}; exec sleep 1000"
    command = "until [ -e $SHARED/beside-1 ]; do sleep 0.02; done"
    job.start(command, TWO, "--follower-command", encoded(beside))
    assert job.codes() == [0, 0], job.logs()
    env = (job.shared / "beside-1").read_text().splitlines()
    assert "SNAKEMAKE_AZUREML_LEADER=10.0.0.4" in env
    assert not (job.shared / "beside-0").exists()


def test_a_follower_command_that_fails_ends_the_job(job):
    job.start("sleep 1000", TWO, "--follower-command", encoded("exit 3"))
    assert job.codes() == [3, 3], job.logs()
    assert (
        "rank 1 (node 1, host node-b, 10.0.0.5): the follower command ended with code 3"
        in job.log(0)
    )


def test_started_by_a_real_mpirun(job, machines):
    run = [
        sys.executable,
        "-m",
        MODULE,
        "run",
        "--wait-s",
        "30",
        encoded(f"{shell(f'exit {RANK}')}; echo $?; exit 5"),
    ]
    words = [
        "mpirun",
        "--allow-run-as-root",
        "-np",
        "3",
        "--host",
        "localhost:3",
        "-bind-to",
        "none",
        *run,
    ]
    env = {"AZUREML_RUN_ID": "real", "AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
    done = machines["node-a"].run(*words, cwd=job.folder / "node-a", env=env, check=False)
    assert done.returncode == 5, done.stdout
    assert "all 3 processes joined" in done.stdout
    assert "(node 0, host node-a, 127.0.0.1) ended with code" in done.stdout
