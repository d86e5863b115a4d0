"""Environments of training scripts: what counts, what is refused, and what is really built from a lock."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.config.causes import find_causes
from shardline.config.scripts import ScriptEnvironment, load_environment
from shardline.config.settings.run_settings import Environment
from shardline.environments.python import built_on_nodes, problem_of
from shardline.environments.script_environments import make_environment
from shardline.environments.venv import make_venv, pip_config, uv_variables
from shardline.errors import ConfigError, DataError
from shardline.identity.code_index import CodeIndex
from shardline.identity.interpreter import ask
from shardline.identity.reach import needed_packages
from shardline.records.environments import ImageEnvironment
from shardline.results.gc import find_garbage
from tests.support.conda_channel import PYTHON
from tests.support.fake_project import FakeProject
from tests.support.wheels import add_wheel

SCRIPT = "import numpy\n\nprint(numpy.__version__)\n"
OWN = Path(sys.executable)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z]{1,4})?", fullmatch=True)
VERSIONS = st.from_regex(r"[1-9]\.[0-9]{1,2}(rc1)?", fullmatch=True)
PINS = st.dictionaries(NAMES, VERSIONS, min_size=1, max_size=6)


def of_lock(folder: Path, text: str) -> ScriptEnvironment:
    (folder / "own.lock").write_text(text)
    return load_environment(Environment(venv="own.lock"), "row", folder)


# --- what counts ----------------------------------------------------------------------------------


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), pins=PINS)
def test_the_pins_of_a_lock_count_and_not_how_it_is_written(
    tmp_path: Path, data: st.DataObject, pins: dict[str, str]
) -> None:
    def written(pins: dict[str, str]) -> str:
        lines = ["# a comment", "--index-url https://user:secret@example.org/simple"]
        for name, version in data.draw(st.permutations(sorted(pins.items()))):
            spelt = data.draw(st.sampled_from([name, name.upper(), name.replace("-", "_")]))
            end = data.draw(
                st.sampled_from(["", "  # via x", " \\\n    --hash=sha256:" + "0" * 64])
            )
            lines.append(f"{spelt}=={version}{end}")
        return "\n".join(lines) + "\n"

    first, again = of_lock(tmp_path, written(pins)), of_lock(tmp_path, written(pins))
    assert first.counted == again.counted
    assert first.counted == {"kind": "venv", "python": PYTHON, "packages": first.packages}
    assert first.packages == pins
    assert "secret" not in str(first)

    changed = dict(pins)
    name = data.draw(st.sampled_from(sorted(pins)))
    change = data.draw(st.sampled_from(["version", "gone", "new"]))
    if change == "version":
        changed[name] += "1"
    elif change == "gone" and len(pins) > 1:
        del changed[name]
    else:
        changed["z" * 9] = "1.0"
    other = of_lock(tmp_path, written(changed))
    assert other.counted != first.counted
    assert other.address != first.address


def test_another_python_of_a_lock_counts(tmp_path: Path) -> None:
    (tmp_path / "own.lock").write_text("numpy==2.0\n")
    given = [Environment(venv="own.lock", python=python) for python in ("3.11", "3.12")]
    found = [load_environment(one, "row", tmp_path) for one in given]
    assert [one.counted["python"] for one in found] == ["3.11", "3.12"]
    assert found[0].address != found[1].address


def test_what_is_installed_for_an_interpreter_counts_wherever_it_lies(
    fake: FakeProject, tmp_path: Path, venv: Callable[..., Path]
) -> None:
    first, other = venv("first"), venv("other")
    found = [
        load_environment(Environment(python=str(one)), "row", tmp_path) for one in (first, other)
    ]
    assert found[0].counted == found[1].counted
    assert found[0].counted["kind"] == "python"
    site = next((other.parent.parent / "lib").glob("python*/site-packages"))
    (site / "more-1.5.dist-info").mkdir()
    (site / "more-1.5.dist-info/METADATA").write_text("Name: more\nVersion: 1.5\n")
    (site / "more").mkdir()
    changed = load_environment(Environment(python=str(other)), "row", tmp_path)
    assert changed.counted["packages"] == {**found[0].packages, "more": "1.5"}


def test_a_changed_pin_makes_the_training_stale_and_is_named(fake: FakeProject) -> None:
    of_script(fake, {"venv": "own.lock"})
    before = fake.run("net")
    assert before.document["environment"] == {
        "kind": "venv", "python": PYTHON, "packages": {"numpy": "2.0", "tensorflow": "2.21.0"},
    }  # fmt: skip
    assert "environment" not in before.document["settings"]
    assert fake.run("flat").environment is None
    fake.workspace.write("moved/own.lock", "tensorflow==2.21.0\nnumpy==2.0\n")
    of_script(fake, {"venv": "moved/own.lock"}, lock=None)
    assert fake.run("net").id == before.id
    fake.workspace.write("moved/own.lock", "tensorflow==2.22.0\nnumpy==2.0\n")
    after = fake.run("net")
    assert after.id != before.id
    causes = find_causes(before.document, after.document)
    assert [one.text for one in causes] == ["tensorflow 2.21.0 -> 2.22.0"]


def of_script(
    fake: FakeProject, environment: Any, *, lock: str | None = "numpy==2.0\ntensorflow==2.21.0\n"
) -> None:
    fake.workspace.write("train.py", SCRIPT)
    if lock:
        fake.workspace.write("own.lock", lock)
    fake.config["environments"] = {"own": environment}
    fake.rows[0] |= {"model": "script: train.py", "environment": "own"}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, r"environment=own: names nothing, expected one of venv, conda, image and python"),
        ({"conda": "own.lock", "python": "3.12"}, r"names conda and python, expected one of"),
        ({"venv": "own.lock", "python": "python3"}, r'python=python3 is not a version such as "3.12"'),
        ({"venv": "none.lock"}, r"environment=own.venv=none.lock: cannot be read \(No such file"),
        ({"venv": "loose.lock"}, r"environment=own.venv=loose.lock, line 2: numpy>=1 pins no version"),
        ({"conda": "own.lock"}, r"environment=own.conda=own.lock: .*line 1: .* is not the URL of a conda package"),
        ({"python": "no/python"}, r"python=no/python: cannot be started \(No such file or directory\); give"),
        ({"python": "own.lock"}, r"python=own.lock: cannot be started \(Permission denied\)"),
        ({"python": "old/python"}, r"python=old/python: is Python 3.8, expected 3.9 or newer"),
        ({"python": "old/none"}, r"python=old/none: cannot be started \(it is not a Python interpreter\)"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_before_anything_runs(
    fake: FakeProject, environment: dict[str, Any], problem: str
) -> None:
    of_script(fake, environment)
    fake.workspace.write("loose.lock", "scipy==1.0\nnumpy>=1\n")
    for name, text in (("python", '[[3, 8, 1], "cpython", []]'), ("none", "hello")):
        fake.workspace.write(f"old/{name}", f"#!/bin/sh\necho '{text}'\n").chmod(0o755)
    with pytest.raises(ConfigError, match=problem) as error:
        fake.load()
    assert str(error.value).count("\n") == 0


def test_an_image_is_asked_where_a_tool_runs_images_and_elsewhere_only_slurm_goes_on(
    fake: FakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = f"registry.example/tf@sha256:{'0' * 64}"
    of_script(fake, {"image": image})
    environment = fake.run("net").environment
    assert environment is not None
    assert environment.has_rule
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="image.run_with=auto, but there is no podman or docker"):
        make_environment(fake.load(), environment)
    fake.config["runtime"] = {"launcher": "srun"}
    unknown = ImageEnvironment(image=image, python=None)
    assert make_environment(fake.load(), environment) == unknown

    tool = tmp_path / "podman"  # has Python behind the image's name
    tool.write_text(
        f"""#!/bin/sh\nwhile [ "$1" != python3 ]; do shift; done; shift\nexec '{OWN}' "$@"\n"""
    )
    tool.chmod(0o755)
    assert make_environment(fake.load(), environment).python == ask(OWN, "own").python
    fake.workspace.write("train.py", "import tensorflow")
    with pytest.raises(ConfigError, match="train.py imports tensorflow, but .*image=.* lacks it"):
        make_environment(fake.load(), environment)


