"""The kind of the object that a source names, found without an import."""

import sys
from pathlib import Path

import pytest

from shardline.config.documents import Documents
from shardline.identity import CodeIndex, class_kind
from shardline.identity.class_kind import kind_in_project, kind_of
from shardline.identity.package_lock import Lock
from shardline.identity.versions import HISTORIES

BASE = "from torch.utils.data import Dataset as D\n\nclass Below(D):\n    pass\n"
CODE = """
import collections.abc
import missing_package
import pytorch_lightning as pl
import torch
import torch.utils.data as tud
from base import Below
from lightning.pytorch import LightningDataModule
from shardline.sources import Source
from shardline.data.sources.csv import Csv

class Map(tud.Dataset[int]): ...
class Iterable(torch.utils.data.IterableDataset): ...
class OfBelow(Below): ...
class Plain:
    def __getitem__(self, row): ...
class Neither:
    def read(self): ...
class Old(pl.LightningDataModule): ...
class New(LightningDataModule): ...
class OfNew(New, Plain): ...
class Own(Source): ...
class OfCsv(Csv): ...
class OfOwn(Own): ...
class Helper:
    def log(self): ...
class Mixed(Helper, tud.Dataset): ...
class Left(Below): ...
class Right(Below): ...
class Diamond(Left, Right): ...
class Numbers(collections.abc.Sequence): ...
class Foreign(missing_package.data.Images): ...
class Both(Foreign, Own): ...
class Loop(Loop): ...
def function(): ...
value = 3
"""
KINDS = {
    "dataset": ["Map", "Iterable", "OfBelow", "Plain", "Mixed", "Diamond", "Numbers"],
    "module": ["Old", "New", "OfNew"],
    "source": ["Own", "OfCsv", "OfOwn", "Both", "Neither"],
    "function": ["function"],
    "unknown": ["Foreign", "value", "nothing", "Loop"],
}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> CodeIndex:
    folder: Path = tmp_path_factory.mktemp("code")
    (folder / "base.py").write_text(BASE)
    (folder / "mine.py").write_text(CODE)
    return CodeIndex((folder,))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names]
)
def test_a_kind_is_found_through_bases_and_imports(code: CodeIndex, kind: str, name: str) -> None:
    assert kind_of(code, f"mine:{name}") == kind


def test_a_class_of_an_installed_package_may_be_anything(code: CodeIndex) -> None:
    assert kind_of(code, "missing_package.data:Images") == "unknown"


PACKAGE = {
    "vision_lib/__init__.py": "from .datasets import Folder, Helper\n",
    "vision_lib/datasets/__init__.py": "from .folder import Folder\nfrom .vision import Helper\n",
    "vision_lib/datasets/vision.py": (
        "import torch.utils.data as data\n\nclass Helper:\n    def show(self): ...\n\n"
        "class Vision(Helper, data.Dataset): ...\n"
    ),
    "vision_lib/datasets/folder.py": "from .vision import Vision\n\nclass Folder(Vision): ...\n",
    "vision_lib/modules.py": (
        "from pytorch_lightning import LightningDataModule\n\nclass Module(LightningDataModule): ...\n"
    ),
    "vision_lib/sources.py": "from shardline.sources import Source\n\nclass Own(Source): ...\n",
}
USERS = """
import vision_lib
from vision_lib.datasets.folder import Folder
from vision_lib.modules import Module
from vision_lib.sources import Own

class Flowers(Folder): ...
class Birds(vision_lib.Folder, vision_lib.Helper): ...
class Plants(Module): ...
class Stones(Own): ...
class Fish(vision_lib.Missing): ...
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeIndex:
    """Code with classes of a package that is installed, but never imported."""
    packages = tmp_path / "site-packages"
    for name, content in PACKAGE.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(content)
    monkeypatch.setattr(class_kind.sysconfig, "get_path", lambda key: str(packages))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/users.py").write_text(USERS)
    return CodeIndex((tmp_path / "code",))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Flowers", "dataset"), ("Birds", "dataset"), ("Plants", "module"), ("Stones", "source"), ("Fish", "unknown")],
)  # fmt: skip
def test_bases_in_installed_packages_are_found_without_an_import(
    users: CodeIndex, name: str, kind: str
) -> None:
    assert kind_of(users, f"users:{name}") == kind
    assert kind_in_project(users, f"users:{name}") == "unknown"
    assert "vision_lib" not in sys.modules


def test_identities_count_the_second_version_of_classes_of_packages(
    users: CodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = Documents(
        workdir=users.roots[0], code=users, lock=Lock(versions={}, needs={}, pins={})
    )
    asked = [documents._is_python_data(f"users:{name}") for name in ("Flowers", "Stones")]
    assert asked == [False, False], "or existing identities would change"
    monkeypatch.setitem(HISTORIES, "python", HISTORIES["python"] * 2)
    asked = [documents._is_python_data(f"users:{name}") for name in ("Flowers", "Stones", "Fish")]
    assert asked == [True, True, True], "on every machine alike, whatever is installed"
