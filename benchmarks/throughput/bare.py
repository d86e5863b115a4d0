"""A training loop without a framework, its data in memory: `python -m benchmarks.throughput.bare WORK`."""

import sys

import torch
from benchmarks.throughput.turns import Turns
from benchmarks.throughput.works import WORKS
from torch.nn import functional


def main() -> None:
    work = WORKS[sys.argv[1]]
    torch.manual_seed(1)
    model = work.model.__bases__[1](**work.arguments, **work.model_args)
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    inputs, targets = work.make()
    turns = Turns()
    turns.wait()
    while True:
        for rows in torch.randperm(len(inputs)).split(work.batch):
            if len(rows) < work.batch:
                continue
            optimizer.zero_grad()
            logits = model(inputs[rows])
            loss = functional.cross_entropy(logits.flatten(0, -2), targets[rows].flatten())
            loss.backward()
            optimizer.step()
            loss.item()
            turns.step_ended()


if __name__ == "__main__":
    main()
