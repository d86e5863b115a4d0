"""Who am I, and what starts us."""

import sys
from pathlib import Path

import pytest

from shardline.errors import LaunchError
from shardline.launch.commands import launch_command
from shardline.launch.world import check_world, resolve_world

COMPLETE = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29400",
}  # fmt: skip
GOLDEN = Path(__file__).parents[1] / "golden"


def test_no_variables_mean_one_process():
    world = resolve_world({"PATH": "/bin"})
    assert (world.rank, world.world_size, world.launcher) == (0, 1, "none")


def test_a_complete_set_is_read():
    world = resolve_world(COMPLETE)
    assert (world.rank, world.local_rank, world.node_rank, world.num_nodes) == (3, 1, 1, 2)
    assert (world.master_addr, world.master_port) == ("node0", 29400)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_partial_set_is_refused_by_name(name):
    env = {key: value for key, value in COMPLETE.items() if key != name}
    with pytest.raises(LaunchError, match=rf"set but {name} not"):
        resolve_world(env)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "4"}, r"RANK=4 is outside 0..3 \(WORLD_SIZE=4\)"),
        ({"LOCAL_RANK": "-1"}, r"LOCAL_RANK=-1 is outside 0..1"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE=four is not a whole number"),
        ({"WORLD_SIZE": "5"}, "WORLD_SIZE=5 is no multiple of LOCAL_WORLD_SIZE=2"),
    ],
)
def test_a_contradiction_is_refused_by_name(change, message):
    with pytest.raises(LaunchError, match=message):
        resolve_world({**COMPLETE, **change})


def test_another_geometry_than_the_run_asks_for_is_refused():
    with pytest.raises(
        LaunchError, match="asks for nodes=1 x devices=4, but torchrun started 2 x 2"
    ):
        check_world(resolve_world(COMPLETE), nodes=1, devices=4)


@pytest.mark.parametrize(("launcher", "devices"), [("torchrun", 2), ("torchrun", 1), ("none", 1)])
def test_command_lines(launcher, devices, request):
    command = launch_command(
        launcher,
        ["-m", "shardline.worker", "run.json"],
        nodes=1,
        devices=devices,
        run_id="mlp-0123456789ab",
    )
    text = "\n".join("python" if part == sys.executable else part for part in command) + "\n"
    golden = GOLDEN / f"launch-{launcher}-{devices}.txt"
    if request.config.getoption("--regen"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("launcher", "nodes", "devices", "message"),
    [
        ("torchrun", 2, 1, "nodes=2, but launcher=torchrun"),
        ("none", 1, 2, "devices=2, but launcher=none"),
    ],
)
def test_a_geometry_that_the_launcher_cannot_start_is_refused(launcher, nodes, devices, message):
    with pytest.raises(LaunchError, match=message):
        launch_command(launcher, [], nodes=nodes, devices=devices, run_id="x")
