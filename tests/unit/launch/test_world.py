"""Who am I: recorded environments of real launchers, and what is done with half of one."""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import MappingProxyType

import pytest
from lightning_fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from shardline.core.world import World
from shardline.errors import LaunchError
from shardline.launch.export import export_world, with_hosts
from shardline.launch.launched_world import check_world, derived_port, expand_nodelist, expand_tasks
from shardline.launch.resolve import resolve_world
from tests.support.processes import free_port

FOLDER = Path(__file__).parents[2] / "data" / "environments"
RECORDED = {
    path.stem: dict(
        line.split("=", 1) for line in path.read_text().splitlines() if not line.startswith("#")
    )
    for path in sorted(FOLDER.glob("*.env"))
}
NODES = ("n1", "n2")
ALONE = (0, 0, 1, 1, "none", "127.0.0.1", 0, ())
# rank, local rank, world size, local world size, launcher, master address and port, hosts
WORLDS = {
    "azureml-mpi-2x1-master-ip": (1, 0, 2, 1, "azureml", "10.0.0.4", 6105, ()),
    "azureml-pytorch-torchrun-2x2": (2, 0, 4, 2, "torchrun", "10.0.0.5", 6105, ()),
    "azureml-v1-mpi-2x4": (5, 1, 8, 4, "azureml", "10.0.0.4", 6000, ()),
    "azureml-v1-pytorch-2x4": (6, 2, 8, 4, "azureml", "10.0.0.4", 6105, ()),
    "azureml-v2-mpi-1x4": (2, 2, 4, 4, "azureml", "127.0.0.1", 6105, ()),
    "azureml-v2-pytorch-2x4": (3, 3, 8, 4, "azureml", "10.0.0.4", 6105, ()),
    "cray-pals-2x4": (6, 2, 8, 4, "mpiexec", "n1", 29500, ()),
    "deepspeed-2x2": (3, 1, 4, 2, "torch", "n1", 29500, ()),
    "intelmpi-2x2": (3, 1, 4, 2, "mpiexec", "n1", 29500, ()),
    "kubernetes-2x1": (1, 0, 2, 1, "kubernetes", "train-master-0", 23456, ()),
    "kubernetes-master-2x1": (0, 0, 2, 1, "kubernetes", "localhost", 23456, ()),
    "mpich-2x2": (3, 1, 4, 2, "mpiexec", "n1", 29500, ()),
    "openmpi4-2x2": (3, 1, 4, 2, "mpirun", "n1", 29500, ()),
    "openmpi4-in-slurm-2x2": (2, 0, 4, 2, "mpirun", "n1", 29500, ()),
    "openmpi4-in-slurm-first-node-2x2": (1, 1, 4, 2, "mpirun", "n1", 29500, ()),
    "openmpi5-2x2": (3, 1, 4, 2, "mpirun", "n1", 29500, ()),
    "slurm-batch-one-task": ALONE,
    "slurm-interactive-one-task": ALONE,
    "slurm-salloc-one-task": ALONE,
    "srun-2x2": (3, 1, 4, 2, "srun", "n1", derived_port("1.0"), NODES),
    "srun-direct-2x2": (1, 1, 4, 2, "srun", "n1", derived_port("4.0"), NODES),
    "srun-one-task-of-2x2": (0, 0, 1, 1, "srun", "127.0.0.1", 0, ("n1",)),
    "srun-pmi2-2x2": (2, 0, 4, 2, "srun", "n1", derived_port("1.2"), NODES),
    "srun-with-master-2x2": (2, 0, 4, 2, "srun", "n1", 29500, NODES),
    "torch-launch-1.8-1x4": (3, 3, 4, 4, "torch", "127.0.0.1", 29500, ()),
    "torch-launch-1x2": (1, 1, 2, 2, "torchrun", "127.0.0.1", 29433, ()),
    "torchrun-agents-by-mpirun-2x2": (2, 0, 4, 2, "torchrun", "n1", 40705, ()),
    "torchrun-agents-by-srun-2x2": (2, 0, 4, 2, "torchrun", "n1", 46189, ()),
    "torchrun-in-batch-step": (1, 1, 2, 2, "torchrun", "n1", 39807, ()),
    "torchrun-standalone-1x2": (1, 1, 2, 2, "torchrun", "localhost", 40383, ()),
    "torchrun-static-2x2": (2, 0, 4, 2, "torchrun", "n1", 29500, ()),
}
IN_NO_STEP = r"SLURM_NTASKS=4 in Slurm job \d, but this process is not in a step of the job"
REFUSED = {
    "azureml-v2-mpi-2x1-localhost": r"OMPI_COMM_WORLD_SIZE=2 on 2 nodes .*no MASTER_ADDR or AZ_BATCH_MASTER",
    "cray-pals-pmix": "PALS_RANKID, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE set but PMI_SIZE not",
    "kubernetes-pod-of-two": "PET_NPROC_PER_NODE=2 .*RANK=1 is a pod, not a rank; start .* torchrun",
    "openmpi4-bynode-2x2": "OMPI_COMM_WORLD_RANK=1 does not match OMPI_COMM_WORLD_LOCAL_RANK=0 .*--map-by slot",
    "openmpi4-in-slurm-without-master-2x2": r"OMPI_COMM_WORLD_RANK=2.* no MASTER_ADDR names rank 0's node",
    "openmpi4-without-master-1x2": r"OMPI_COMM_WORLD_RANK=1.* MASTER_PORT is not set; .*mpirun -x",
    "pmix-alone": "PMIX_RANK set but RANK, WORLD_SIZE not",
    "slurm-batch-2x2": IN_NO_STEP,
    "slurm-interactive-2x2": IN_NO_STEP,
    "slurm-salloc-2x2": IN_NO_STEP,
    "srun-cyclic-2x2": "SLURM_PROCID=1 does not match SLURM_LOCALID=0 .*srun --distribution=block",
    "srun-uneven": "SLURM_STEP_TASKS_PER_NODE=2,1 is uneven",
    "torch-launch-1.8-2x2": "set but LOCAL_WORLD_SIZE not",
    "torchrun-too-many-agents": r"WORLD_SIZE=4 on 2 nodes \(torchrun\), but .*SLURM_STEP_NUM_TASKS=4",
}
COMPLETE = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29400",
}  # fmt: skip


