"""Real trainings whose ranks, or whose jobs, run in conda environments made from a channel of the tests' own."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.config.load import load_project
from shardline.environments.specs import STAGES, specs_of
from tests.support.conda_channel import CondaChannel
from tests.support.workspace import REPOSITORY, TINY_CONFIG, Workspace

TELL = "import sys\n\nwith open('ran-in-{name}', 'a') as file:\n    print(sys.prefix, file=file)\n"
FILES = {
    "mypkg/__init__.py": "",
    "mypkg/models.py": TELL.format(name="train")
    + "\nfrom shardline.training.models.linear import Linear\n\n\nclass Net(Linear):\n    pass\n",
    "mypkg/sources.py": TELL.format(name="data")
    + "\nfrom shardline.data.sources.synthetic import Synthetic\n\n\nclass Rows(Synthetic):\n    pass\n",
}
SOURCE = {"type": "mypkg.sources:Rows", "options": {"rows_per_shard": 200, "features": 8}}
ROW = {"name": "net", "dataset": "rows", "model": "mypkg.models:Net", "devices": 2}


@pytest.fixture
def project(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with a model and a source of its own, and a channel of all that the lock pins."""
    for name, text in FILES.items():
        workspace.write(name, text)
    channel = CondaChannel(tmp_path_factory.mktemp("conda") / "channel")
    configure(workspace, channels=[channel.url])
    for env in STAGES:
        channel.add_all(specs_of(load_project(workdir=workspace.path), env))
    channel.index()
    return workspace


def configure(workspace: Workspace, *, environment: str = "job", **conda: Any) -> None:
    workspace.configure(
        {
            **TINY_CONFIG,
            "datasets": {"rows": {"source": SOURCE, "shards": 2}},
            "conda": {"folder": "envs", **conda},
            "runtime": {"environment": environment},
        },
        [ROW],
    )


def channels(workspace: Workspace) -> list[str]:
    config = yaml.safe_load((workspace.path / "config/config.yaml").read_text())
    return list(config["conda"]["channels"])


@pytest.mark.rotating
@pytest.mark.slow
def test_ranks_train_in_an_environment_that_the_pipeline_makes(project):
    configure(project, environment="conda", channels=channels(project))
    early = project.snakemake()
    assert early.returncode != 0
    assert (
        "train.linux-64.pin.txt is missing, from which the environment 'train' is created"
        in early.stdout
    )
    assert "make lock" in early.stdout

    locked = project.snakemake("lock_envs")
    assert locked.returncode == 0, locked.stdout
    done = project.snakemake("--until", "train")
    assert done.returncode == 0, done.stdout
    made = json.loads((project.path / "results/envs/train/environment.json").read_text())
    assert ran_in(project, "train") == {made["prefix"]}
    assert ran_in(project, "data") == {sys.prefix}
    log = project.the("logs/train/<net>.log").read_text()
    assert f"{made['prefix']}/bin/python -m shardline.launch.stores" in log

    # no identity holds how the versions of the lock were installed, so what is sealed stays
    pins = project.path / "envs/train.linux-64.pin.txt"
    pins.write_text(f"# a comment\n{pins.read_text()}")
    shutil.rmtree(made["prefix"])
    model = project.the("results/runs/<net>/model.safetensors").relative_to(project.path)
    again = project.snakemake(str(model), "--dry-run")
    assert "Nothing to be done" in again.stdout, again.stdout


def ran_in(workspace: Workspace, name: str) -> set[str]:
    """The prefixes in which the project's own module was imported."""
    return set((workspace.path / f"ran-in-{name}").read_text().splitlines())


# What Snakemake asks of a conda, answered by rattler: there is no conda to be had here. Whether
# an environment file without pins is solved alike is conda's own affair.
CONDA = """\
import asyncio, json, sys
from pathlib import Path
from shardline.environments import prefix
from shardline.identity.package_lock import read_pins

home = Path(__file__).parent
words = sys.argv[1:]
if words[:2] == ["info", "--json"]:
    print(json.dumps({"conda_prefix": str(home), "platform": "linux-64"}))
elif words == ["--version"]:
    print("conda 24.9.0")
elif words[:2] == ["config", "--get"]:
    print(json.dumps({"get": {"channel_priority": "strict"}}))
elif words[0] == "create":
    file, target = Path(words[words.index("--file") + 1]), Path(words[words.index("--prefix") + 1])
    (home / "archives").mkdir(exist_ok=True)
    asyncio.run(prefix._install(read_pins(file), target, target, home))
elif words[0] != "clean":
    sys.exit(f"not known here: {words}")
"""


def add_conda(folder: Path) -> dict[str, str]:
    """Put a stand-in for conda into a folder, and return the variable that leads to it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "conda.py").write_text(CONDA)
    program = folder / "bin" / "conda"
    program.write_text(f"""#!/bin/sh\nexec '{sys.executable}' '{folder / "conda.py"}' "$@"\n""")
    program.chmod(0o755)
    (folder / "bin" / "activate").write_text('export PATH="$1/bin:$PATH" CONDA_PREFIX="$1"\n')
    return {"PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


@pytest.mark.rotating
@pytest.mark.slow
def test_snakemakes_own_conda_environments(project, tmp_path_factory):
    """Pin files and post-deploy scripts do for Snakemake what create_env does without a conda."""
    copy = tmp_path_factory.mktemp("copy") / "shardline"
    copy.mkdir()
    shutil.copy(REPOSITORY / "Snakefile", copy)
    for name in ("rules", "scripts", "envs", "profiles"):
        shutil.copytree(REPOSITORY / name, copy / name)
    configure(project, channels=channels(project), folder=str(copy / "envs"))
    locked = project.snakemake("--snakefile", str(copy / "Snakefile"), "lock_envs")
    assert locked.returncode == 0, locked.stdout
    env = add_conda(tmp_path_factory.mktemp("miniconda") / "home")
    done = project.snakemake(
        "--snakefile",
        str(copy / "Snakefile"),
        "--software-deployment-method",
        "conda",
        "--until",
        "train",
        env=env,
    )
    assert done.returncode == 0, done.stdout
    assert "Using pinnings from" in done.stdout
    assert "Failed to install conda environment from pin file" not in done.stdout
    home = project.path / ".snakemake" / "conda"
    (data,), (train,) = ran_in(project, "data"), ran_in(project, "train")
    assert data != train
    for prefix in (data, train):
        assert Path(prefix).parent == home
        (pth,) = Path(prefix).glob("lib/python*/site-packages/shardline.pth")
        assert pth.read_text() == f"{REPOSITORY / 'src'}\n"
