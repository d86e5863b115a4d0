"""An image from a small lock, really built: its layers, labels, digests, and where it goes."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from shardline.config.settings.config import Image
from shardline.core.digests import file_sha256
from shardline.environments import context
from shardline.environments.context import build_wheel, repack_wheel
from shardline.environments.image import build_image
from shardline.errors import LaunchError
from tests.support.container_engine import BASE, shorten_lock
from tests.support.workspace import REPOSITORY

DEFAULTS = {"tool": "podman", "base": BASE}


@pytest.fixture
def build(engine, tmp_path):
    """Build an image and return what was written of it."""

    def run(lock=None, **settings):
        settings = {**DEFAULTS, "build_args": engine.build_args, **settings}
        lock = lock or shorten_lock(tmp_path / "lock.txt", ["jinja2"])
        output, log = tmp_path / "results" / "image.json", tmp_path / "build.log"
        build_image(Image(**settings), lock=lock, output=output, log=log)
        return json.loads(output.read_text())

    return run


@pytest.fixture
def checkout(tmp_path):
    """Shardline's files in another folder, written just now, and a profile that a site has added."""
    target = tmp_path / "checkout"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in files.stdout.splitlines():
        if not name.startswith(("tests/", "docs/")) and (REPOSITORY / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target / name, follow_symlinks=False)
    shutil.copytree(target / "profiles" / "slurm", target / "profiles" / "mine")
    return target


def layers(engine, image):
    return engine.image(image)["RootFS"]["Layers"]


@pytest.mark.rotating
@pytest.mark.slow
def test_the_same_lock_gives_the_same_layers_and_an_edit_of_code_the_last_one_anew(
    engine, build, checkout, monkeypatch
):
    first = build()
    monkeypatch.setattr(context, "workflow_folder", lambda: checkout)
    again = build(build_args=[*engine.build_args, "--no-cache"])
    assert layers(engine, again["id"]) == layers(engine, first["id"])

    (checkout / "rules" / "train.smk").open("a").write("# an edit\n")
    edited = build()
    there, then = layers(engine, first["id"]), layers(engine, edited["id"])
    assert len(there) == len(then) == len(["base", "lock", "packages", "wheel", "installed"])
    assert [one == other for one, other in zip(there, then, strict=True)] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "plugins/snakemake-executor-plugin-azureml"])
def test_what_is_installed_gives_the_wheel_that_it_was_installed_from(folder, tmp_path):
    built, again = tmp_path / "built", tmp_path / "again"
    again.mkdir()
    build_wheel(REPOSITORY / folder, built)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    (installed,) = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    repack_wheel(installed, again)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again / wheel.name) as other:
        assert set(one.namelist()) == set(other.namelist())
        assert [name for name in one.namelist() if one.read(name) != other.read(name)] == [
            next(name for name in one.namelist() if name.endswith("RECORD"))
        ]
    subprocess.run(
        [*pip, "--target", str(tmp_path / "second"), str(again / wheel.name)], check=True
    )
    program = tmp_path / "second/shardline/workflow/profiles/slurm/bin/sacct"
    assert program.stat().st_mode & 0o100 if not folder else not program.exists()


def test_a_build_may_copy_a_wheel_of_shardline_and_one_of_the_plugin(tmp_path):
    context.stage_context(tmp_path, REPOSITORY / "requirements.lock")
    names = [path.name.split("-")[0] for path in sorted((tmp_path / "wheel").iterdir())]
    assert names == ["shardline", "snakemake_executor_plugin_azureml"]


@pytest.mark.slow
@pytest.mark.rotating
def test_what_an_image_says_of_itself_and_what_it_does_not_hold(engine, build, tmp_path):
    lock = shorten_lock(tmp_path / "lock.txt", ["jinja2"])
    image = build(lock=lock)
    labels = engine.image(image["id"])["Labels"]
    assert labels["shardline.lock.sha256"] == image["lock"] == file_sha256(lock)
    assert labels["shardline.code.sha256"] == image["code"]
    assert labels["org.opencontainers.image.version"] == image["version"]
    assert labels["org.opencontainers.image.revision"] == image["commit"]
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert image["digest"] == image["id"]
    assert image["reference"] is None

    # pip's configuration, which may hold the password of an index
    root = Path(engine.podman("image", "mount", image["id"]).strip())
    files = ["etc/pip.conf", "run/secrets", "root/.cache", "root/.config"]
    assert [name for name in files if (root / name).exists()] == []
    engine.podman("image", "unmount", image["id"])
    history = json.dumps(engine.image(image["id"])["History"])
    assert not [option for option in engine.build_args if option in history]


@pytest.mark.slow
@pytest.mark.rotating
def test_buildah_builds_the_layers_that_podman_builds_and_saves_an_archive(engine, build, tmp_path):
    archive = tmp_path / "images" / "shardline.tar"
    image = build(tool="buildah", save=str(archive))
    assert layers(engine, image["id"]) == layers(engine, build()["id"])
    assert image["archive"] == f"oci-archive:{archive}"
    with tarfile.open(archive) as tar:

        def read(name):
            return json.load(tar.extractfile(name))

        manifest = read("index.json")["manifests"][0]["digest"]
        config = read(f"blobs/{manifest.replace(':', '/')}")["config"]["digest"]
    assert config == image["id"]


@pytest.mark.slow
def test_a_build_that_fails_ends_with_the_tools_own_words(build, tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("no-such-package-of-shardline==1.0\n")
    with pytest.raises(LaunchError, match=r"`podman build` ended with code \d+: .*build.log"):
        build(lock=lock)
    assert "no-such-package-of-shardline" in (tmp_path / "build.log").read_text()
    assert not (tmp_path / "results" / "image.json").exists()
