"""A program that reads by `shardline_io`, through the node program: two nodes that share the mounted store alone."""

import shlex

import pytest

from tests.azureml.node_jobs import NODES, Job
from tests.azureml.test_node import TWO, machines  # noqa: F401  # a fixture
from tests.support.frameworks import Project, assert_same
from tests.support.workspace import Workspace

MODELS = {"whole": "script: train.py"}


@pytest.mark.slow
@pytest.mark.rotating
def test_a_program_on_two_nodes_gives_what_one_machine_gives(machines, tmp_path):  # noqa: F811
    local = Project.of("torchrun", tmp_path / "local")
    local.configure(MODELS)
    local.run()
    job = Job(machines, tmp_path)
    # the machines' names mean no address, by which gloo would find the interface
    runtime = {"launcher": "azureml", "interface": "eth0", "rendezvous_timeout_s": 60}
    for name in NODES:  # the code snapshot is on all
        Project.of("torchrun", tmp_path / name).configure(MODELS, nodes=2, runtime=runtime)
    here = Project(Workspace(tmp_path / "node-a"), "torchrun")
    command = [*here.command(here.path / "profiles/local", "--until", "train"), "--jobs", "1"]
    mounted = ("--mount", f"SHARDLINE_STORE={job.shared}")
    job.start(shlex.join(command), TWO, *mounted, wait_s=60)
    codes = job.codes(240)
    assert set(codes) == {0}, job.logs() + here.logs()
    trained = here.trained("whole", store=job.shared)
    assert trained.hosts == ["node-a", "node-b"]
    assert_same(trained, local.trained("whole"))
