"""Which process am I, and where is the leader: recorded environments of Azure ML, and half of one."""

import ast
import sys
from pathlib import Path

import pytest

import snakemake_executor_plugin_azureml.node
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.job_environment import parse_mounts, with_own_mounts
from snakemake_executor_plugin_azureml.node.place import find_place
from snakemake_executor_plugin_azureml.node.shared_files import read_files, write_files
from tests.support.workspace import REPOSITORY

SOURCE = Path(snakemake_executor_plugin_azureml.node.__file__).parent
RECORDED = {
    path.stem: dict(
        line.split("=", 1) for line in path.read_text().splitlines() if not line.startswith("#")
    )
    for path in sorted((REPOSITORY / "tests" / "data" / "environments").glob("azureml*.env"))
}
# rank, size, node, local rank, processes per node, addresses of the leader
PLACES = {
    "azureml-mpi-2x1-master-ip": (1, 2, 1, 0, 1, ("10.0.0.4",)),
    "azureml-pytorch-torchrun-2x2": (2, 4, 1, 0, 2, ("10.0.0.5",)),
    "azureml-v1-mpi-2x4": (5, 8, 1, 1, 4, ("10.0.0.4",)),
    "azureml-v1-pytorch-2x4": (6, 8, 1, 2, 4, ("10.0.0.4",)),
    "azureml-v2-mpi-1x4": (2, 4, 0, 2, 4, ("127.0.0.1",)),
    "azureml-v2-mpi-2x1-localhost": (1, 2, 1, 0, 1, ()),
    "azureml-v2-pytorch-2x4": (3, 8, 0, 3, 4, ("10.0.0.4",)),
}
PYTORCH = {**RECORDED["azureml-v1-pytorch-2x4"], "LOCAL_RANK": "2"}
MPI = RECORDED["azureml-v1-mpi-2x4"]


def without(env, *names):
    return {name: value for name, value in env.items() if name not in names}


def test_places_in_recorded_environments():
    found = {}
    for name, env in RECORDED.items():
        place = find_place(env)
        found[name] = (
            place.rank, place.size, place.node, place.local_rank, place.per_node, place.addresses
        )  # fmt: skip
        assert place.job == env["AZUREML_RUN_ID"]
        assert not {6000, 6105} & set(place.ports)
    assert found == PLACES


def test_one_process_where_nothing_is_said():
    place = find_place({"PATH": "/bin", "AZUREML_RUN_ID": "x", "AZUREML_NODE_COUNT": "1"})
    assert (place.rank, place.size, place.node) == (0, 1, 0)


def test_the_first_node_of_a_job_that_tells_no_processes_per_node():
    place = find_place({**PYTORCH, "RANK": "1", "LOCAL_RANK": "1", "NODE_RANK": "0"})
    assert (place.rank, place.node, place.per_node, place.node_of(5)) == (1, 0, 0, None)


def test_one_process_for_each_node_without_its_rank():
    env = {"AZUREML_RUN_ID": "x", "NODE_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.4"}
    place = find_place(env)
    assert (place.rank, place.size, place.node, place.local_rank) == (1, 2, 1, 0)


