"""The Trainer of Hugging Face: it consumes io's batches, and its own checkpoints are what a resume begins from."""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import shardline_io as io
from digits import evaluate, inputs_of, make_model


class Stream(IterableDataset):
    """This rank's batches of all epochs, from the step behind the last checkpoint."""

    def __iter__(self):
        return map(inputs_of, io.train())


class StreamTrainer(Trainer):
    """A Trainer that takes batches as they come."""

    def get_train_dataloader(self):
        """Return the batches as they are, since Accelerate would split them among the ranks again."""
        # a generator of its own: a loader draws a number when it begins, which a resumed training would draw twice
        return DataLoader(self.train_dataset, batch_size=None, generator=torch.Generator())


class Shardline(TrainerCallback):
    """Curves, checkpoints and stops of the run."""

    stopped = False

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        """Record the loss of each step, and the figures on the validation rows where an epoch ends."""
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
        """Have Trainer save and end where the run is to stop."""
        if io.should_stop(largest):
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        """Make the folder that Trainer wrote a checkpoint of the run, once all ranks have written theirs."""
        with io.checkpoint(state.global_step) as folder:
            dist.barrier()
            if io.world().rank == 0:
                shutil.rmtree(folder / "trainer", ignore_errors=True)
                (Path(args.output_dir) / f"checkpoint-{state.global_step}").rename(
                    folder / "trainer"
                )


def total(numbers):
    """Return the sums over the ranks."""
    dist.all_reduce(numbers)
    return numbers


def largest(number):
    """Return the largest of the ranks' numbers."""
    value = torch.tensor(number)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def main():
    """Train; an epoch's end and a stop save."""
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
        ignore_data_skip=True,  # io.train() begins behind the checkpoint
        logging_nan_inf_filter=False,  # a loss that is no number is to be seen
        logging_steps=1,  # a mean over more steps would begin again with each attempt
        save_strategy="steps",
        save_steps=io.num_steps(0),
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(settings["seed"])
    folder = saved.folder / "trainer" if (saved := io.resume()) else None
    # Trainer restores optimiser, schedule and random numbers. Of the weights it passes over those whose names
    # save_pretrained writes in another form, as of this model's blocks, and reports that as a warning alone.
    model = make_model(folder)
    trainer = StreamTrainer(model, arguments, train_dataset=Stream(), callbacks=[watch])
    trainer.train(resume_from_checkpoint=folder and str(folder))
    if watch.stopped:
        io.stop()
    _, accuracy, rows = evaluate(trainer.model, io.test(), total)
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model({name: value.numpy() for name, value in trainer.model.state_dict().items()})
    dist.barrier()  # and no destroy_process_group(), by which gloo may hang: docs/how-to/use-another-framework.md


if __name__ == "__main__":
    main()