def test_nodes_that_share_no_store_build_from_a_lock_alone(fake: FakeProject) -> None:
    of_script(fake, {"venv": "own.lock"})
    same = fake.run("net").id
    fake.config["runtime"] = {"launcher": "azureml"}
    run = fake.run("net")
    assert run.id == same
    assert run.environment_file is None
    given = built_on_nodes(run.environment, run.layout)
    assert given is not None
    assert given.file == Path("own.lock")


# --- what a program needs -------------------------------------------------------------------------

HOWS = {
    "import {0}": True,
    "import {0}.deep as d": True,
    "from {0} import name": True,
    "try:\n    import {0}\nexcept ImportError:\n    pass": False,
    "if False:\n    import {0}": False,
    "def late():\n    import {0}": False,
}


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    imports=st.lists(
        st.tuples(
            st.sampled_from(sorted(HOWS)),
            st.sampled_from(["tensorflow", "jax", "numpy", "os", "shardline_io"]),
            st.integers(0, 2),
        ),
        max_size=8,
    )
)
def test_packages_that_are_imported_at_once_are_needed(
    tmp_path: Path, imports: list[tuple[str, str, int]]
) -> None:
    files = {
        "train.py": ["import helper", "from pack import inner"],
        "helper.py": [],
        "pack/inner.py": ["from . import more"],
    }
    where = list(files)
    for how, name, place in imports:
        files[where[place]].append(how.format(name))
    for name, lines in {
        **files,
        "pack/__init__.py": [],
        "pack/more.py": ["import more_needed"],
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    index = CodeIndex((tmp_path,), main=tmp_path / "train.py", workdir=tmp_path)
    wanted = {name for how, name, _ in imports if HOWS[how]} - {"os", "shardline_io"}
    assert needed_packages(index) == sorted({*wanted, "more_needed"})


# --- what is built --------------------------------------------------------------------------------


@pytest.fixture
def venv(tmp_path: Path) -> Callable[..., Path]:
    """Makes virtual environments of this Python, with nothing in them; returns the interpreter."""
    import venv

    def make(name: str) -> Path:
        venv.create(tmp_path / name, symlinks=True)
        return tmp_path / name / "bin" / "python"

    return make


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place in which packages are looked for."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def test_a_lock_is_built_once_and_verified(tmp_path: Path, wheels: Path) -> None:
    add_wheel(wheels, "tinynet", "1.5")
    lock = "tinynet==1.5\nabsent==1.0 ; python_version < '3'\n"
    environment = of_lock(tmp_path, lock)
    made = make_venv(tmp_path / "envs", environment)
    assert made.packages == {"tinynet": "1.5"}
    assert Path(made.prefix) == tmp_path / "envs" / environment.folder_name
    found = ask(Path(made.prefix) / "bin/python", "here")
    assert found.lacks(["tinynet", "os", "torch", "numpy.none"]) == ["numpy.none", "torch"]

    for wheel in wheels.iterdir():
        wheel.unlink()
    assert make_venv(tmp_path / "envs", environment) == made, "it is there"
    site = Path(made.prefix) / f"lib/python{PYTHON}/site-packages"
    installed = site / "tinynet-1.5.dist-info/METADATA"
    installed.unlink()  # a link to a file of uv's cache, which the next run of the test would find changed
    installed.write_text("Name: tinynet\nVersion: 1.6\n")
    with pytest.raises(
        DataError,
        match=r"tinynet 1.6 is installed, 1.5 is locked\): it was changed by hand; delete",
    ):
        make_venv(tmp_path / "envs", environment)


@pytest.mark.parametrize(
    ("lock", "python", "problem"),
    [
        ("tinynet==9.0\n", None, r"tinynet==9\.0"),
        ("needsnewer==1.0\n", None, r"needsnewer 1.0 is for Python >=3.99, not 3"),
        ("tinynet==1.5\n", "3.99", r"No interpreter found for Python 3\.99"),
    ],
)
def test_a_lock_that_cannot_be_built_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, wheels: Path, lock: str, python: str | None, problem: str
) -> None:
    add_wheel(wheels, "tinynet", "1.5")
    add_wheel(wheels, "needsnewer", "1.0", python=">=3.99")
    (tmp_path / "own.lock").write_text(lock)
    given = Environment(venv="own.lock", **({"python": python} if python else {}))
    environment = load_environment(given, "row: environment=own", tmp_path)
    with pytest.raises(ConfigError, match=problem) as error:
        make_venv(tmp_path / "envs", environment)
    text = str(error.value)
    assert text.startswith("row: environment=own.venv=own.lock cannot be installed: ")
    assert "\n" not in text
    assert not re.search("[×╰│▶]", text)
    assert [path.name for path in (tmp_path / "envs").iterdir() if path.suffix != ".lock"] == []