def test_of_a_list_of_nodes_each_may_be_the_leaders():
    env = without(MPI, "AZ_BATCH_MASTER_NODE") | {"AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
    assert find_place(env).addresses == ("10.0.0.4", "10.0.0.5")


def test_all_processes_know_the_same_ports_and_other_jobs_others():
    ports = find_place(MPI).ports
    assert find_place({**MPI, "OMPI_COMM_WORLD_RANK": "2"}).ports == ports
    assert find_place({**MPI, "AZUREML_RUN_ID": "another"}).ports != ports
    assert find_place({**MPI, "MASTER_PORT": str(ports[0])}).ports == ports[1:]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (without(MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), "OMPI_COMM_WORLD_LOCAL_SIZE not set; find out what"),
        ({**MPI, "RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "RANK=1, WORLD_SIZE=8, but OMPI_COMM_.*=5"),
        ({**MPI, "OMPI_COMM_WORLD_RANK": "8"}, "OMPI_COMM_WORLD_RANK=8.* are not a rank among 8 processes"),
        ({**MPI, "OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK=-1 is not an integer"),
        (without(PYTORCH, "LOCAL_RANK"), "NODE_RANK=1, but LOCAL_RANK is not set"),
        (without(PYTORCH, "NODE_RANK"), "no variable contains the number of this node; set NODE_RANK"),
        (without(MPI, "AZUREML_RUN_ID"), "AZUREML_RUN_ID is not set, by which the processes"),
        ({"AZUREML_NODE_COUNT": "2"}, "AZUREML_NODE_COUNT=2, but .* azureml_distribution: pytorch or mpi"),
    ],
)  # fmt: skip
def test_half_an_environment_is_refused(env, message):
    with pytest.raises(NodeError, match=message):
        find_place(env)


def test_mounts(tmp_path):
    assert parse_mounts([f"STORE={tmp_path}/"]) == {"STORE": str(tmp_path)}
    for text, message in (
        ("STORE=", "STORE=: an empty path is not a folder"),
        (f"STORE={tmp_path}/x", "x is not a folder on .* check in Azure ML's own log"),
        ("2=/", "'2' cannot be a variable; write NAME=PATH"),
    ):
        with pytest.raises(NodeError, match=message):
            parse_mounts([text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("/a/m", "/b/m"), ("/a/m/x", "/b/m/x"), ("--x=/a/m/x", "--x=/b/m/x"), ("/a/mx", "/a/mx"), ("/c/a/m", "/c/a/m")],
)  # fmt: skip
def test_arguments_below_a_mount_become_the_processes_own(text, expected):
    assert with_own_mounts(text, {"STORE": "/a/m"}, {"STORE": "/b/m"}) == expected


# Files


def folders(tmp_path):
    there, here = tmp_path / "leader", tmp_path / "follower"
    there.mkdir()
    here.mkdir()
    return there, here


def test_files_get_the_same_relative_path(tmp_path):
    there, here = folders(tmp_path)
    (there / "a").mkdir()
    (there / "a/b.json").write_text("{}")
    (there / "c").write_bytes(b"\0" * 10)
    entries, payload = read_files(["a/b.json", str(there / "c")], there)
    for _ in range(2):  # what is there already is the same
        write_files(entries, payload, here)
    assert (here / "a/b.json").read_text() == "{}"
    assert (here / "c").read_bytes() == b"\0" * 10
    assert sorted(path.name for path in here.rglob("*")) == ["a", "b.json", "c"]


def test_another_file_is_never_overwritten(tmp_path):
    there, here = folders(tmp_path)
    (there / "f").write_text("new")
    (here / "f").write_text("mine")
    with pytest.raises(NodeError, match="f already exists and differs from the leader's"):
        write_files(*read_files(["f"], there), here)
    assert (here / "f").read_text() == "mine"


@pytest.mark.parametrize("path", ["../f", "/etc/hostname", "a/../../f"])
def test_files_elsewhere_are_refused_by_both_ends(tmp_path, path):
    there, here = folders(tmp_path)
    (tmp_path / "f").write_text("x")
    with pytest.raises(NodeError, match="is not below the working folder"):
        read_files([path], there)
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    with pytest.raises(NodeError, match="is not below"):
        write_files([{"path": path, "size": 1, "sha256": digest}], b"x", here)


def test_a_link_out_of_the_folder_is_not_written_through(tmp_path):
    there, here = folders(tmp_path)
    (there / "m").mkdir()
    (there / "m" / "f").write_text("x")
    (tmp_path / "mount").mkdir()
    (here / "m").symlink_to(tmp_path / "mount")
    with pytest.raises(NodeError, match="m/f is not below"):
        write_files(*read_files(["m/f"], there), here)


def test_missing_and_bulky_files_are_refused(tmp_path):
    with pytest.raises(NodeError, match=r"--file x cannot be read \(No such file"):
        read_files(["x"], tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(NodeError, match="read bulky data from a mount"):
        read_files(["large"], tmp_path)


def test_changed_content_is_refused(tmp_path):
    (tmp_path / "f").write_text("one")
    entries, _ = read_files(["f"], tmp_path)
    with pytest.raises(NodeError, match="f was changed on the way"):
        write_files(entries, b"two", tmp_path)


# The node program runs where nothing but Python may be installed


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_standard_library_is_imported(path: Path):
    allowed = {*sys.stdlib_module_names, "snakemake_executor_plugin_azureml"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        for name in names:
            assert name.split(".")[0] in allowed
            if name.startswith("snakemake_executor_plugin_azureml"):
                assert name.startswith("snakemake_executor_plugin_azureml.node")
