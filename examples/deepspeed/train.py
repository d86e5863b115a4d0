"""Train with a DeepSpeed engine: ZeRO splits the optimiser's state, and each rank saves its part."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import shardline_io as io

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # leave this line out on GPUs
import deepspeed  # reads the variable, so it must come after


def tensors(batch):
    """Convert a batch to pixels [B, 64] from 0 to 1 and labels [B]."""
    return torch.from_numpy(batch["features"]).float() / 16, torch.from_numpy(batch["labels"])


def largest(number):
    """Return the largest number of all ranks."""
    value = torch.tensor(number)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


@torch.no_grad()
def evaluate(engine, batches):
    """Return mean loss, accuracy and number of rows over all ranks."""
    sums = torch.zeros(3)
    for batch in batches:
        pixels, labels = tensors(batch)
        logits = engine(pixels)
        loss = cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([loss, (logits.argmax(1) == labels).sum(), torch.tensor(len(labels))])
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2]), int(sums[2])


def make_engine(settings, hidden, stage=2):
    """Return the engine of a multilayer perceptron with ZeRO stage 1 or 2."""
    torch.manual_seed(settings["seed"])
    model = torch.nn.Sequential(
        torch.nn.Linear(64, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10),
    )  # fmt: skip
    config = {
        "train_batch_size": settings["global_batch"],
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
        "steps_per_print": 1_000_000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), settings["optim"]["lr"])
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    deepspeed.init_distributed("gloo")  # "nccl" on GPUs
    engine = make_engine(io.settings(), **io.model_args())
    if saved := io.resume():
        engine.load_checkpoint(saved.folder, tag="engine")

    def save(step):
        with io.checkpoint(step) as folder:
            engine.save_checkpoint(folder, tag="engine")  # on every rank: each writes its part

    per_epoch = io.num_steps(0)
    for batch in io.train():
        pixels, labels = tensors(batch)
        loss = cross_entropy(engine(pixels), labels)
        engine.backward(loss)
        engine.step()
        if io.should_stop(largest):
            save(batch.step)
            io.stop()
        if batch.step % per_epoch == 0:
            val_loss, val_accuracy, _ = evaluate(engine, io.validation())
            io.log(
                batch.step, epoch=batch.epoch, train_loss=loss.item(), val_loss=val_loss,
                val_accuracy=val_accuracy,
            )  # fmt: skip
            print(
                f"progress step={batch.step}/{io.num_steps()} val_loss={val_loss:.3f}", flush=True
            )
            save(batch.step)
    _, accuracy, rows = evaluate(engine, io.test())
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model({name: value.numpy() for name, value in engine.module.state_dict().items()})
    dist.barrier()  # no destroy_process_group(), since gloo may hang: docs/how-to/use-another-framework.md


if __name__ == "__main__":
    main()
