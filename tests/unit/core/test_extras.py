"""The sentence for a package that an extra installs."""

import ast
import importlib
import re
import sys
import tomllib
from importlib.abc import MetaPathFinder

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from shardline.cli.app import app
from shardline.core.error_texts import import_class
from shardline.core.errors import ConfigError
from shardline.core.extras import EXTRA_OF, missing_package, naming_extras
from shardline.identity.package_lock import normalize
from tests.support.workspace import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"rattler": "py-rattler", "vl_convert": "vl-convert-python", "PIL": "pillow"}
BASE = {normalize(Requirement(one).name) for one in PROJECT["dependencies"]}


class Missing(MetaPathFinder):
    """Has no package of any extra."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRA_OF:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def bare(monkeypatch):
    """This process, without the packages of extras."""
    for name in [name for name in sys.modules if name.partition(".")[0] in EXTRA_OF]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


@pytest.mark.parametrize("package", EXTRA_OF)
def test_the_error_of_an_import_names_the_extra(bare, package):
    sentence = (
        f"the package {package} is not installed; run pip install 'shardline[{EXTRA_OF[package]}]'"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"), naming_extras():
        importlib.import_module(f"{package}.compute")


def test_another_import_keeps_its_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), naming_extras():
        importlib.import_module("no_such_module")


@pytest.mark.parametrize("package", EXTRA_OF)
def test_the_named_extra_installs_the_package(package):
    name = normalize(DISTRIBUTIONS.get(package, package))
    listed = PROJECT["optional-dependencies"][EXTRA_OF[package]]
    assert name in {normalize(Requirement(one).name) for one in listed}
    assert name not in BASE


def test_each_package_that_the_library_imports_is_a_dependency_or_has_an_extra():
    """Also a new import at the top of a module of an optional package is seen here."""
    of_others = {"hydra", "omegaconf"}
    known = (
        BASE
        | {normalize(DISTRIBUTIONS.get(one, one)) for one in EXTRA_OF}
        | {"lightning-fabric", "lightning-utilities"}
        | of_others
    )
    imported = set()
    for file in (REPOSITORY / "src" / "shardline").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Import):
                imported |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
    standard = set(sys.stdlib_module_names)
    ours = {"shardline", "shardline_io"}
    spelled = {"yaml": "pyyaml", "PIL": "pillow", "sklearn": "scikit-learn", "markupsafe": "jinja2"}
    assert {
        name
        for name in imported - standard - ours
        if spelled.get(name, normalize(name)) not in known
    } == set()


def test_a_command_names_the_extra(bare, monkeypatch, tmp_path, capsys):
    def lacking(folder):
        importlib.import_module("pyarrow.parquet")

    monkeypatch.setattr("shardline.cli.new_project.init_project", lacking)
    done = CliRunner().invoke(app, ["init", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert "pip install 'shardline[tables]'" in " ".join(
        (done.output + capsys.readouterr().err).split()
    )


def test_the_sentence_can_name_the_setting():
    assert missing_package("deltalake", "source type delta") == (
        "source type delta needs the package deltalake, which is not installed; run pip install 'shardline[delta]'"
    )


def test_a_shipped_source_without_its_package_names_setting_and_extra(bare, monkeypatch):
    monkeypatch.delitem(sys.modules, "shardline.data.sources.csv", raising=False)
    with pytest.raises(ConfigError) as error:
        import_class("shardline.data.sources.csv:Csv", "source.type")
    assert str(error.value) == (
        "source.type=csv needs the package pyarrow, which is not installed; run pip install 'shardline[tables]'"
    )


def test_a_model_that_imports_an_extras_package_names_the_extra(bare, tmp_path, monkeypatch):
    (tmp_path / "model_of_lightning.py").write_text("from lightning import LightningModule\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        import_class("model_of_lightning:Net", "model")
    assert str(error.value).splitlines()[0] == (
        "model=model_of_lightning:Net does not import: ModuleNotFoundError: the package lightning is not installed; "
        "run pip install 'shardline[lightning]'"
    )
