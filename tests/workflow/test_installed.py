"""Shardline as a package: its wheel, a project that `shardline init` starts, and a run of that."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections import Counter
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from shardline.core.extras import EXTRA_OF
from shardline.identity.package_lock import normalize
from tests.support.workspace import REPOSITORY

# What of the repository a wheel holds below shardline/workflow/.
WORKFLOW = (
    "Snakefile", "config/README.md", "config/config.yaml", "config/runs.tsv",
    "envs/*", "profiles/**/*", "config/project/**/*", "report/**/*", "requirements.lock",
    "requirements-azureml.lock", "requirements.hashes", "rules/*", "scripts/*",
)  # fmt: skip
ROWS = "name\tdataset\tmodel\tdevices\toptim.lr\ttrainer.max_epochs\nnet\trings\tmypkg.models:Net\t1\t0.05\t2\n"
TABLE = "  table:\n    source: {type: csv, files: [data/rings.csv], label: ring, num_classes: 3}\n    shards: 1\n\n"
LOCAL = ("--profile", "profiles/local")
INSTALLERS = {
    "pip": ("pip", "--python", "{python}", "install"),
    "uv": ("uv", "pip", "install", "--offline", "--python", "{python}"),
}


def run(*command: object, cwd: Path) -> str:
    """Run a program to its end and return what it printed."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, text=True, check=False, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def build(source: Path, target: str, folder: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (built,) = folder.iterdir()
    return built


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds the wheel, and sees the locked packages."""

    folder: Path

    def python(self, *arguments: object, cwd: Path) -> str:
        return run(self.folder / "bin" / "python", *arguments, cwd=cwd)

    def shardline(self, *arguments: object, cwd: Path) -> str:
        return run(self.folder / "bin" / "shardline", *arguments, cwd=cwd)

    def workflow(self) -> Path:
        code = "from shardline.core.package import workflow_folder as f; print(f())"
        return Path(self.python("-c", code, cwd=self.folder).strip())


def link_base(packages: Path) -> set[str]:
    """Link the packages that Shardline requires without an extra into a folder, and return their names."""
    pending = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    linked: set[tuple[str, str]] = set()
    while pending:
        needed = Requirement(pending.pop())
        for extra in ("", *needed.extras):
            if (normalize(needed.name), extra) in linked:
                continue
            linked.add((normalize(needed.name), extra))
            found = distribution(needed.name)
            pending += [
                text for text in found.requires or ()
                if (one := Requirement(text)).marker is None or one.marker.evaluate({"extra": extra})
            ]  # fmt: skip
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not os.path.lexists(packages / top):
                    (packages / top).symlink_to(found.locate_file(top))
    return {name for name, _ in linked}


def install(wheel: Path, installer: str, folder: Path, *, base: bool = False) -> Environment:
    """Make an environment without downloading anything, with all locked packages or with those of no extra."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    if base:
        link_base(packages)
    else:
        # Such a file of a folder that one names is not read, so the editable Shardline stays unseen.
        (packages / "locked.pth").write_text(sysconfig.get_path("purelib"))
    words = [word.format(python=folder / "bin" / "python") for word in INSTALLERS[installer]]
    run(sys.executable, "-m", *words, "--no-deps", "--no-index", wheel, cwd=folder)
    return Environment(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the unpacked sdist builds, far from any checkout."""
    folder = tmp_path_factory.mktemp("built")
    with tarfile.open(build(REPOSITORY, "sdist", folder / "sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return build(unpacked, "wheel", folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(wheel, "pip", tmp_path_factory.mktemp("pip") / "venv")


def test_checkout_and_sdist_build_the_same_wheel(wheel, tmp_path):
    assert build(REPOSITORY, "wheel", tmp_path).read_bytes() == wheel.read_bytes()


def test_the_wheel_holds_the_workflow_each_file_once(wheel):
    expected = {
        path.relative_to(REPOSITORY).as_posix(): path.read_bytes()
        for pattern in WORKFLOW
        for path in REPOSITORY.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert {name.split("/")[0] for name in held} == {
        "shardline", "shardline_io", "snakemake_logger_plugin_shardline", "shardline-0.1.0.dist-info",
    }  # fmt: skip
    prefix = "shardline/workflow/"
    assert {
        name.removeprefix(prefix): held[name] for name in held if name.startswith(prefix)
    } == expected
    contents = Counter(content for content in held.values() if content)
    twice = [name for name in held if contents[held[name]] > 1]
    # a name for each environment, since Snakemake looks for it; a checkout has links
    assert [name for name in twice if not name.endswith(".post-deploy.sh")] == []


def test_the_wheel_brings_the_logger_that_profiles_name_as_its_own_distribution_has_it(
    wheel, tmp_path
):
    plugin = REPOSITORY / "plugins/snakemake-logger-plugin-shardline"
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(build(plugin, "wheel", tmp_path)) as own:
        names = [name for name in own.namelist() if name.endswith(".py")]
        assert len(names) > 5
        assert all(ours.read(name) == own.read(name) for name in names)


@pytest.mark.slow
def test_a_new_project_runs_from_the_wheel_and_from_a_clone_with_the_same_results(
    installed, tmp_path
):
    assert installed.workflow().is_relative_to(installed.folder)
    assert os.access(installed.workflow() / "profiles" / "slurm" / "bin" / "sacct", os.X_OK)

    project = tmp_path / "vision"
    installed.shardline("init", project, cwd=tmp_path)
    texts = [path.read_text() for path in project.rglob("*") if path.is_file()]
    assert not any(str(place) in text for text in texts for place in (installed.folder, project))
    (project / "config" / "runs.tsv").write_text(ROWS)
    told = installed.python("-m", "snakemake", *LOCAL, cwd=project)
    assert "Report: results/report/index.html" in told  # onsuccess is called
    assert "net" in (project / "results" / "report" / "index.html").read_text()
    (provenance,) = project.glob("results/runs/*/provenance.json")
    assert json.loads(provenance.read_text())["shardline_git"]["commit"] is None  # no checkout's

    assert "Nothing to be done" in installed.python("-m", "snakemake", *LOCAL, cwd=project)
    clone = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile", *LOCAL]
    assert "Nothing to be done" in run(*clone, cwd=project)

    (record,) = json.loads(installed.shardline("ls", "--json", cwd=project))
    assert record["state"] == "done"
    assert "is fresh" in installed.shardline("why", "net", cwd=project)
    assert "none with problems" in installed.shardline("verify", cwd=project)
    assert json.loads(installed.shardline("gc", "--json", cwd=project))["items"] == []


@pytest.mark.rotating
def test_uv_installs_it_too(wheel, tmp_path):
    environment = install(wheel, "uv", tmp_path / "venv")
    assert environment.workflow().is_relative_to(tmp_path)
    environment.shardline("init", "vision", cwd=tmp_path)
    runs = json.loads(environment.shardline("ls", "--json", cwd=tmp_path / "vision"))
    assert [run["state"] for run in runs] == ["new"] * 3


@pytest.mark.rotating
@pytest.mark.slow
def test_a_new_project_runs_without_any_extra(wheel, tmp_path):
    environment = install(wheel, "pip", tmp_path / "venv", base=True)
    for package in EXTRA_OF:
        find = f"import importlib.util as u; print(u.find_spec({package!r}))"
        assert environment.python("-c", find, cwd=tmp_path).strip() == "None", package
    project = tmp_path / "vision"
    environment.shardline("init", project, cwd=tmp_path)
    assert "sympy==" in (project / "requirements.lock").read_text()  # of torch
    (project / "config" / "runs.tsv").write_text(ROWS)
    environment.python("-m", "snakemake", *LOCAL, cwd=project)
    assert "vega" in (project / "results" / "report" / "index.html").read_text()
    assert "Nothing to be done" in environment.python("-m", "snakemake", *LOCAL, cwd=project)
    assert "none with problems" in environment.shardline("verify", cwd=project)

    config = project / "config" / "config.yaml"
    config.write_text(config.read_text().replace("  rings:", f"{TABLE}  rings:"))
    (project / "config" / "runs.tsv").write_text(ROWS.replace("rings", "table"))
    done = subprocess.run(
        [environment.folder / "bin" / "shardline", "check"], cwd=project, text=True, check=False,
        capture_output=True, env={**os.environ, "PYTHONPATH": "", "COLUMNS": "200"},
    )  # fmt: skip
    assert "pip install 'shardline[tables]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


PACKAGES = {
    "plugins/shardline-io": ("shardline_io", {"numpy"}),
    "plugins/snakemake-executor-plugin-azureml": (
        "snakemake_executor_plugin_azureml",
        {"azure-ai-ml"},
    ),
    "plugins/snakemake-logger-plugin-shardline": ("snakemake_logger_plugin_shardline", {"rich"}),
}


@pytest.mark.parametrize("place", PACKAGES)
def test_the_other_wheels_hold_their_package_and_its_metadata(place, tmp_path):
    module, needed = PACKAGES[place]
    wheel = build(REPOSITORY / place, "wheel", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        headers = Parser().parsestr(archive.read(metadata).decode())
    source = REPOSITORY / place / "src" / module
    assert {name for name in names if name.endswith(".py")} == {
        f"{module}/{path.relative_to(source).as_posix()}" for path in source.rglob("*.py")
    }
    assert headers["Version"] == "0.1.0"
    assert headers["License-Expression"] == "MIT"
    assert headers.get_payload().startswith("# ")
    required = [Requirement(text) for text in headers.get_all("Requires-Dist")]
    always = {normalize(one.name) for one in required if one.marker is None}
    assert needed <= always
    # for users of SDK v1 alone
    assert not {"azureml-core", "setuptools"} & always


def test_the_sdist_has_what_its_wheel_is_built_from_and_no_project(tmp_path):
    with tarfile.open(build(REPOSITORY, "sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Snakefile", "workflow/Snakefile", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not {
        name for name in names if name.startswith(("results/", "store/", ".venv", "examples/"))
    }
