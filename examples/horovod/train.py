"""A PyTorch training loop in which Horovod averages the gradients over the ranks, by MPI."""

import sys

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy

import shardline_io as io


def tensors(batch):
    """Convert a batch to pixels [B, 64] from 0 to 1 and labels [B]."""
    return torch.from_numpy(batch["features"]).float() / 16, torch.from_numpy(batch["labels"])


def largest(number):
    """Return the largest number of all ranks."""
    return int(hvd.allreduce(torch.tensor(number), op=hvd.Max))


@torch.no_grad()
def evaluate(model, batches):
    """Return mean loss, accuracy and number of rows over all ranks."""
    sums = torch.zeros(3)
    for batch in batches:
        pixels, labels = tensors(batch)
        logits = model(pixels)
        loss = cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([loss, (logits.argmax(1) == labels).sum(), torch.tensor(len(labels))])
    sums = hvd.allreduce(sums, op=hvd.Sum)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2]), int(sums[2])


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    hvd.init()
    if hvd.size() != io.world().world_size:
        sys.exit(
            f"Horovod has {hvd.size()} ranks, expected {io.world().world_size}; set runtime.launcher: mpirun"
        )
    settings, hidden = io.settings(), io.model_args()["hidden"]
    torch.manual_seed(settings["seed"])  # so that all ranks start with the same weights
    model = torch.nn.Sequential(
        torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), settings["optim"]["lr"])
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    if saved := io.resume():  # must come after DistributedOptimizer, which resets the state
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
        loss = cross_entropy(model(pixels), labels)
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
    hvd.shutdown()


if __name__ == "__main__":
    main()
