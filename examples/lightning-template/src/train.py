"""Train and test: python src/train.py [key=value ...], such as seed=2 trainer.max_epochs=3."""

import os
import sys
from pathlib import Path
from typing import Any

import lightning as L
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from src.utils.instantiators import instantiate  # noqa: E402


def load_config(overrides: list[str]) -> dict[str, Any]:
    """Return configs/train.yaml with its parts, and with the values of a command line."""
    folder = ROOT / "configs"
    config: dict[str, Any] = yaml.safe_load((folder / "train.yaml").read_text())
    for group, name in config.pop("defaults").items():
        config[group] = yaml.safe_load((folder / group / f"{name}.yaml").read_text())
    for override in overrides:
        key, _, value = override.partition("=")
        *groups, last = key.split(".")
        table = config
        for group in groups:
            table = table[group]
        table[last] = yaml.safe_load(value)
    return config


def train(config: dict[str, Any]) -> dict[str, float]:
    """Train and test a model, and return the metrics."""
    L.seed_everything(config["seed"], workers=True)
    datamodule = instantiate(config["data"])
    model = instantiate(config["model"])
    callbacks = [instantiate(one) for one in config["callbacks"].values()]
    logger = instantiate(config["logger"])
    trainer = instantiate(config["trainer"], callbacks=callbacks, logger=logger)
    trainer.fit(model=model, datamodule=datamodule, ckpt_path=config["ckpt_path"])
    metrics = dict(trainer.callback_metrics)
    if config["test"]:
        best = trainer.checkpoint_callback.best_model_path
        # the checkpoint contains the objects of save_hyperparameters
        trainer.test(model, datamodule=datamodule, ckpt_path=best, weights_only=False)
        metrics |= trainer.callback_metrics
    return {name: float(value) for name, value in metrics.items()}


if __name__ == "__main__":
    os.chdir(ROOT)
    for name, value in sorted(train(load_config(sys.argv[1:])).items()):
        print(f"{name} {value:.4f}")
