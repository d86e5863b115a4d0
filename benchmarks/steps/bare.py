"""A training loop without a framework: `python -m benchmarks.steps.bare MODEL EPOCHS`, under torchrun."""

import os
import sys

import torch
import torch.distributed as dist
from benchmarks.steps.timed import ACCELERATOR, EPOCH_STEPS, GLOBAL_BATCH, MODELS, Clock, rows
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    name, epochs = sys.argv[1], int(sys.argv[2])
    rank, ranks = (
        int(os.environ.get(key, default)) for key, default in (("RANK", 0), ("WORLD_SIZE", 1))
    )
    torch.manual_seed(1)
    on_gpu = ACCELERATOR == "gpu"
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        if on_gpu
        else torch.device("cpu")
    )
    model = MODELS[name]().layers.to(device)
    if ranks > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
        model = DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    features, labels = rows(GLOBAL_BATCH * EPOCH_STEPS)
    clock, batch = Clock(rank), GLOBAL_BATCH // ranks
    for epoch in range(epochs):
        order = torch.randperm(len(features))
        for chosen in order.split(batch)[rank::ranks]:
            optimizer.zero_grad()
            batch_rows, batch_labels = features[chosen].to(device), labels[chosen].to(device)
            loss = functional.cross_entropy(model(batch_rows), batch_labels)
            loss.backward()
            optimizer.step()
            loss.item()
            clock.read(epoch)
    clock.write()


if __name__ == "__main__":
    main()
