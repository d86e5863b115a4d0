"""A training loop with Accelerate, which saves and restores the objects that it has prepared."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import get_linear_schedule_with_warmup

import shardline_io as io
from digits import evaluate, inputs_of, make_model


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    settings, accelerator = io.settings(), Accelerator(cpu=True)
    set_seed(settings["seed"])
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), settings["optim"]["lr"])
    schedule = get_linear_schedule_with_warmup(optimizer, 20, io.num_steps())
    model, optimizer = accelerator.prepare(model, optimizer)
    # a prepared schedule would step once for each rank, so it is only registered
    accelerator.register_for_checkpointing(schedule)
    if saved := io.resume():
        accelerator.load_state(saved.folder)

    def total(numbers):
        return accelerator.reduce(numbers, "sum")

    def largest(number):
        return int(total(torch.tensor(number)) > 0)

    def save(step):
        with io.checkpoint(step) as folder:
            accelerator.save_state(folder)

    per_epoch = io.num_steps(0)
    for batch in io.train():
        loss = model(**inputs_of(batch)).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if io.should_stop(largest):
            save(batch.step)
            io.stop()
        if batch.step % per_epoch == 0:
            val_loss, val_accuracy, _ = evaluate(model, io.validation(), total)
            io.log(
                batch.step, epoch=batch.epoch, train_loss=loss.item(), val_loss=val_loss, val_accuracy=val_accuracy
            )  # fmt: skip
            print(
                f"progress step={batch.step}/{io.num_steps()} val_loss={val_loss:.3f}", flush=True
            )
            save(batch.step)
    _, accuracy, rows = evaluate(model, io.test(), total)
    io.write_evaluation({"accuracy": accuracy}, rows)
    weights = accelerator.unwrap_model(model).state_dict()
    io.save_model({name: value.numpy() for name, value in weights.items()})
    accelerator.wait_for_everyone()  # no end_training(), since gloo may hang: docs/how-to/use-another-framework.md


if __name__ == "__main__":
    main()