def place(world):
    return (world.rank, world.local_rank, world.world_size, world.local_world_size)


def test_every_recorded_environment_is_expected():
    assert sorted(RECORDED) == sorted([*WORLDS, *REFUSED])


@pytest.mark.parametrize("name", WORLDS)
def test_a_recorded_environment_is_read(name):
    world = resolve_world(MappingProxyType(RECORDED[name]))
    seen = (*place(world), world.launcher, world.master_addr, world.master_port, world.hosts)
    assert seen == WORLDS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_recorded_environment_is_refused_by_name(name):
    with pytest.raises(LaunchError, match=REFUSED[name]):
        resolve_world(RECORDED[name])


@pytest.mark.parametrize("name", WORLDS)
def test_a_value_says_where_it_came_from(name):
    env, world = RECORDED[name], resolve_world(RECORDED[name])
    assert {"rank", "world_size", "local_rank", "local_world_size", "master_addr"} <= set(
        world.origins
    )
    for value, origin in world.origins.items():
        variable, _, rest = origin.partition("=")
        if variable in env:
            assert rest.startswith(env[variable]), value


def outcome(env):
    try:
        return resolve_world(env)
    except LaunchError as error:
        return str(error)


@pytest.mark.parametrize("name", WORLDS)
def test_an_environment_without_one_or_two_of_its_variables_never_gives_another_place(name):
    env, world = RECORDED[name], resolve_world(RECORDED[name])
    for lost in [*combinations(env, 1), *combinations(env, 2)]:
        found = outcome({key: value for key, value in env.items() if key not in lost})
        if isinstance(found, str):
            assert any(variable in found for variable in env), found
            continue
        assert place(found) == place(world), lost
        # Azure has a port of its own for jobs without this variable
        if len(lost) == 1 and lost != ("AZ_BATCH_MASTER_NODE",):
            assert found.master_port == world.master_port, lost
            assert found.master_addr == world.master_addr, lost


def test_no_variables_mean_one_process():
    world = resolve_world({"PATH": "/bin", "SLURM_JOB_ID": "7"})
    assert (world.rank, world.world_size, world.launcher) == (0, 1, "none")


