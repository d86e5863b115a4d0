"""A training loop with plain torch and DDP, which torchrun, srun or mpirun starts on each rank."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shardline_io as io


def tensors(batch):
    """Convert a batch to pixels [B, 64] from 0 to 1 and labels [B]."""
    return torch.from_numpy(batch["features"]).float() / 16, torch.from_numpy(batch["labels"])


def largest(number):
    """Return the largest number of all ranks."""
    value = torch.tensor(number)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def evaluate(model, batches):
    """Return mean loss, accuracy and number of rows over all ranks."""
    sums = torch.zeros(3)
    with torch.no_grad():
        for batch in batches:
            pixels, labels = tensors(batch)
            logits = model(pixels)
            loss = cross_entropy(logits, labels, reduction="sum")
            sums += torch.stack(
                [loss, (logits.argmax(1) == labels).sum(), torch.tensor(len(labels))]
            )
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2]), int(sums[2])


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    dist.init_process_group("gloo")  # "nccl" on GPUs
    settings, hidden = io.settings(), io.model_args()["hidden"]
    torch.manual_seed(settings["seed"])
    model = torch.nn.Sequential(
        torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), settings["optim"]["lr"])
    if saved := io.resume():
        state = torch.load(saved.folder / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save(step):
        with io.checkpoint(step) as folder:
            if io.world().rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / "state.pt")

    per_epoch = io.num_steps(0)
    for batch in io.train():
        pixels, labels = tensors(batch)
        loss = cross_entropy(ddp(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if io.should_stop(largest):
            save(batch.step)
            io.stop()
        if batch.step % per_epoch == 0:
            val_loss, val_accuracy, _ = evaluate(model, io.validation())
            io.log(
                batch.step, epoch=batch.epoch, train_loss=loss.item(), val_loss=val_loss,
                val_accuracy=val_accuracy,
            )  # fmt: skip
            print(
                f"progress step={batch.step}/{io.num_steps()} val_loss={val_loss:.3f}", flush=True
            )
            save(batch.step)
    _, accuracy, rows = evaluate(model, io.test())
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model({name: value.numpy() for name, value in model.state_dict().items()})
    dist.barrier()  # no destroy_process_group(), since gloo may hang: docs/how-to/use-another-framework.md


if __name__ == "__main__":
    main()
