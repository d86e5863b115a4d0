"""Environment files and pin files of a project, written, held to one another and made for real."""

import json
import shutil
from pathlib import Path

import pytest

from shardline.environments.python import interpreter
from shardline.environments.specs import (
    STAGES,
    checked_pins,
    env_file,
    existing_pin_file,
    pin_file,
    read_pins,
    specs_of,
    unmet_specs,
    write_specs,
)
from shardline.errors import ConfigError, DataError
from shardline.pipeline.environment_jobs import create_env, lock_envs
from shardline.results.gc import find_garbage
from tests.support.conda_channel import CondaChannel
from tests.support.fake_project import FakeProject


@pytest.fixture
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return CondaChannel(tmp_path_factory.mktemp("conda") / "channel")


@pytest.fixture
def own(fake: FakeProject, channel: CondaChannel) -> FakeProject:
    """A project whose environments come from the channel."""
    fake.config["conda"] = {"folder": "envs", "channels": [channel.url]}
    for env in STAGES:
        channel.add_all(specs_of(fake.load(), env))
    channel.index()
    return fake


def test_locking_and_making_the_environments_of_a_project(own):
    lock_envs(own.load())
    project = own.load()
    files = {path.name for path in project.envs.iterdir()}
    assert files == {f"{env}{end}" for env in STAGES for end in (".yaml", ".linux-64.pin.txt")}
    for env in STAGES:
        text = pin_file(project, env).read_text()
        assert "\n# platform: linux-64\n@EXPLICIT\n" in text
        pins = checked_pins(pin_file(project, env), specs_of(project, env))
        assert unmet_specs(pins, specs_of(project, env)) == []
    create_env(own.load(), "train", "results/envs/train/environment.json")
    made = json.loads(Path("results/envs/train/environment.json").read_text())
    assert {"python", "pytorch", "numpy"} == {package["name"] for package in made["packages"]}
    prefix = Path(made["prefix"])
    assert prefix.parent == project.workdir / "store" / "envs"
    assert Path(interpreter(Path("results/envs/train/environment.json"))[0]).parents[1] == prefix

    kept = {str(item.path) for item in find_garbage(own.load(), own.config["datasets"])}
    assert kept == set()
    pin_file(project, "train").unlink()
    (item,) = find_garbage(own.load(), own.config["datasets"])
    assert project.workdir / item.path == prefix

    shutil.rmtree(prefix)
    with pytest.raises(DataError, match="names .*/bin/python, which does not exist; delete"):
        interpreter(Path("results/envs/train/environment.json"))


def test_pins_that_drifted_are_refused(own):
    with pytest.raises(ConfigError, match="train.linux-64.pin.txt is missing.*make lock"):
        existing_pin_file(own.load(), "train")
    lock_envs(own.load())
    own.workspace.write("my.lock", Path("my.lock").read_text().replace("2.12.0", "2.12.1"))
    with pytest.raises(ConfigError, match="train.yaml has drifted from the lock"):
        create_env(own.load(), "train", "environment.json")
    write_specs(own.load(), "train")
    with pytest.raises(
        ConfigError, match="pin.txt has drifted .*: it does not satisfy pytorch ==2.12.1"
    ):
        create_env(own.load(), "train", "environment.json")
    assert not Path("environment.json").exists()


def test_locking_without_a_channel_leaves_no_pins_that_do_not_fit(own, channel):
    lock_envs(own.load())
    before = {path.name: path.read_text() for path in Path("envs").iterdir()}
    own.workspace.write("my.lock", Path("my.lock").read_text().replace("2.12.0", "2.12.1"))
    pin_file(own.load(), "report").write_text("@EXPLICIT\nbroken\n")
    shutil.rmtree(channel.path)
    with pytest.raises(ConfigError, match=f"conda.channels={channel.url} cannot be read"):
        lock_envs(own.load())
    after = {path.name: path.read_text() for path in Path("envs").iterdir()}
    assert before.keys() - after.keys() == {f"{e}.linux-64.pin.txt" for e in ("train", "report")}
    assert {name for name in after if after[name] != before[name]} == {"train.yaml"}
    assert "pytorch ==2.12.1" in env_file(own.load(), "train").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("http://me:pw@host/linux-64/numpy-1.0-h_0.conda", "line 3: http://host/linux-64/numpy"),
        ("http://host/linux-64/numpy.conda#sha256:" + "0" * 64, "line 3: .* is not the URL of a conda"),
        ("http://host/linux-64/numpy-1.0-h_0.conda#sha256:12", "line 3: "),
        ("http://host/linux-64/numpy-1.0-h_0.conda#" + "0" * 32, "line 3: .*#sha256:"),
    ],
)  # fmt: skip
def test_pins_that_cannot_be_read(line, message, tmp_path):
    path = tmp_path / "x.pin.txt"
    path.write_text(f"# head\n@EXPLICIT\n{line}\n")
    with pytest.raises(ConfigError, match=message) as caught:
        read_pins(path)
    assert "pw@" not in str(caught.value)


def test_a_package_twice(tmp_path):
    path = tmp_path / "x.pin.txt"
    lines = [f"http://host/linux-64/numpy-{v}-h_0.conda#sha256:{'0' * 64}\n" for v in ("1", "2")]
    path.write_text("".join(lines))
    with pytest.raises(ConfigError, match="contains a package twice"):
        checked_pins(path, [])
