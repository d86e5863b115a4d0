"""One source of truth: the lock, the conda environments made from it, and their pin files."""

from pathlib import Path

import pytest
import yaml

from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.core.package import workflow_folder
from shardline.environments.specs import (
    STAGES,
    checked_pins,
    env_file,
    pin_file,
    read_specs,
    specs_of,
    write_specs,
)
from shardline.errors import ConfigError
from shardline.identity.package_lock import load_lock
from tests.support.fake_project import FakeProject
from tests.support.workspace import REPOSITORY

LOCK = """\
torch==2.12.0+cpu
    # via shardline
numpy==2.4.6 ; python_version >= "3.11"
    # via
    #   shardline
    #   torch
numpy==2.2.6 ; python_version < "3.11"
    # via shardline
msgpack==1.1
    # via timm
timm==1.0
    # via shardline
left-pad==3
    # via shardline
"""


@pytest.fixture(scope="module")
def shipped() -> Project:
    return load_project(workdir=REPOSITORY)


def plain(specs: list[str]) -> set[str]:
    """The packages asked for, without Python, whose version is that of whoever wrote the files."""
    return {spec for spec in specs if not spec.startswith("python =3")}


@pytest.mark.parametrize("env", STAGES)
def test_shipped_environments_are_those_of_the_lock(env, shipped):
    document = yaml.safe_load(env_file(shipped, env).read_text())
    assert plain(document["dependencies"]) == plain(specs_of(shipped, env))
    assert document["dependencies"][0] in ("python =3.11", "python =3.12")
    assert document["channels"] == ["conda-forge", "nodefaults"]


def test_shipped_pins_satisfy_their_environments(shipped):
    """Those that are committed; `make lock` writes them where conda-forge can be reached."""
    committed = set(shipped.envs.glob("*.pin.txt"))
    assert committed <= {pin_file(shipped, env) for env in STAGES}
    for env in STAGES:
        if pin_file(shipped, env) in committed:
            assert checked_pins(pin_file(shipped, env), specs_of(shipped, env))


def test_each_stage_has_what_its_code_imports_and_no_more(shipped):
    names = {env: {spec.split()[0] for spec in specs_of(shipped, env)} for env in STAGES}
    locked = load_lock(workflow_folder() / "requirements.lock").versions.keys() | {
        "pytorch",
        "python",
        "huggingface_hub",
    }
    assert names["train"] >= {"python", "pytorch", "pytorch-lightning", "filelock", "psutil"}
    assert names["data"] >= {"pyarrow", "pillow", "scikit-learn", "aiohttp", "rich"}
    assert names["report"] >= {"altair", "vl-convert-python", "jinja2", "pyyaml"}
    assert names["tools"] >= {"py-rattler", "filelock"}
    assert not {"pytorch", "altair"} & names["data"]
    assert not {"altair", "py-rattler"} & names["train"]
    assert not {"pytorch", "pyarrow"} & names["report"]
    for env in STAGES:
        assert names[env] <= locked
        assert not {"snakemake", "pytest", "ruff", "torch"} & names[env], env


@pytest.fixture
def own(fake: FakeProject) -> FakeProject:
    """A project with a lock, a model and a folder of environments of its own."""
    fake.workspace.write("my.lock", LOCK)
    fake.workspace.write("mypkg/models.py", "import timm\n\n\nclass Net:\n    pass\n")
    fake.config["conda"] = {"folder": "envs"}
    return fake


def test_own_models_scripts_and_sources_count(own):
    project = own.load()
    assert set(specs_of(project, "train")[1:]) == {
        "numpy ==2.4.6", "pytorch ==2.12.0", "timm ==1.0", "msgpack-python ==1.1",
    }  # fmt: skip
    assert specs_of(project, "data")[1:] == ["numpy ==2.4.6"]
    own.workspace.write("mypkg/sources.py", "import left_pad\n\n\nclass Rows:\n    pass\n")
    own.workspace.write("own.py", "import left_pad\n")
    own.rows[0]["model"] = "script: own.py --x"
    assert "left-pad ==3" in specs_of(own.load(), "data")
    assert "left-pad ==3" in specs_of(own.load(), "train")


def test_trackers_that_are_chosen_bring_their_packages(own):
    trackers = {"mlflow", "tensorboard", "wandb"}
    own.workspace.write("my.lock", LOCK + "".join(f"{name}==1\n" for name in sorted(trackers)))
    for tracker in trackers:
        own.config["runtime"] = {"tracking": [tracker]}
        asked = {spec.split()[0] for spec in specs_of(own.load(), "train")}
        assert asked & trackers == {tracker}


def test_names_are_mapped(own):
    own.config["conda"]["names"] = {"timm": "pytorch-image-models", "torch": "pytorch-gpu"}
    names = {spec.split()[0] for spec in specs_of(own.load(), "train")}
    assert names == {"python", "numpy", "pytorch-gpu", "pytorch-image-models", "msgpack-python"}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_changed_version_makes_training_stale_and_a_comment_nothing(own):
    """By way of the lock, which identities hold: the environment files are held to it."""
    project = own.load()
    write_specs(project, "train")
    path, before = env_file(project, "train"), list(project.runs)
    path.write_text(f"# a comment\n{path.read_text()}\n")
    assert "pytorch ==2.12.0" in read_specs(own.load(), "train")
    assert list(own.load().runs) == before

    edit(path, "pytorch ==2.12.0", "pytorch ==2.12.1")
    drifted = (
        "train.yaml has drifted .* has pytorch ==2.12.1, expected pytorch ==2.12.0; .*make lock"
    )
    with pytest.raises(ConfigError, match=drifted):
        read_specs(own.load(), "train")
    edit(Path("my.lock"), "torch==2.12.0", "torch==2.12.1")
    assert "pytorch ==2.12.1" in read_specs(own.load(), "train")
    assert not set(own.load().runs) & set(before)


@pytest.mark.parametrize("text", [None, "", "dependencies: 3", "a: [", "channels: []"])
def test_an_environment_file_that_is_none(own, text):
    project = own.load()
    if text is not None:
        own.workspace.write("envs/train.yaml", text)
    with pytest.raises(ConfigError, match="train.yaml .*; write it .*make lock"):
        read_specs(project, "train")


def test_shardlines_own_environments_are_not_written_from_elsewhere(own):
    del own.config["conda"]
    with pytest.raises(ConfigError, match="conda.folder is not set, and .*envs is Shardline's own"):
        write_specs(own.load(), "train")


def test_a_changed_commit_makes_training_stale_and_conda_has_no_such_package(own):
    edit(Path("my.lock"), "timm==1.0", f"timm @ git+https://example.org/timm@{'a' * 40}")
    before = own.load()
    environment = own.run("net").document["environment"]
    assert environment["packages"]["timm"] == f"@ git+https://example.org/timm@{'a' * 40}"
    with pytest.raises(
        ConfigError, match=r"the lock pins timm \(@ git.*aaa\), which conda does not"
    ):
        specs_of(before, "train")
    edit(Path("my.lock"), "a" * 40, "a" * 39 + "b")
    assert own.run("net").id not in before.runs
    assert own.run("flat").id in before.runs, "which does not import timm"
