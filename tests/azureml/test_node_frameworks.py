"""Programs that read by `shardline_io`, through the node program: two nodes that share the mounted store alone."""

import shlex

import pytest

from tests.azureml.node_jobs import NODES, Job
from tests.azureml.test_node import TWO, machines, two_machines  # noqa: F401  # a fixture
from tests.support.frameworks import WHOLE, WITHOUT_MPI, Project, assert_same, node_cache
from tests.support.workspace import Workspace

MODELS = {"whole": "script: train.py"}
# JAX's gloo listens at the address that the node's own name means, and has no setting for it.
BY_NAME = ("jax",)


@pytest.fixture(scope="module")
def named_machines(tmp_path_factory):
    hosts = tmp_path_factory.mktemp("etc") / "hosts"
    lines = [f"{address} {name}\n" for name, address in NODES.items()]
    hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    with two_machines({hosts: "/etc/hosts"}) as nodes:
        yield nodes


@pytest.fixture
def nodes(framework, request):
    return request.getfixturevalue("named_machines" if framework in BY_NAME else "machines")


@pytest.mark.slow
@pytest.mark.rotating
def test_a_program_on_two_nodes_gives_what_one_machine_gives(machines, tmp_path):  # noqa: F811
    same_on_two_nodes("torchrun", machines, tmp_path)


@pytest.mark.slow
@pytest.mark.places
@pytest.mark.parametrize("framework", WITHOUT_MPI)
def test_a_program_of_any_framework_gives_on_two_nodes_what_one_machine_gives(
    framework, nodes, tmp_path, record
):
    record(framework, "Azure ML", "azureml")
    same_on_two_nodes(framework, nodes, tmp_path)


def same_on_two_nodes(framework, nodes, folder):
    if (local := WHOLE.get(framework)) is None:
        local = Project.of(framework, folder / "local")
        local.configure(MODELS)
        local.run()
    job = Job(nodes, folder)
    # the machines' names mean no address, by which gloo would find the interface
    runtime = {"launcher": "azureml", "interface": "eth0", "rendezvous_timeout_s": 60}
    for name in NODES:  # the code snapshot is on all
        Project.of(framework, folder / name).configure(MODELS, nodes=2, runtime=runtime)
    here = Project(Workspace(folder / "node-a"), framework)
    command = [*here.command(here.path / "profiles/local", "--until", "train"), "--jobs", "1"]
    mounted = ("--mount", f"SHARDLINE_STORE={job.shared}")
    cache = str(node_cache(folder / "cache"))  # the machines reach no index of packages
    job.start(shlex.join(command), TWO, *mounted, wait_s=60, XDG_CACHE_HOME=cache)
    codes = job.codes(900)
    assert set(codes) == {0}, job.logs() + here.logs()
    trained = here.trained("whole", store=job.shared)
    assert trained.hosts == ["node-a", "node-b"]
    assert_same(trained, local.trained("whole"))
