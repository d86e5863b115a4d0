"""The kind of the object that a source names, found without an import."""

from pathlib import Path

import pytest

from shardline.identity import CodeIndex
from shardline.identity.class_kind import kind_of

BASE = "from torch.utils.data import Dataset as D\n\nclass Below(D):\n    pass\n"
CODE = """
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
class Foreign(missing_package.data.Images): ...
class Both(Foreign, Own): ...
class Loop(Loop): ...
def function(): ...
value = 3
"""
KINDS = {
    "dataset": ["Map", "Iterable", "OfBelow", "Plain"],
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
