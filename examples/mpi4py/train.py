"""A training loop with NumPy, whose ranks sum their gradients by MPI."""

import sys

import numpy as np
from mpi4py import MPI

import shardline_io as io

RANKS = MPI.COMM_WORLD


def loss_of(model, batch):
    """Return each row's cross entropy [B], its gradient for the logits [B, 10], and the layers' inputs."""
    pixels = batch["features"].astype(np.float32) / 16
    hidden = np.maximum(pixels @ model["w1"] + model["b1"], 0)
    logits = hidden @ model["w2"] + model["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(len(logits)), batch["labels"]
    losses = -np.log(chances[rows])
    chances[rows] -= 1
    return losses, chances, (pixels, hidden)


def gradients_of(model, batch):
    """Return the mean loss of the global batch and its gradients, the same on all ranks."""
    losses, slope, (pixels, hidden) = loss_of(model, batch)
    of_hidden = (slope @ model["w2"].T) * (hidden > 0)
    sums = {"w1": pixels.T @ of_hidden, "b1": of_hidden.sum(axis=0)}
    sums |= {"w2": hidden.T @ slope, "b2": slope.sum(axis=0), "loss": losses.sum(keepdims=True)}
    flat = np.concatenate([value.ravel() for value in sums.values()])
    RANKS.Allreduce(MPI.IN_PLACE, flat)
    flat /= io.settings()["global_batch"]
    ends = np.cumsum([value.size for value in sums.values()])[:-1]
    found = {
        name: part.reshape(value.shape)
        for (name, value), part in zip(sums.items(), np.split(flat, ends), strict=True)
    }
    return float(found.pop("loss")[0]), found


def adam(model, moments, gradients, step):
    """Update the model by one step of Adam (Kingma and Ba, 2015)."""
    rate = io.settings()["optim"]["lr"] * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for name, gradient in gradients.items():
        first, second = moments[f"{name}.first"], moments[f"{name}.second"]
        first += np.float32(0.1) * (gradient - first)
        second += np.float32(0.001) * (gradient**2 - second)
        model[name] -= np.float32(rate) * first / (np.sqrt(second) + np.float32(1e-8))


def evaluate(model, batches):
    """Return mean loss, accuracy and number of rows over all ranks."""
    sums = np.zeros(3)
    for batch in batches:
        losses, slope, _ = loss_of(model, batch)
        labels = batch["labels"]
        slope[np.arange(len(labels)), labels] += 1
        sums += losses.sum(), (slope.argmax(axis=1) == labels).sum(), len(labels)
    RANKS.Allreduce(MPI.IN_PLACE, sums)
    return sums[0] / sums[2], sums[1] / sums[2], int(sums[2])


def largest(number):
    """Return the largest number of all ranks."""
    return RANKS.allreduce(number, MPI.MAX)


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    if RANKS.size != io.world().world_size:
        sys.exit(
            f"MPI has {RANKS.size} ranks, expected {io.world().world_size}; set runtime.launcher: mpirun"
        )
    draw, hidden = np.random.default_rng(io.settings()["seed"]), io.model_args()["hidden"]
    model = {"w1": draw.normal(0, 64**-0.5, (64, hidden)), "b1": np.zeros(hidden)}
    model |= {"w2": draw.normal(0, hidden**-0.5, (hidden, 10)), "b2": np.zeros(10)}
    model = {name: value.astype(np.float32) for name, value in model.items()}
    moments = {f"{n}.{m}": np.zeros_like(model[n]) for n in model for m in ("first", "second")}
    if saved := io.resume():
        state = np.load(saved.folder / "state.npz")
        model = {name: state[name] for name in model}
        moments = {name: state[name] for name in moments}

    def save(step):
        with io.checkpoint(step) as folder:
            if io.world().rank == 0:
                np.savez(folder / "state.npz", **model, **moments)

    per_epoch = io.num_steps(0)
    for batch in io.train():
        loss, gradients = gradients_of(model, batch)
        adam(model, moments, gradients, batch.step)
        if io.should_stop(largest):
            save(batch.step)
            io.stop()
        if batch.step % per_epoch == 0:
            val_loss, val_accuracy, _ = evaluate(model, io.validation())
            io.log(
                batch.step, epoch=batch.epoch, train_loss=loss, val_loss=val_loss,
                val_accuracy=val_accuracy,
            )  # fmt: skip
            print(
                f"progress step={batch.step}/{io.num_steps()} val_loss={val_loss:.3f}", flush=True
            )
            save(batch.step)
    _, accuracy, rows = evaluate(model, io.test())
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model(model)


if __name__ == "__main__":
    main()
