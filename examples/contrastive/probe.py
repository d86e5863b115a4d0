"""Measure the quality of the features with a linear classifier and few labels.

Run `make probe`, or python probe.py RUN.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from simclr import Contrastive
from sklearn.linear_model import LogisticRegression

TRAINED_ON = 60  # labels, about ten of each kind


def main(folder: Path) -> None:
    """Print the accuracy with an untrained encoder and with the trained encoder."""
    settings = json.loads((folder / "run.json").read_text())["settings"]
    images = torch.from_numpy(np.load("data/labelled.npy")).float() / 128 - 1
    kinds = np.load("data/kinds.npy")
    torch.manual_seed(0)
    model = Contrastive(**settings["model_args"])
    print(f"accuracy of features without training: {accuracy(model, images, kinds):.1%}")
    model.load_state_dict(load_file(folder / "model.safetensors"))
    print(f"accuracy of features: {accuracy(model, images, kinds):.1%}")


def accuracy(model: Contrastive, images: torch.Tensor, kinds: np.ndarray) -> float:
    """Fit a classifier on the first images, and return its accuracy on the other images."""
    with torch.inference_mode():
        features = model(images).numpy()
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    classifier = LogisticRegression(max_iter=1000).fit(features[:TRAINED_ON], kinds[:TRAINED_ON])
    return float(classifier.score(features[TRAINED_ON:], kinds[TRAINED_ON:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