def test_a_script_whose_package_no_pin_names_is_refused(fake: FakeProject, wheels: Path) -> None:
    add_wheel(wheels, "tinynet", "1.5")
    of_script(fake, {"venv": "own.lock"}, lock="tinynet==1.5\n")
    fake.workspace.write("train.py", "import tinynet\nimport tensorflow as tf\n")
    project = fake.load()
    environment = project.named_runs()["net"].environment
    assert environment
    problem = (
        r"net: train.py imports numpy, tensorflow, but .* environment=own.venv=own.lock lacks them"
    )
    with pytest.raises(ConfigError, match=problem):
        make_environment(project, environment)


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("data.transform", "mypkg.changes:Half", "data.transform"),
        ("data.collate", "pad", ""),
        ("data.collate", {"type": "pad", "multiple": 8}, "data.collate"),
        ("optim.lr", 0.5, ""),
    ],
)
def test_a_setting_that_shardline_applies_needs_it_in_the_environment(
    fake: FakeProject, venv: Callable[..., Path], setting: str, value: Any, named: str
) -> None:
    python = venv("bare")
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    (site / "numpy.py").write_text("")
    of_script(fake, {"python": str(python)})
    fake.workspace.write("train.py", "import numpy\nimport shardline_io\n")
    fake.workspace.write("mypkg/changes.py", "class Half:\n    pass\n")
    fake.rows[0][setting] = value
    project = fake.load()
    run = project.named_runs()["net"]
    assert run.environment
    assert run.environment.interpreter
    problem = problem_of(project, run, run.environment.interpreter)
    if named:
        assert problem.startswith(f"the run has {named}, which the package shardline applies, but")
    else:
        assert problem == ""
    (site / "shardline.py").write_text("")
    assert problem_of(project, run, run.environment.interpreter) == ""


def test_uv_looks_where_pip_is_configured_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@example.org/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/one /two")
    found = uv_variables({"UV_FIND_LINKS": "/mine", "HOME": "/root"}, pip_config())
    assert found == {
        "UV_DEFAULT_INDEX": "https://user:secret@example.org/simple",
        "UV_FIND_LINKS": "/mine",
        "UV_INDEX_STRATEGY": "unsafe-first-match",
        "HOME": "/root",
    }
    assert uv_variables({}, pip_config())["UV_FIND_LINKS"] == "/one,/two"


def test_garbage_is_what_no_script_has(fake: FakeProject) -> None:
    of_script(fake, {"venv": "own.lock"})
    project = fake.load()
    (address,) = project.built_environments
    for name in (f"venv-{address}", "venv-0123456789ab"):
        (project.layout.prefixes / name / "bin").mkdir(parents=True)
    found = [
        one for one in find_garbage(project, fake.config["datasets"]) if "venv" in one.path.name
    ]
    assert [(one.path.name, one.reason) for one in found] == [
        ("venv-0123456789ab", "no script uses it")
    ]
