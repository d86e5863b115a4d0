"""Train with Hugging Face's Trainer, on batches of shardline_io; a resume loads Trainer's own checkpoint."""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import shardline_io as io
from digits import evaluate, inputs_of, make_model


class Stream(IterableDataset):
    """This rank's batches of all epochs, starting after the last checkpoint."""

    def __iter__(self):
        return map(inputs_of, io.train())


class StreamTrainer(Trainer):
    """A Trainer that uses the batches unchanged."""

    def get_train_dataloader(self):
        """Return a plain loader, since Accelerate would split the batches among the ranks again."""
        # a loader draws a random number when it starts, so without its own generator a resume would change dropout
        return DataLoader(self.train_dataset, batch_size=None, generator=torch.Generator())


class Shardline(TrainerCallback):
    """Connects Trainer with Shardline: curves, checkpoints and stops."""

    stopped = False

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        """Log the loss of each step, and the validation metrics at the end of an epoch."""
        if "loss" not in logs:  # the summary at the end
            return
        step, found = state.global_step, {"train_loss": logs["loss"]}
        if step % io.num_steps(0) == 0:
            found["val_loss"], found["val_accuracy"], _ = evaluate(model, io.validation(), total)
            print(
                f"progress step={step}/{state.max_steps} val_loss={found['val_loss']:.3f}",
                flush=True,
            )
        io.log(step, epoch=(step - 1) // io.num_steps(0), **found)

    def on_step_end(self, args, state, control, **kwargs):
        """Let Trainer save and end when the run must stop."""
        if io.should_stop(largest):
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        """Move Trainer's checkpoint into the run's checkpoint, once all ranks have written their parts."""
        with io.checkpoint(state.global_step) as folder:
            dist.barrier()
            if io.world().rank == 0:
                shutil.rmtree(folder / "trainer", ignore_errors=True)
                (Path(args.output_dir) / f"checkpoint-{state.global_step}").rename(
                    folder / "trainer"
                )


def total(numbers):
    """Return the sum of a tensor over all ranks."""
    dist.all_reduce(numbers)
    return numbers


def largest(number):
    """Return the largest number of all ranks."""
    value = torch.tensor(number)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    settings, watch = io.settings(), Shardline()
    arguments = TrainingArguments(
        output_dir=io.work_folder() / "trainer",
        use_cpu=True,
        ddp_backend="gloo",
        seed=settings["seed"],
        per_device_train_batch_size=settings["global_batch"] // io.world().world_size,
        learning_rate=settings["optim"]["lr"],
        warmup_steps=20,
        max_steps=io.num_steps(),
        ignore_data_skip=True,  # io.train() already starts after the checkpoint
        logging_nan_inf_filter=False,  # show NaN losses
        logging_steps=1,  # a mean over several steps would restart with each attempt
        save_strategy="steps",
        save_steps=io.num_steps(0),
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(settings["seed"])
    folder = saved.folder / "trainer" if (saved := io.resume()) else None
    # Trainer restores optimiser, schedule and random state, but not all weights: it skips weights that save_pretrained
    # has renamed, such as this model's blocks, with only a warning. So make_model loads the weights.
    model = make_model(folder)
    trainer = StreamTrainer(model, arguments, train_dataset=Stream(), callbacks=[watch])
    trainer.train(resume_from_checkpoint=folder and str(folder))
    if watch.stopped:
        io.stop()
    _, accuracy, rows = evaluate(trainer.model, io.test(), total)
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model({name: value.numpy() for name, value in trainer.model.state_dict().items()})
    dist.barrier()  # no destroy_process_group(), since gloo may hang: docs/how-to/use-another-framework.md


if __name__ == "__main__":
    main()
