"""The config that is begun for a project with code: what the classes and the project's own YAML files say."""

import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from shardline.config.load import load_project
from shardline.errors import ConfigError
from shardline.results.project_init import project_text
from shardline.results.project_init.own_configs import OwnConfigs
from tests.support.workspace import REPOSITORY

NETS = """
    class Dense:
        def __init__(self, width: int = 64, depth=2): ...

    class Wide(Dense):
        def __init__(self, width: int): ...
"""
MODEL = """
    from __future__ import annotations

    import functools
    import pathlib

    from src.nets import Dense, Wide

    def decay(rate, by=0.5): ...

    class Act: ...

    class Base:
        def training_step(self, batch, batch_idx):
            x, y = batch
            self.log("train/loss", 0)

    class Net(Base):
        def __init__(
            self, net: Dense, wide: Wide, optimizer: Optimizer, num_classes, rate=0.1, act=Act(), sizes=(1, 2),
            decay=functools.partial(decay, by=2), place=pathlib.Path("a/b"), *, name: str = "é", **more
        ):
            ...

        def validation_step(self, batch, batch_idx):
            self.log("val/acc", 1)
            self.log_dict({"val/loss": 1, "val/f1": 2})

        def configure_optimizers(self): ...

    def plain(lr=0.1): ...

    class Dict:
        def validation_step(self, batch, batch_idx):
            self.log("val_acc", batch["x"])
"""
DATA = """
    print("a line on the standard output")

    class Digits:
        def __init__(self, root, data_dir="data", batch_size=32, num_workers=4, seed=1): ...

    class Module:
        def train_dataloader(self): ...

        def val_dataloader(self): ...

    class Rows:
        def __init__(self, n=3): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"src/nets.py": NETS, "src/model.py": MODEL, "src/data.py": DATA, "src/__init__.py": ""}
    for name, text in texts.items():
        write(tmp_path / name, text)
    shutil.copy(REPOSITORY / "requirements.lock", tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))


def begun(model: str, data: str, folder: Path) -> tuple[dict[str, Any], str, list[str]]:
    found = project_text(model, data, folder)
    write(folder / "config/config.yaml", found.config)
    write(folder / "config/runs.tsv", found.table)
    return yaml.safe_load(found.config), found.config, found.left


def test_arguments_are_filled_with_defaults_and_objects_and_the_others_are_comments(
    folder: Path,
) -> None:
    config, text, left = begun("src.model:Net", "src.data:Digits", folder)
    assert config["defaults"]["model_args"] == {
        "net": {"type": "src.nets:Dense", "width": 64, "depth": 2},
        "rate": 0.1,
        "sizes": [1, 2],
        "decay": {"type": "src.model:decay", "partial": True, "by": 2},
        "place": "a/b",
        "name": "é",
    }
    assert "    # wide: ... # required (src.nets.Wide)\n" in text
    assert '    # optimizer: {type: "torch.optim:Adam", partial: true, lr: 0.001} # requi' in text
    assert "    # act: its default is Act\n" in text
    assert "num_classes" not in text  # Shardline passes it
    source = config["datasets"]["digits"]["source"]
    assert source == {
        "type": "src.data:Digits",
        "options": {"data_dir": "data", "seed": 1},
        "files": [],
    }
    assert "      # options.root: ... # required" in text
    assert config["defaults"]["global_batch"] == 32
    assert config["defaults"]["data"] == {"normalize": "raw", "collate": "tuple"}
    assert config["defaults"]["checkpoint"] == {"monitor": "val/loss", "mode": "min"}
    assert "optim" not in config["defaults"]
    assert [sentence.partition(" ")[0] for sentence in left] == [
        "datasets.digits.source.options.root", "datasets.digits.source.files", "defaults.trainer.max_epochs",
        "checkpoint.monitor", "model_args.wide", "model_args.optimizer",
    ]  # fmt: skip


def test_the_config_is_valid_and_its_objects_are_found(folder: Path) -> None:
    begun("src.model:Net", "src.data:Digits", folder)
    (run,) = load_project(workdir=folder).runs.values()
    assert run.name == "net"
    assert {"model", "model_args.net", "model_args.decay"} <= set(run.code_paths)


HYDRA = """
    net: {_target_: src.nets.Wide, width: 3}
    optimizer:
      _target_: torch.optim.SGD
      _partial_: true
      lr: 0.5
    rate: ${some.rate}
    sizes: [4, "${other}"]
    wide: {_target_: src.nets.Wide, width: 4}
    _target_: src.model.Net
