"""A training inside of the image, as a user runs it: built, pushed, run by the digest that the registry has."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shardline.config.resolved import RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.core.digests import file_sha256
from shardline.core.variables import OF_PYTHON
from shardline.errors import LaunchError
from shardline.training.rank_task import Preflight, RankTask, write_task
from tests.support.container_engine import BASE, RUN_ARGS, shorten_lock
from tests.support.processes import wait_until
from tests.support.rank_tasks import rank_runtime
from tests.support.workspace import TINY_CONFIG, Workspace

pytestmark = pytest.mark.rotating("project")  # together: it takes four minutes to make

ROW = {"name": "linear", "dataset": "digits", "model": "linear", "devices": 2}


@pytest.fixture(scope="module")
def project(engine, registry, tmp_path_factory):
    """A project whose run was trained inside of an image that is in the registry."""
    workspace = Workspace(tmp_path_factory.mktemp("project"))
    needs = importlib.metadata.requires("shardline") or []
    roots = [need for need in needs if "extra ==" not in need]
    names = [need.partition(";")[0].strip() for need in roots]
    shorten_lock(workspace.path / "lock.txt", [name_of(name) for name in names])
    image = {
        "base": BASE,
        "tool": "podman",
        "build_args": engine.build_args,
        "push": f"{registry.address}/shardline",
        "push_args": ["--tls-verify=false"],
        "run_args": [*RUN_ARGS, "--tls-verify=false"],
    }
    runtime = {"environment": "image", "threads_per_rank": 1}
    config = {**TINY_CONFIG, "lock": "lock.txt", "image": image, "runtime": runtime}
    workspace.configure(config, [ROW])
    done = subprocess.run(
        workspace.command(), cwd=workspace.path, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    logs = sorted((workspace.path / "logs").rglob("*.log"))
    assert done.returncode == 0, done.stdout + "".join(log.read_text()[-2000:] for log in logs)
    return workspace


def name_of(requirement):
    """Return the name in `name[extra]>=1`."""
    return requirement.split("[")[0].split("=")[0].rstrip("<>!~= ")


def image_of(project):
    return json.loads((project.path / "results" / "envs" / "image.json").read_text())


@pytest.mark.slow
def test_the_digest_in_the_provenance_is_the_one_that_ran(engine, registry, project):
    image = image_of(project)
    repository, _, tag = engine.image(image["id"])["RepoTags"][0].rpartition(":")
    assert repository == f"{registry.address}/shardline"
    assert image["digest"] == registry.digest("shardline", tag)
    assert image["lock"] == file_sha256(project.path / "lock.txt")

    provenance = json.loads((project.path / "results/latest/linear/provenance.json").read_text())
    assert provenance["environment"]["image"] == image["digest"]
    assert provenance["world"]["world_size"] == 2
    # what the engine itself says was started
    events = engine.podman("events", "--stream=false", "--filter=event=start", "--format=json")
    started = [json.loads(line) for line in events.splitlines()]
    assert started[-1]["Image"] == f"{repository}@{image['digest']}"
    assert engine.image(started[-1]["Image"])["Id"] == image["id"].removeprefix("sha256:")


@pytest.mark.slow
def test_nothing_is_to_be_done_again_out_here_or_in_there(engine, project):
    assert "Nothing to be done" in project.snakemake().stdout
    command = [
        "podman", "run", "--rm", *RUN_ARGS, "--network=host",
        f"--volume={project.path}:{project.path}", f"--workdir={project.path}", image_of(project)["id"],
        "snakemake", "--snakefile", "/opt/shardline/workflow/Snakefile",
        "--profile", "/opt/shardline/workflow/profiles/local",
    ]  # fmt: skip
    inside = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Nothing to be done" in inside.stderr


def container(project, *program):
    """Return the command that starts a rank's container, as the log of the training has it."""
    (line,) = [
        line for line in (project.the("logs/train/<linear>.log")).read_text().splitlines()
        if "shardline.environments.container" in line
    ][-1:]  # fmt: skip
    words = line.split()
    begin, end = words.index("podman"), words.index("shardline.launch.exit_on_stdin_close") + 2
    entry = [sys.executable, "-m", "shardline.environments.container"]
    return [*entry, *words[begin:end], *program]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_container_outlives_what_started_it(engine, project, number):
    up = "import time; print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        container(project, "-c", up), stdout=subprocess.PIPE, text=True, cwd=project.path
    )
    assert process.stdout.readline() == "up\n"
    assert engine.containers() == [image_of(project)["id"].removeprefix("sha256:")]
    process.send_signal(number)
    assert process.wait(300) != 0
    engine.wait_for_none()


@pytest.mark.slow
def test_ctrl_c_ends_the_training_and_its_container(engine, project):
    config = yaml.safe_load((project.path / "config/config.yaml").read_text())
    # of another seed, so that it does not continue the run that was trained before
    project.configure(config, [{**ROW, "name": "long", "seed": 2, "trainer.max_epochs": 5000}])
    process = subprocess.Popen(
        project.command("--until", "train"), cwd=project.path, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_until(lambda: any(project.matching("store/work/<long>/metrics.jsonl")), process)
    assert engine.containers()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=300)
    assert process.returncode != 0
    engine.wait_for_none()
    project.configure(config, [ROW])


@pytest.mark.slow
def test_ranks_that_do_not_see_their_launcher_from_inside_are_named(project):
    """What an MPI inside that does not match the one outside comes to: each rank takes itself for the only one."""
    given = {"dataset": "rows", "global_batch": 8, "nodes": 1, "devices": 2, "accelerator": "cpu"}
    settings = as_type(fill(given, schema_of(RunSettings)), RunSettings)
    task = RankTask(
        run=RunSpec(run="linear", model_class="linear:Linear", settings=settings),
        action=Preflight(output=Path("results/alone.json")),
        work=Path("store/work/alone"),
        rank_logs=Path("logs/alone"),
        runtime=rank_runtime(rendezvous_timeout_s=30, oversubscribe=False),
    )
    write_task(project.path / "store/work/alone/rank.json", task)
    program = ["-m", "shardline.training.rank", "store/work/alone/rank.json"]
    entered = container(project, *program)
    told = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }
    # straight into the container, without what hands the launcher's variables on
    process = subprocess.Popen(
        entered[entered.index("podman") :], cwd=project.path,
        env={**os.environ, **OF_PYTHON, **told},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.wait(300) == LaunchError.exit_code
    (failure,) = (project.path / "store/work/alone/errors").rglob("*.json")
    message = "world_size=1 in process .* but nodes=1 x devices=2 are planned: .* would train alone"
    assert re.search(message, failure.read_text())
