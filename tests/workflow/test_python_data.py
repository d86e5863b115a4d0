"""A LightningDataModule with augmentation as a dataset, through the real pipeline."""

import json
from pathlib import Path

import pytest

from tests.support.workspace import Workspace

DATA = """
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset, random_split

FILE = Path("data/pixels.npy")


class Stripes(Dataset):
    classes = ["across", "down"]

    def __init__(self, transform=None):
        self.pixels, self.transform = np.load(FILE), transform

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, row):
        image = Image.fromarray(self.pixels[row])
        if self.transform:
            image = self.transform(image)
        return image, row % 2


def noisy(image):
    assert isinstance(image, Image.Image)
    pixels = torch.from_numpy(np.array(image)).float().permute(2, 0, 1) / 255
    return pixels + 0.1 * torch.randn(())


class Module(LightningDataModule):
    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def prepare_data(self):
        FILE.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, 50, (200, 8, 8, 3), np.uint8)
        pixels[0::2, ::2] += 200
        pixels[1::2, :, ::2] += 200
        with FILE.open("xb") as file:  # fails if it is called twice
            np.save(file, pixels)

    def setup(self, stage=None):
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        parts = random_split(Stripes(noisy), [140, 30, 30], generator=generator)
        self.parts = dict(zip(["train", "validation", "test"], parts))

    def train_dataloader(self):
        return DataLoader(self.parts["train"], batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts["validation"], batch_size=16)

    def test_dataloader(self):
        return DataLoader(self.parts["test"], batch_size=16)
"""
MODEL = """
import torch
from pytorch_lightning import LightningModule
from torch.nn import functional


class Net(LightningModule):
    def __init__(self, sample_columns, num_classes):
        super().__init__()
        assert sample_columns["image"] == "float32[3,8,8]"
        self.layer = torch.nn.Linear(192, num_classes)

    def loss(self, batch, name):
        assert batch["image"].dtype == torch.float32
        loss = functional.cross_entropy(self.layer(batch["image"].flatten(1)), batch["labels"])
        self.log(name, loss)
        return loss

    def training_step(self, batch, index):
        return self.loss(batch, "train_loss")

    def validation_step(self, batch, index):
        self.loss(batch, "val_loss")

    def test_step(self, batch, index):
        self.loss(batch, "test_loss")
"""
ROW = {
    "name": "net", "dataset": "stripes", "model": "mypkg.models:Net", "devices": 1, "global_batch": 10,
    "optim.lr": 0.01, "evaluation.headline": {"metric": "test_loss", "mode": "min"},
}  # fmt: skip


def project(tiny: object, seed: int | None) -> Workspace:
    source = {"type": "mypkg.data:Module", "options": {"seed": seed}, "workers": 1}
    datasets = {"stripes": {"source": source, "shards": 4, "shards_per_job": 2}}
    workspace: Workspace = tiny(ROW, datasets=datasets)  # type: ignore[operator]
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/data.py", DATA)
    workspace.write("mypkg/models.py", MODEL)
    return workspace


@pytest.mark.slow
@pytest.mark.rotating
def test_a_data_module_is_prepared_once_built_trained_on_and_evaluated(tiny):
    workspace = project(tiny, seed=0)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    manifest = json.loads(workspace.the("results/datasets/*/manifest.json").read_text())
    assert manifest["splits"] == {"train": 140, "validation": 30, "test": 30}
    provenance = json.loads(workspace.the("results/datasets/*/provenance.json").read_text())
    assert provenance["prepared"]["id"] == f"prepare_data/{manifest['dataset']}"
    report = json.loads(workspace.the("results/reports/*/report.json").read_text())
    assert ["prepare_data", "build_shards"] in report["workflow"]["edges"]
    assert manifest["schema"]["columns"] == {"image": "uint8[8,8,3]", "labels": "int64"}
    assert manifest["schema"]["classes"] == ["across", "down"]
    prepared = json.loads(workspace.the("store/datasets/*/prepared.json").read_text())
    assert prepared["module"] == "mypkg.data:Module"
    log = workspace.the("logs/seal_dataset/*.log").read_text()
    assert "left out of train" in log
    built = "".join(
        Path(one).read_text() for one in workspace.matching("logs/build_shards/*/*.log")
    )
    assert 'write in the dataset\'s source: files: ["data/pixels.npy"]' in built
    assert "data.workers=auto uses processes:" in workspace.the("logs/train/*.log").read_text()
    evaluation = json.loads(workspace.the("results/runs/<net>/evaluations/*.json").read_text())
    assert evaluation["metrics"]["test_loss"] < 0.6, "of two classes"
    again = workspace.snakemake("--dry-run")
    assert "Nothing to be done" in again.stdout


@pytest.mark.rotating
@pytest.mark.slow
def test_a_random_split_without_a_seed_is_rejected_by_name(tiny):
    done = project(tiny, seed=None).snakemake()
    assert done.returncode != 0
    message = " ".join(done.stdout.split())
    assert (
        "source mypkg.data:Module: split train has other rows in this job than in another process"
        in message
    )
    assert "random_split(..., generator=torch.Generator().manual_seed(0))" in message
    assert "Traceback" not in message