"""


def test_the_projects_own_yaml_files_come_before_defaults(folder: Path) -> None:
    write(folder / "configs/model/net.yaml", HYDRA)
    write(folder / "configs/data/d.yaml", "_target_: src.data.Digits\nroot: d\nbatch_size: 48\n")
    trainer = """
        _target_: lightning.pytorch.Trainer
        default_root_dir: ${paths.out}
        devices: 4
        max_epochs: 7
        max_steps: -1
        min_epochs: null
        precision: 16-mixed
    """
    write(folder / "configs/trainer/default.yaml", trainer)
    callbacks = """
        checkpoint: {_target_: lightning.pytorch.callbacks.ModelCheckpoint, monitor: val/acc, mode: max}
        stop: {_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val/acc, mode: max, patience: 9}
    """
    write(folder / "configs/callbacks.yaml", callbacks)
    (folder / "d").mkdir()
    write(folder / "d/one.bin", "x")
    for ignored in ("broken: [", "_target_: 3\n", "type: 'a:b'\npartial: 3\n"):
        write(folder / f"configs/{len(ignored)}.yaml", ignored)
    config, text, left = begun("src.model:Net", "src.data:Digits", folder)
    args = config["defaults"]["model_args"]
    assert args["net"] == {"type": "src.nets:Wide", "width": 3}
    assert args["optimizer"] == {"type": "torch.optim:SGD", "partial": True, "lr": 0.5}
    assert (args["rate"], args["wide"]) == (0.1, {"type": "src.nets:Wide", "width": 4})
    assert "model_args: # arguments of the constructor, as in configs/model/net.yaml\n" in text
    assert config["defaults"]["global_batch"] == 48
    assert config["defaults"]["trainer"] == {"max_epochs": 7}
    assert config["defaults"]["precision"] == "16-mixed"
    assert config["defaults"]["checkpoint"] == {"monitor": "val/acc", "mode": "max"}
    assert config["defaults"]["early_stopping"]["patience"] == 9
    source = config["datasets"]["digits"]["source"]
    assert source["options"] == {"root": "d", "data_dir": "data", "seed": 1}
    assert source["files"] == ["d/**"]
    assert left == []
    assert load_project(workdir=folder).runs


def test_the_spelling_of_lightning_cli_is_read(folder: Path) -> None:
    cli = """
        model:
          class_path: src.model.Net
          init_args: {rate: 2.0, net: {class_path: src.nets.Dense, init_args: {width: 8}}}
    """
    write(folder / "fit.yaml", cli)
    found = OwnConfigs(folder).find("src.model:Net")
    assert found is not None
    assert found.arguments == {"rate": 2.0, "net": {"type": "src.nets:Dense", "width": 8}}
    assert OwnConfigs(folder).find("src.model:Other") is None


CLI = """
    seed_everything: 3
    trainer: {max_epochs: 7, gpus: null, check_val_every_n_epoch: 1, logger: {class_path: WandbLogger}}
    model: {name: cli, rate: 3.0}
    data: {root: d, batch_size: 16}
    optimizer: {class_path: AdamW, init_args: {lr: 0.2, betas: [0.8, 0.9]}}
    lr_scheduler: {class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 4}}
