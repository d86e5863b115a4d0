"""A training loop without a framework, its data in memory: `python -m benchmarks.gpu.bare WORK.json`.

Batches lie in page-locked memory as the shards hold them, and are copied and normalised as Shardline does it:
what differs is reading, shuffling, and what surrounds a step.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.sizes import CLASSES
from benchmarks.gpu.turns import Turns
from torch.nn import functional

from shardline.training.models.gpt import GPT
from shardline.training.models.resnet import ResNet


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    device = torch.device(task["device"])
    is_gpu = device.type == "cuda"
    # as a run with `deterministic: true` has it
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(1)
    model, batches, loss_of = _image_work(task) if task["unit"] == "images" else _token_work(task)
    model = model.to(device).train()
    for part in _compiled(model) if task["compiled"] else ():
        part.compile()
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    held = [[part.pin_memory() if is_gpu else part for part in batch] for batch in batches]
    turns, number = Turns(device), 0
    turns.wait()
    while True:
        batch = [part.to(device, non_blocking=True) for part in held[number % len(held)]]
        number += 1
        mixed = torch.autocast(device.type, torch.bfloat16) if task["mixed"] else nullcontext()
        optimizer.zero_grad()
        with mixed:
            loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        turns.step_ended()


def _compiled(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [model.body] if isinstance(model, ResNet) else list(model.blocks)  # type: ignore[arg-type]


def _image_work(task: dict[str, Any]) -> tuple[torch.nn.Module, list[list[torch.Tensor]], Any]:
    size, batch = task["options"]["size"], task["batch"]
    model = ResNet(CLASSES, channels=3, **task["model_args"])

    def loss_of(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        normal = torch.sub(images.float(), 64.0).mul_(1 / 40)
        return functional.cross_entropy(model(normal), labels)

    made = [
        [torch.randint(0, 128, (batch, 3, size, size), dtype=torch.uint8), torch.randint(0, CLASSES, (batch,))]
        for _ in range(task["copies"])
    ]  # fmt: skip
    return model, made, loss_of


def _token_work(task: dict[str, Any]) -> tuple[torch.nn.Module, list[list[torch.Tensor]], Any]:
    vocab, length = task["options"]["vocab"], task["options"]["length"]
    model = GPT(context=length, **task["model_args"])

    def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens.long()
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    made = [
        [torch.randint(0, vocab, (task["batch"], length), dtype=torch.int32).to(torch.uint16)]
        for _ in range(task["copies"])
    ]  # fmt: skip
    return model, made, loss_of


if __name__ == "__main__":
    main()
