"""What is decided before the ranks start: machines, CPUs, ports, what they find in their environment."""

import json
import os
import socket
import subprocess
import sys

import pytest
from msgspec import structs

from shardline.config.resolved import ActualGeometry
from shardline.config.settings.config import Runtime
from shardline.core.rank_environment import rank_variables, without_place
from shardline.errors import LaunchError
from shardline.launch import start as start_module
from shardline.launch.launched_world import derived_port
from shardline.launch.resolve import resolve_world
from shardline.launch.slurm.allocation import check_allocation, parse_job, restored_variables
from shardline.launch.start import free_port, prepare_start
from tests.unit.launch.test_world import RECORDED

JOB = (
    "JobId=17 JobName=x UserId=root(0) JobState=RUNNING Restarts=1 BatchFlag=1 NodeList=n[1-2] "
    "BatchHost=n1 NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 TRES=cpu=4,node=2 Features=(null)"
)  # fmt: skip
RUNTIME = Runtime(remote_shell="ssh", rendezvous_timeout_s=60)
TWO_BY_TWO = ActualGeometry(nodes=2, devices=2)


def start(geometry=TWO_BY_TWO, env=None, num_cpus=8, *, accelerator="cpu", threads=None, **runtime):
    return prepare_start(
        ["-m", "x"], run_id="run-0123456789ab", geometry=geometry, accelerator=accelerator,
        runtime=structs.replace(RUNTIME, **runtime),
        env={"PATH": "/bin", **(env or {})}, num_cpus=num_cpus, threads=threads,
    )  # fmt: skip


@pytest.fixture
def in_slurm(monkeypatch):
    """A job of two nodes, as its controller describes it."""
    monkeypatch.setattr(start_module, "allocation_of_launch", lambda env: parse_job("17", JOB))


def test_what_scontrol_says_of_a_job():
    allocation = parse_job("17", JOB)
    assert (allocation.hosts, allocation.cpus, allocation.restarts) == (("n1", "n2"), 4, 1)
    with pytest.raises(LaunchError, match="Slurm job 17 has no nodes, state PENDING"):
        parse_job("17", "JobId=17 JobState=PENDING NodeList=(null) NumCPUs=4")


def test_another_allocation_than_planned_is_refused():
    allocation = parse_job("17", JOB)
    check_allocation(allocation, nodes=2, cpus=4)
    with pytest.raises(
        LaunchError, match=r"has 2 nodes \(n\[1-2\]\), but the run was planned for nodes=3"
    ):
        check_allocation(allocation, nodes=3, cpus=4)
    with pytest.raises(LaunchError, match="has 4 CPUs, but the run was planned for 8; lower runt"):
        check_allocation(allocation, nodes=2, cpus=8)


def test_variables_that_mpirun_needs_are_put_back():
    restored = restored_variables(parse_job("17", JOB), tasks_per_node=2)
    assert restored["SLURM_NODELIST"] == "n[1-2]"
    assert restored["SLURM_TASKS_PER_NODE"] == "2(x2)"
    assert restored["SLURM_NTASKS"] == "4"


def test_what_another_launcher_left_is_taken_away_and_named():
    left = {
        "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SRUN_DEBUG": "3", "OMPI_COMM_WORLD_RANK": "1", "RANK": "1",
        "MASTER_ADDR": "n9", "TORCHELASTIC_RUN_ID": "x", "PMI_RANK": "1", "MPI_LOCALRANKID": "0", "TF_CONFIG": "{}",
        "SHARDLINE_HOSTS": "a,b", "OMPI_MCA_ess": "env",
    }  # fmt: skip
    kept = {"PATH": "/bin", "SLURM_JOB_ID": "17", "OMPI_MCA_btl": "tcp", "NCCL_DEBUG": "INFO"}
    env, removed = without_place({**left, **kept})
    assert env == kept
    assert removed == sorted(left)


def test_what_every_rank_gets():
    given = rank_variables(3, {"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_TIMEOUT": 22}, "ib0")
    assert given["OMP_NUM_THREADS"] == given["MKL_NUM_THREADS"] == "3"
    assert given["GLOO_SOCKET_IFNAME"] == given["NCCL_SOCKET_IFNAME"] == "ib0"
    assert (given["NCCL_IB_HCA"], given["NCCL_IB_TIMEOUT"]) == ("mlx5_0", "22")
    assert "GLOO_SOCKET_IFNAME" not in rank_variables(3, {}, "")