"""


def test_sections_of_lightning_cli_that_name_no_class_are_read(folder: Path) -> None:
    write(folder / "configs/default.yaml", CLI)
    write(folder / "configs/a.yaml", CLI.replace("7", "8"))
    write(folder / "a.yaml", "trainer: {lr: 1}\nmodel: {name: other}\n")  # of another program
    config, text, _ = begun("src.model:Net", "src.data:Digits", folder)
    assert config["defaults"]["trainer"] == {"max_epochs": 7}
    args = config["defaults"]["model_args"]
    assert (args["name"], args["rate"]) == ("cli", 3.0)
    assert "# arguments of the constructor, as in configs/default.yaml" in text
    assert config["datasets"]["digits"]["source"]["options"]["root"] == "d"
    assert config["defaults"]["global_batch"] == 16
    assert "optim" not in config["defaults"], "the model has configure_optimizers"


def test_the_optimizer_of_lightning_cli_is_that_of_a_model_without_one(folder: Path) -> None:
    write(folder / "default.yaml", CLI.replace("max_epochs: 7", "max_steps: 70"))
    config, _, _ = begun("src.model:Dict", "src.data:Rows", folder)
    assert config["defaults"]["optim"] == {
        "name": "torch.optim:AdamW", "lr": 0.2, "weight_decay": 0.01, "args": {"betas": [0.8, 0.9]}
    }  # fmt: skip
    assert config["defaults"]["trainer"] == {"max_steps": 70, "max_epochs": -1}
    assert config["defaults"]["schedule"] == {
        "name": "torch.optim.lr_scheduler:StepLR", "interval": "epoch", "args": {"step_size": 4}
    }  # fmt: skip
    assert load_project(workdir=folder).runs


def test_a_folder_with_hidden_files_alone_is_no_pattern(folder: Path) -> None:
    (folder / "data").mkdir()
    write(folder / "data/.gitkeep", "")
    config, _, _ = begun("src.model:Net", "src.data:Digits", folder)
    assert config["datasets"]["digits"]["source"]["files"] == []


def test_other_models_and_data(folder: Path) -> None:
    config, _, _ = begun("src.model:Dict", "src.data:Rows", folder)
    assert config["defaults"]["data"] == {"normalize": "raw"}, "it reads its batch by name"
    assert config["defaults"]["checkpoint"] == {"monitor": "val_acc", "mode": "max"}
    assert "optim" in config["defaults"]
    assert "evaluation" not in config["defaults"]
    _, _, left = begun("src.model:Base", "src.data:Rows", folder)
    assert any("src.model:Base has no validation_step" in one for one in left)
    config, _, _ = begun("src.model:Dict", "src.data:Module", folder)
    assert config["defaults"]["evaluation"] == {"split": "validation"}
    write(folder / "t.csv", "a,b,label\n1,2,x\n2,3,y\n3,4,x\n4,5,y\n5,6,x\n")
    config, _, _ = begun("mlp", "t.csv", folder)
    assert config["datasets"]["t"]["source"]["label"] == "label"
    assert "model_args" not in config["defaults"]
    assert load_project(workdir=folder).runs


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("src.model:Nett", "src.model:Nett does not import: AttributeError"),
        (
            "src.model.Net",
            "init --model=src.model.Net is neither a shipped model nor an import path",
        ),
        ("src.nothing:Net", "src.nothing:Net does not import: ModuleNotFoundError"),
        ("inner.nets:Net", "or set PYTHONPATH=src for all commands"),
        ("src.exits:Net", "importing src.exits:Net ended the process with code 3: bye"),
        ("src.model:functools", "src.model:functools is of type module, expected a class"),
    ],
)
def test_a_class_that_does_not_import_is_named(folder: Path, model: str, words: str) -> None:
    write(folder / "src/exits.py", "import os\nprint('bye', flush=True)\nos._exit(3)\n")
    write(folder / "src/inner/nets.py", "")
    with pytest.raises(ConfigError) as caught:
        project_text(model, "src.data:Rows" if "exits" not in model else "mlp", folder)
    assert words in str(caught.value)