@pytest.mark.parametrize("name", COMPLETE)
def test_a_partial_set_is_refused_by_name(name):
    env = {key: value for key, value in COMPLETE.items() if key != name}
    with pytest.raises(LaunchError, match=rf"set but {name} not"):
        resolve_world(env)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "4"}, r"RANK=4 is outside 0..3 \(WORLD_SIZE=4\)"),
        ({"LOCAL_RANK": "-1"}, r"LOCAL_RANK=-1 is outside 0..1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 must be at least 1"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE=four is not an integer"),
        ({"WORLD_SIZE": "5"}, "WORLD_SIZE=5 is not a multiple of LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_RANK": "0"}, "RANK=3 does not match LOCAL_RANK=0 with"),
        ({"NODE_RANK": "0"}, "NODE_RANK=0, but RANK=3 // 2 is 1"),
        (
            {"MASTER_ADDR": "127.0.0.1"},
            r"MASTER_ADDR=127.0.0.1 is a loopback address, .*on node 1 of 2",
        ),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0 is not a TCP port"),
        ({"SHARDLINE_HOSTS": "a,b,c"}, "SHARDLINE_HOSTS=a,b,c lists 3 nodes, but .* are on 2"),
        (RECORDED["openmpi4-2x2"] | {"OMPI_COMM_WORLD_SIZE": "8"}, "OMPI_COMM_WORLD_SIZE=8"),
    ],
)
def test_a_contradiction_is_refused_by_name(env, message):
    with pytest.raises(LaunchError, match=message):
        resolve_world({**COMPLETE, "RANK": "3", **env})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("openmpi4-2x2", {"PMIX_RANK": "1"}, "OMPI_COMM_WORLD_RANK=3, but PMIX_RANK=1"),
        ("openmpi4-2x2", {"RANK": "1"}, r"RANK=1, but OMPI_COMM_WORLD_RANK=3 \(mpirun\); unset"),
        ("srun-2x2", {"WORLD_SIZE": "8"}, r"WORLD_SIZE=8, but SLURM_STEP_NUM_TASKS=4 \(srun\)"),
        ("srun-2x2", {"MASTER_PORT": "29500"}, "MASTER_PORT is set but MASTER_ADDR is not"),
        ("srun-2x2", {"MASTER_ADDR": "n1"}, "MASTER_PORT is not set"),
        (
            "srun-2x2",
            {"SLURM_STEP_TASKS_PER_NODE": "2"},
            "counts 2 tasks, but SLURM_STEP_NUM_TASKS=4",
        ),
        ("slurm-batch-one-task", {"MASTER_ADDR": "n1"}, "MASTER_ADDR set but RANK, WORLD_SIZE not"),
        ("azureml-v2-pytorch-2x4", {"AZUREML_NODE_COUNT": "3"}, "evenly over AZUREML_NODE_COUNT=3"),
    ],
)
def test_a_leftover_of_another_launcher_is_refused_by_name(name, change, message):
    with pytest.raises(LaunchError, match=message):
        resolve_world({**RECORDED[name], **change})


def test_another_geometry_than_the_run_asks_for_is_refused():
    told = r"nodes=1 x devices=4, but torch started 2 x 2 \(from WORLD_SIZE=4, LOCAL_WORLD_SIZE=2\)"
    with pytest.raises(LaunchError, match=told):
        check_world(resolve_world(COMPLETE), nodes=1, devices=4)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],gpu-a", ["n1", "n2", "n3", "n07", "gpu-a"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]c[3-4]-ib,x", ["r1c3-ib", "r1c4-ib", "r2c3-ib", "r2c4-ib", "x"]),
        ("10.0.0.4,10.0.0.5", ["10.0.0.4", "10.0.0.5"]),
    ],
)
def test_slurms_host_list_is_expanded(text, hosts):
    assert list(expand_nodelist(text)) == hosts


@pytest.mark.parametrize("text", ["", "n[1-3", "n[3-1]", "n[a-c]", "a,,b", "n[]"])
def test_what_is_no_host_list_is_refused(text):
    with pytest.raises(LaunchError, match="write it as Slurm does"):
        expand_nodelist(text)


def test_slurms_counts_are_expanded():
    assert expand_tasks("2(x3),1") == (2, 2, 2, 1)
    with pytest.raises(LaunchError, match=r"2\(x\),1 is not a list of counts"):
        expand_tasks("2(x),1")


def test_a_port_follows_from_the_job_and_the_attempt():
    ports = [derived_port(str(job)) for job in range(1000)]
    assert all(20000 <= port < 32768 for port in ports)
    assert len(set(ports)) > 950  # two jobs on a node hardly ever meet
    assert derived_port("17") == derived_port("17", 0) != derived_port("17", 1)
    assert derived_port("17") == 21016  # the same on every machine and in every version