STEPS = """
import resource
import numpy as np

def step():
    gradients = [np.empty(1 << 20, np.float32) for _ in range(12)]  # 4 MB each
    for gradient in gradients:
        gradient.fill(1)

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_ranks_keep_the_memory_of_gradients_from_one_step_to_the_next():
    env = {**os.environ, **rank_variables(1, {}, "")}
    told = subprocess.run(
        [sys.executable, "-c", STEPS], env=env, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < 50, "page faults; without, a step has thousands"


def test_one_rank_alone_is_told_that_it_is_alone():
    one = start(ActualGeometry(nodes=1, devices=1), env={"SLURM_PROCID": "0", "RANK": "3"})
    assert (one.env["RANK"], one.env["WORLD_SIZE"]) == ("0", "1")
    assert "SLURM_PROCID" not in one.env


@pytest.mark.parametrize("num_cpus", [1, 2, 64])
def test_threads_depend_neither_on_the_machine_s_cores_nor_on_other_runs(num_cpus):
    for devices in (1, 3):
        geometry = ActualGeometry(nodes=1, devices=devices)
        assert start(geometry, num_cpus=num_cpus).plan.cpus == 1
        assert start(geometry, num_cpus=num_cpus, threads_per_rank=5).plan.cpus == 5
        assert (
            start(
                geometry, num_cpus=num_cpus, launcher="none" if devices == 1 else "torchrun"
            ).plan.cpus
            == 1
        )


def test_a_training_that_resumes_keeps_its_threads_unless_the_profile_names_them():
    alone = ActualGeometry(nodes=1, devices=1)
    assert start(alone, threads=8).plan.cpus == 8
    assert start(alone, threads=8, threads_per_rank=2).plan.cpus == 2


def test_ranks_in_slurm(in_slurm):
    found = start(launcher="srun", env={"SLURM_JOB_ID": "17"})
    assert (found.plan.hosts, found.plan.cpus, found.plan.job_id) == (("n1", "n2"), 1, "17")
    assert found.env["MASTER_ADDR"] == "n1"
    assert found.env["MASTER_PORT"] == str(found.plan.port) == str(derived_port("17.1"))
    assert found.env["SHARDLINE_HOSTS"] == "n1,n2"
    by_mpi = start(launcher="mpirun", env={"SLURM_JOB_ID": "17"})
    assert by_mpi.env["SLURM_NODELIST"] == "n[1-2]"
    assert "MASTER_PORT" in by_mpi.plan.variables
    agents = start(launcher="torchrun", env={"SLURM_JOB_ID": "17"})
    assert "MASTER_PORT" not in agents.env  # the agents tell the ranks


# Azure ML

LAUNCH = {"SNAKEMAKE_AZUREML_LAUNCH": "py -m node launch", "SNAKEMAKE_AZUREML_RANK": "0"}


def azure(*nodes: int, **env: str) -> dict[str, str]:
    """Return the environment of a job whose processes are on these nodes."""
    world = [
        {"rank": rank, "node": node, "host": f"n{node}", "local_rank": 0, "address": f"10.0.0.{node + 4}"}
        for rank, node in enumerate(nodes)
    ]  # fmt: skip
    return {**LAUNCH, "SNAKEMAKE_AZUREML_WORLD": json.dumps(world), **env}


def test_one_agent_on_each_node_of_azure():
    env = azure(0, 1, RANK="0", WORLD_SIZE="2", MASTER_PORT="6105", OMPI_COMM_WORLD_RANK="0")
    found = start(launcher="azureml", env=env, threads_per_rank=1)
    assert (found.plan.hosts, found.plan.processes) == (("10.0.0.4", "10.0.0.5"), 2)
    assert "shardline.launch.azureml" in found.command
    assert f"--master-port={found.plan.port}" in found.command
    assert found.plan.port not in (0, 6105)
    left = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK"}
    assert not left & {*found.env, *found.plan.variables}
    assert env["SNAKEMAKE_AZUREML_WORLD"] == found.env["SNAKEMAKE_AZUREML_WORLD"]
    assert set(found.plan.variables) <= set(found.env)


@pytest.mark.parametrize(
    "name", [n for n in RECORDED if n.startswith("azureml") and "torchrun" not in n]
)
def test_azures_own_processes_as_ranks(name):
    nodes, devices = (1, 4) if "1x" in name else (2, 4 if "2x4" in name else 1)
    placed = azure(*(rank // devices for rank in range(nodes * devices)))
    found = start(
        ActualGeometry(nodes=nodes, devices=devices),
        launcher="azureml",
        env={**placed, **RECORDED[name]},
        threads_per_rank=1,
    )
    assert found.command[4:6] != ["-m", "shardline.launch.azureml"]
    assert RECORDED[name].items() - found.env.items() <= {("MASTER_PORT", "6105")}
    # what the other processes find in theirs, beside what is passed to them
    passed = {name: found.env[name] for name in found.plan.variables}
    for rank in range(nodes * devices):
        own = {
            **dict.fromkeys(("RANK", "OMPI_COMM_WORLD_RANK"), rank), "NODE_RANK": rank // devices,
            **dict.fromkeys(("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), rank % devices),
        }  # fmt: skip
        env = {
            **RECORDED[name],
            **{k: str(v) for k, v in own.items() if k in RECORDED[name]},
            **passed,
        }
        world = resolve_world(env)
        assert (world.rank, world.local_rank, world.num_nodes) == (rank, rank % devices, nodes)
        assert (world.master_addr, world.master_port) == (
            "10.0.0.4" if nodes > 1 else "127.0.0.1",
            found.plan.port,
        )
        assert world.hosts == found.plan.hosts


def test_one_process_of_azure_starts_its_ranks_itself():
    env = azure(0, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    one = start(ActualGeometry(nodes=1, devices=1), launcher="azureml", env=env)
    assert one.command[1:] == ["-m", "x"]
    assert (one.env["RANK"], one.env["WORLD_SIZE"]) == ("0", "1")
    two = start(ActualGeometry(nodes=1, devices=2), launcher="azureml", env=env)
    assert "shardline.launch.stores" in two.command
    assert "RANK" not in two.env
    without_plugin = start(ActualGeometry(nodes=1, devices=2), launcher="azureml")
    assert without_plugin.command[1:5] == two.command[1:5]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "nodes=2 and runtime.launcher=azureml, but SNAKEMAKE_AZUREML_LAUNCH is not set: .*--profile azureml"),
        (azure(0, 1, 1), r"planned for nodes=2 x devices=2, but Azure ML started 3 processes on 2 nodes \(10.0.0.4, "),
        (azure(0), r"but Azure ML started 1 processes on 1 nodes .* set azureml_processes_per_node to 1 or 2"),
        (azure(0, 1, 0, 1), "started 4 processes on 2 nodes"),
        (azure(0, 0), "started 2 processes on 1 nodes"),
        ({**LAUNCH, "SNAKEMAKE_AZUREML_WORLD": "[{}]"}, r"SNAKEMAKE_AZUREML_WORLD=\[{}\] does not list the job's"),
    ],
)  # fmt: skip
def test_other_processes_than_planned_are_refused(env, message):
    with pytest.raises(LaunchError, match=message):
        start(launcher="azureml", env=env)


def test_an_agent_takes_the_number_of_its_own_node(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os; print({name: os.environ[name] for name in ('RANK', 'GROUP_RANK')})"
    )
    agent = [sys.executable, "-m", "shardline.launch.azureml", "--nnodes=2", "--nproc-per-node=1",
             "--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={free_port('x', '127.0.0.1')}",
             str(program)]  # fmt: skip
    agents = [
        subprocess.Popen(
            agent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "SNAKEMAKE_AZUREML_WORLD": azure(0, 1)["SNAKEMAKE_AZUREML_WORLD"],
                "SNAKEMAKE_AZUREML_RANK": rank,
                "RANK": "7",
                "OMPI_COMM_WORLD_SIZE": "9",
            },
        )
        for rank in "10"
    ]  # fmt: skip
    told = [agent.communicate(timeout=300)[0] for agent in agents]
    for node, text in zip((1, 0), told, strict=True):
        assert f"node {node}: not passed on to the ranks: OMPI_COMM_WORLD_SIZE, RANK\n" in text
        assert f"{{'RANK': '{node}', 'GROUP_RANK': '{node}'}}" in text


def test_more_cpus_than_the_job_holds_are_refused(in_slurm):
    with pytest.raises(LaunchError, match="has 4 CPUs, but the run was planned for 16"):
        start(launcher="srun", env={"SLURM_JOB_ID": "17"}, threads_per_rank=4)


def test_listed_hosts_are_taken_in_order():
    assert start(hosts=["a", "b", "c"]).plan.hosts == ("a", "b")
    with pytest.raises(LaunchError, match=r"nodes=2, but runtime.hosts lists 1 \(a\); list more"):
        start(hosts=["a"])


def test_a_taken_port_is_named_and_the_next_is_tried(caplog):
    job = f"test-{os.getpid()}"
    with socket.socket() as holder:
        holder.bind(("", derived_port(job)))
        holder.listen()
        found = free_port(job, socket.gethostname())
    assert found == derived_port(job, 1)
    assert f"port {derived_port(job)} is taken on {socket.gethostname()}" in caplog.text
    assert free_port(job, "another-host") == derived_port(job)


def test_a_job_without_scontrol_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        LaunchError, match="SLURM_JOB_ID=17, but scontrol, which lists the job's nodes, is not on"
    ):
        start(launcher="srun", env={"SLURM_JOB_ID": "17", "PATH": "/nowhere"})
