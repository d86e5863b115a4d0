"""What starts the ranks: a command line for each launcher and place, held by a file each."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.errors import LaunchError
from shardline.launch.commands import LAUNCHERS, LaunchPlan, launch_command
from shardline.launch.request import REQUESTED, requested

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
PROGRAM = ["-m", "shardline.training.rank", "run.json"]
ONE = LaunchPlan(run_id="mlp-0123456789ab", nodes=1, devices=1)
NODE = replace(ONE, devices=2, cpus=3)
SLURM = replace(
    NODE, nodes=2, hosts=("n1", "n2"), job_id="17", port=23456,
    variables=("OMP_NUM_THREADS", "NCCL_IB_HCA", "MASTER_ADDR", "MASTER_PORT"),
)  # fmt: skip
HOSTS = replace(SLURM, job_id="", runtime=Runtime(remote_shell="ssh -p 2222"))
AZURE = replace(
    SLURM, job_id="", hosts=("10.0.0.4", "10.0.0.5"), prefix=("py", "-m", "node", "launch"),
    files=("results/run.json", "results/manifest.json"), variables=("OMP_NUM_THREADS", "NCCL_IB_HCA"),
)  # fmt: skip
PLANS = {
    ("none", "one"): ONE,
    ("none", "hosts"): HOSTS,
    ("torchrun", "one"): ONE,
    ("torchrun", "node"): NODE,
    ("torchrun", "slurm"): SLURM,
    ("torchrun", "hosts"): HOSTS,
    ("srun", "node"): replace(SLURM, nodes=1, hosts=("n1",)),
    ("srun", "slurm"): SLURM,
    ("srun", "gpus"): replace(SLURM, gpus=2, runtime=Runtime(launcher_args=["--cpu-bind=cores"])),
    ("mpirun", "node"): NODE,
    ("mpirun", "slurm"): replace(SLURM, is_root=True),
    ("azureml", "one"): ONE,
    ("azureml", "node"): NODE,
    ("azureml", "agents"): replace(
        AZURE, processes=2, runtime=Runtime(launcher_args=["--log-dir=logs"])
    ),
    ("azureml", "ranks"): replace(AZURE, processes=4, variables=(*AZURE.variables, "MASTER_ADDR")),
    ("azureml", "ranks-of-a-node"): replace(AZURE, nodes=1, processes=2, hosts=("127.0.0.1",)),
    ("mpirun", "hosts"): replace(
        HOSTS,
        runtime=Runtime(
            remote_shell="ssh -p 2222", interface="ib0", launcher_args=["--mca", "pml", "ob1"]
        ),
    ),
}


@pytest.mark.parametrize(("launcher", "place"), PLANS)
def test_command_lines(launcher, place, golden):
    command = launch_command(launcher, PROGRAM, PLANS[launcher, place])
    text = "\n".join("python" if part == sys.executable else part for part in command) + "\n"
    golden(GOLDEN / f"{launcher}-{place}.txt", text)


def test_every_launcher_is_held():
    assert {launcher for launcher, _ in PLANS} == set(LAUNCHERS)
    assert {path.name for path in GOLDEN.iterdir()} == {f"{a}-{b}.txt" for a, b in PLANS}


@pytest.mark.parametrize(("launcher", "place"), PLANS)
def test_ranks_run_in_an_environment_of_their_own(launcher, place):
    plan = PLANS[launcher, place]
    words = ("enter", "prefix", "python")
    command = launch_command(launcher, PROGRAM, replace(plan, python=words))
    usual = launch_command(launcher, PROGRAM, plan)
    start = len(usual) - usual[::-1].index(sys.executable) - 1
    assert command == [*usual[:start], *words, *usual[start + 1 :]]


@pytest.mark.parametrize(
    ("launcher", "plan", "message"),
    [
        ("none", NODE, "devices=2, but launcher=none starts one rank; use launcher=torchrun"),
        ("none", SLURM, "launcher=none cannot start ranks on the other nodes of Slurm job 17; use launcher=srun"),
        ("srun", NODE, r"launcher=srun, but this process is not in a Slurm job \(SLURM_JOB_ID is not set\)"),
        *[
            (launcher, replace(NODE, nodes=2), "nodes=2, but this job is not in a Slurm allocation and runt")
            for launcher in LAUNCHERS
        ],
    ],
)  # fmt: skip
def test_a_plan_that_the_launcher_cannot_start_is_refused(launcher, plan, message):
    with pytest.raises(LaunchError, match=message):
        launch_command(launcher, PROGRAM, plan)


@pytest.mark.parametrize(
    ("launcher", "nodes", "devices", "accelerator", "expected"),
    [
        ("torchrun", 1, 1, "auto", {"nodes": 1, "cpus_per_task": 3}),
        ("torchrun", 1, 4, "cpu", {"nodes": 1, "cpus_per_task": 12}),
        ("torchrun", 2, 4, "cpu", {"nodes": 2, "cpus_per_task": 12, "mpi": "srun", "tasks": 2}),
        ("srun", 1, 1, "cpu", {"nodes": 1, "cpus_per_task": 3}),
        ("srun", 2, 1, "cpu", {"nodes": 2, "cpus_per_task": 3, "mpi": "srun", "tasks": 2}),
        ("srun", 1, 4, "cpu", {"nodes": 1, "cpus_per_task": 3, "mpi": "srun", "tasks_per_node": 4}),
        ("azureml", 2, 2, "gpu", {"nodes": 2}),
        ("mpirun", 2, 2, "cpu", {"nodes": 2, "cpus_per_task": 3, "mpi": "srun", "tasks_per_node": 2}),
        (
            "srun", 2, 2, "gpu",
            {"nodes": 2, "cpus_per_task": 3, "mpi": "srun", "tasks_per_node": 2, "gres": "gpu:2", "tasks_per_gpu": 0},
        ),
    ],
)  # fmt: skip
def test_what_is_asked_of_a_scheduler(launcher, nodes, devices, accelerator, expected):
    settings = RunSettings(nodes=nodes, devices=devices, accelerator=accelerator)
    assert requested(settings, Runtime(launcher=launcher, threads_per_rank=3)) == expected
    assert expected.keys() <= set(REQUESTED)