def worlds(num_nodes, each, **change):
    return [
        World(
            rank=rank, local_rank=rank % each, world_size=num_nodes * each, local_world_size=each,
            **{"master_addr": "n1", "master_port": 29500, "launcher": "srun", **change},
        )
        for rank in range(num_nodes * each)
    ]  # fmt: skip


@pytest.mark.parametrize("hosts", [NODES, ()])
def test_what_is_exported_is_resolved_to_the_same_world(hosts):
    for world in worlds(2, 3, hosts=hosts):
        found = resolve_world(export_world(world))
        assert place(found) == place(world)
        assert (found.node_rank, found.num_nodes) == (world.node_rank, 2)
        assert (found.master_addr, found.master_port, found.hosts) == ("n1", 29500, hosts)
    alone = resolve_world({})
    assert place(resolve_world(export_world(alone))) == place(alone)


@pytest.mark.parametrize(
    "name", ["srun-with-master-2x2", "openmpi4-in-slurm-2x2", "torchrun-agents-by-srun-2x2"]
)
def test_what_is_exported_inside_a_launcher_is_still_the_same_place(name):
    world = resolve_world(RECORDED[name])
    found = resolve_world({**RECORDED[name], **export_world(world)})
    assert place(found) == place(world)
    assert (found.master_addr, found.master_port) == (world.master_addr, world.master_port)


def test_tensorflow_finds_its_cluster_in_the_documented_format():
    for world in worlds(2, 2, hosts=NODES):
        assert json.loads(export_world(world)["TF_CONFIG"]) == {
            "cluster": {"worker": ["n1:29501", "n1:29502", "n2:29501", "n2:29502"]},
            "task": {"type": "worker", "index": world.rank},
        }
    one_node = export_world(worlds(1, 2)[1])
    assert json.loads(one_node["TF_CONFIG"])["cluster"]["worker"] == ["n1:29501", "n1:29502"]
    with pytest.raises(LaunchError, match=r"worker 0 would listen on port 65536.*below 65535"):
        export_world(worlds(1, 2, master_port=65535)[0])


def test_without_the_nodes_names_only_tensorflow_goes_without():
    known, unknown = (export_world(worlds(2, 2, hosts=hosts)[3]) for hosts in (NODES, ()))
    assert set(known) - set(unknown) == {"TF_CONFIG", "SHARDLINE_HOSTS"}
    assert unknown.items() <= known.items()


def test_nodes_that_torchrun_has_not_named_get_the_addresses_at_which_the_ranks_met():
    ranks = [{"address": address} for address in ("127.0.1.1", "127.0.1.1", "10.0.0.2", "fe80::2")]
    for world in worlds(2, 2, launcher="torchrun"):
        assert with_hosts(world, ranks).hosts == ("n1", "10.0.0.2")
    for known in (*worlds(2, 2, hosts=NODES), *worlds(1, 4)):
        assert with_hosts(known, ranks) == known
    workers = json.loads(export_world(with_hosts(worlds(4, 1)[0], ranks))["TF_CONFIG"])["cluster"]
    assert workers["worker"][2:] == ["10.0.0.2:29501", "[fe80::2]:29501"]


def test_the_documented_variables_of_other_programs_are_there(monkeypatch):
    world = worlds(2, 2)[3]
    variables = export_world(world)
    expected = {
        # DeepSpeed's launcher
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2", "CROSS_RANK": "1",
        "CROSS_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500",
        # Accelerate and torchrun
        "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        # scripts that look for Open MPI
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1",
    }  # fmt: skip
    assert expected.items() <= variables.items()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    elastic, lightning = TorchElasticEnvironment(), LightningEnvironment()
    assert (elastic.global_rank(), elastic.local_rank(), elastic.node_rank()) == (3, 1, 1)
    assert (elastic.world_size(), elastic.main_address, elastic.main_port) == (4, "n1", 29500)
    assert LightningEnvironment.detect()
    assert lightning.creates_processes_externally
    assert (lightning.local_rank(), lightning.node_rank(), lightning.main_port) == (1, 1, 29500)


def test_a_program_that_knows_nothing_of_shardline_meets_by_the_exported_variables():
    port = free_port()
    program = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo');"
        "rank = torch.tensor(dist.get_rank() + 1); dist.all_reduce(rank); print(int(rank))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **export_world(world)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for world in worlds(1, 2, master_addr="127.0.0.1", master_port=port)
    ]
    assert [child.communicate(timeout=300)[0].strip() for child in started] == ["3", "3"]
