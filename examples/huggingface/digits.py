"""The parts that train.py and loop.py share: a Vision Transformer, its inputs and its evaluation."""

import torch
from transformers import ViTConfig, ViTForImageClassification

import shardline_io as io


def make_model(folder=None):
    """Return a Vision Transformer of the run's width from a config, without a download.

    Args:
        folder: Folder with weights from `save_pretrained`; None: the weights are random.
    """
    if folder:
        return ViTForImageClassification.from_pretrained(folder)
    width = io.model_args()["hidden"]
    config = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=2, num_attention_heads=4, num_labels=10, hidden_dropout_prob=0.1,
    )  # fmt: skip
    return ViTForImageClassification(config)


def inputs_of(batch):
    """Convert a batch to the model's inputs: pixels [B, 1, 8, 8] from 0 to 1, and labels [B]."""
    pixels = torch.from_numpy(batch["features"]).float().reshape(-1, 1, 8, 8) / 16
    return {"pixel_values": pixels, "labels": torch.from_numpy(batch["labels"])}


@torch.no_grad()
def evaluate(model, batches, add_over_ranks):
    """Return mean loss, accuracy and number of rows over all ranks.

    Args:
        add_over_ranks: Function that sums a tensor over all ranks.
    """
    was_training, sums = model.training, torch.zeros(3)
    model.eval()
    for batch in batches:
        inputs = inputs_of(batch)
        found, rows = model(**inputs), len(inputs["labels"])
        right = (found.logits.argmax(1) == inputs["labels"]).sum()
        sums += torch.tensor([float(found.loss) * rows, float(right), rows])
    model.train(was_training)
    sums = add_over_ranks(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2]), int(sums[2])
