"""What is decided before the ranks start: machines, CPUs, ports, what they find in their environment."""

import os
import socket

import pytest

from shardline.errors import LaunchError
from shardline.launch import start as start_module
from shardline.launch.allocation import check_allocation, parse_job, restored_variables
from shardline.launch.environment import rank_variables, without_place
from shardline.launch.start import free_port, prepare_start
from shardline.launch.world import derived_port

JOB = (
    "JobId=17 JobName=x UserId=root(0) JobState=RUNNING Restarts=1 BatchFlag=1 NodeList=n[1-2] "
    "BatchHost=n1 NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 TRES=cpu=4,node=2 Features=(null)"
)  # fmt: skip
RUNTIME = {
    "launcher": "torchrun",
    "hosts": [],
    "threads_per_rank": 0,
    "interface": "",
    "variables": {},
    "remote_shell": "ssh",
    "launcher_args": [],
    "rendezvous_timeout_s": 60,
}
SETTINGS = {"nodes": 2, "devices": 2, "accelerator": "cpu"}


def start(settings=SETTINGS, env=None, num_cpus=8, **runtime):
    return prepare_start(
        ["-m", "x"], run_id="run-0123456789ab", settings=settings, runtime={**RUNTIME, **runtime},
        env={"PATH": "/bin", **(env or {})}, num_cpus=num_cpus,
    )  # fmt: skip


@pytest.fixture
def in_slurm(monkeypatch):
    """A job of two nodes, as its controller describes it."""
    monkeypatch.setattr(start_module, "find_allocation", lambda env: parse_job("17", JOB))


def test_what_scontrol_says_of_a_job():
    allocation = parse_job("17", JOB)
    assert (allocation.hosts, allocation.cpus, allocation.restarts) == (("n1", "n2"), 4, 1)
    with pytest.raises(LaunchError, match="Slurm job 17 has no nodes, state PENDING"):
        parse_job("17", "JobId=17 JobState=PENDING NodeList=(null) NumCPUs=4")


def test_another_allocation_than_planned_is_refused():
    allocation = parse_job("17", JOB)
    check_allocation(allocation, nodes=2, cpus=4)
    with pytest.raises(
        LaunchError, match=r"holds 2 nodes \(n\[1-2\]\), but the run was planned for nodes=3"
    ):
        check_allocation(allocation, nodes=3, cpus=4)
    with pytest.raises(
        LaunchError, match="holds 4 CPUs, but the run was planned for 8; lower runt"
    ):
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


def test_one_rank_alone_is_told_that_it_is_alone():
    one = start({**SETTINGS, "nodes": 1, "devices": 1}, env={"SLURM_PROCID": "0", "RANK": "3"})
    assert (one.env["RANK"], one.env["WORLD_SIZE"]) == ("0", "1")
    assert "SLURM_PROCID" not in one.env


def test_cores_are_shared_by_the_ranks_of_a_machine():
    assert start({**SETTINGS, "nodes": 1, "devices": 3}).plan.cpus == 2
    assert start({**SETTINGS, "nodes": 1}, threads_per_rank=5).plan.cpus == 5


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


def test_more_cpus_than_the_job_holds_are_refused(in_slurm):
    with pytest.raises(LaunchError, match="holds 4 CPUs, but the run was planned for 16"):
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
    with pytest.raises(LaunchError, match="SLURM_JOB_ID=17, but there is no scontrol"):
        start(launcher="srun", env={"SLURM_JOB_ID": "17", "PATH": "/nowhere"})
