"""A training program of plain torch and DDP that reads its variables itself, without `shardline_io`."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

SETTINGS = json.loads(Path(os.environ["SHARDLINE_RUN_JSON"]).read_text())["settings"]
MANIFEST = json.loads(Path(os.environ["SHARDLINE_MANIFEST"]).read_text())
SHARDS, WORK, OUTPUT = (
    Path(os.environ[f"SHARDLINE_{name}"]) for name in ("SHARDS", "WORK", "OUTPUT")
)


def load(split):
    """Return all rows of a split; a shard holds one split after the other."""
    features, labels = [], []
    for shard in MANIFEST["shards"]:
        splits = list(shard["rows"])
        first = sum(shard["rows"][name] for name in splits[: splits.index(split)])
        rows = slice(first, first + shard["rows"][split])
        with safe_open(SHARDS / shard["file"], framework="pt") as file:
            features.append(file.get_slice("features")[rows].flatten(1).float())
            labels.append(file.get_slice("labels")[rows])
    return torch.cat(features), torch.cat(labels)


def main(lr):
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SETTINGS["seed"])
    features, labels = load("train")
    batch = SETTINGS["global_batch"]
    model = torch.nn.Linear(features.shape[1], len(MANIFEST["schema"]["classes"]))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr)

    last, first_epoch, records = WORK / "last.ckpt", 0, []
    if last.exists():  # an earlier attempt came this far
        state = torch.load(last)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, records = state["epochs"], state["records"]
    for epoch in range(first_epoch, SETTINGS["trainer"]["max_epochs"]):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        num_batches = len(order) // batch
        for rows in order[: num_batches * batch].reshape(num_batches, batch):
            mine = rows[rank::world_size]
            optimizer.zero_grad()
            loss = cross_entropy(ddp(features[mine]), labels[mine])
            loss.backward()
            optimizer.step()
        if rank == 0:
            step = (epoch + 1) * num_batches
            records.append({"step": step, "epoch": epoch, "train_loss": loss.item()})
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epochs": epoch + 1, "records": records}, WORK / "new.ckpt")
            (WORK / "new.ckpt").replace(last)
            print(
                f"progress step={step}/{num_batches * SETTINGS['trainer']['max_epochs']} ",
                flush=True,
            )

    if rank == 0:
        features, labels = load(SETTINGS["evaluation"]["split"])
        accuracy = (model(features).argmax(dim=1) == labels).double().mean().item()
        evaluation = {"metrics": {"accuracy": accuracy}, "num_samples": len(labels)}
        save_file(model.state_dict(), OUTPUT / "model.safetensors")
        (OUTPUT / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        (OUTPUT / "evaluation.json").write_text(json.dumps(evaluation))
    dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    main(parser.parse_args().lr)
