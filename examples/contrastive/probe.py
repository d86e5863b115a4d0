"""What the features are worth: a linear classifier on them, with few labels.

python probe.py RUN, as `make probe` does.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from simclr import Contrastive
from sklearn.linear_model import LogisticRegression

TRAINED_ON = 60  # labels, ten of a kind


def main(folder: Path) -> None:
    """Print the accuracy with the trained encoder, and with one that never learned."""
    settings = json.loads((folder / "run.json").read_text())["settings"]
    images = torch.from_numpy(np.load("data/labelled.npy")).float() / 128 - 1
    kinds = np.load("data/kinds.npy")
    torch.manual_seed(0)
    model = Contrastive(**settings["model_args"])
    print(f"accuracy of features without training: {accuracy(model, images, kinds):.1%}")
    model.load_state_dict(load_file(folder / "model.safetensors"))
    print(f"accuracy of features: {accuracy(model, images, kinds):.1%}")


def accuracy(model: Contrastive, images: torch.Tensor, kinds: np.ndarray) -> float:
    """Return the share of the other images that a classifier on the features gets right."""
    with torch.inference_mode():
        features = model(images).numpy()
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    classifier = LogisticRegression(max_iter=1000).fit(features[:TRAINED_ON], kinds[:TRAINED_ON])
    return float(classifier.score(features[TRAINED_ON:], kinds[TRAINED_ON:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
