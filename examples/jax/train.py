"""A training loop with JAX and Optax, with batches sharded along one mesh of all ranks' devices."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardline_io as io


def logits_of(model, pixels):
    """Return logits [B, 10] of pixels [B, 64] from 0 to 16."""
    hidden = jax.nn.relu(pixels / 16 @ model["w1"] + model["b1"])
    return hidden @ model["w2"] + model["b2"]


def loss_of(model, pixels, labels):
    """Return the mean loss of the rows."""
    logits = logits_of(model, pixels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def sums_of(model, pixels, labels):
    """Return [3]: the sum of the rows' losses, the number of right predictions and the number of rows."""
    logits = logits_of(model, pixels)
    right = (logits.argmax(axis=1) == labels).sum()
    return jnp.stack([loss_of(model, pixels, labels) * len(labels), right, len(labels)])


def arrays(batch):
    """Convert a batch to pixels [B, 64] and labels [B]."""
    return batch["features"].astype(np.float32), batch["labels"].astype(np.int32)


def evaluate(model, batches):
    """Return mean loss, accuracy and number of rows over all ranks."""
    sums = sum(np.asarray(sums_of(model, *arrays(batch))) for batch in batches)
    loss, right, rows = process_allgather(sums).reshape(-1, 3).sum(axis=0).tolist()
    return loss / rows, right / rows, int(rows)


def largest(number):
    """Return the largest number of all ranks."""
    return int(process_allgather(np.int32(number)).max())


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # leave this line out on GPUs
    port = int(os.environ["MASTER_PORT"]) + 1  # the launcher may listen on MASTER_PORT itself
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{port}", io.world().world_size, io.world().rank
    )
    mesh = Mesh(jax.devices(), "ranks")
    by_rank, everywhere = (NamedSharding(mesh, PartitionSpec(*of)) for of in (["ranks"], []))

    hidden, keys = (
        io.model_args()["hidden"],
        jax.random.split(jax.random.key(io.settings()["seed"])),
    )
    draw = jax.nn.initializers.lecun_normal()
    model = {"w1": draw(keys[0], (64, hidden)), "b1": jnp.zeros(hidden)}
    model |= {"w2": draw(keys[1], (hidden, 10)), "b2": jnp.zeros(10)}
    optimizer = optax.adam(io.settings()["optim"]["lr"])
    state = model, optimizer.init(model)
    leaves, form = jax.tree.flatten(state)
    if saved := io.resume():
        with np.load(saved.folder / "state.npz") as file:
            leaves = [file[str(place)] for place in range(len(leaves))]
    state = jax.device_put(jax.tree.unflatten(form, map(np.asarray, leaves)), everywhere)

    @jax.jit
    def train_step(state, pixels, labels):
        model, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(model, pixels, labels)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(model, updates), moments), loss

    def local(tree):
        return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), tree)

    def save(step):
        with io.checkpoint(step) as folder:
            if io.world().rank == 0:
                leaves = enumerate(jax.tree.leaves(local(state)))
                np.savez(folder / "state.npz", **{str(place): leaf for place, leaf in leaves})

    per_epoch = io.num_steps(0)
    for batch in io.train():
        rows = (jax.make_array_from_process_local_data(by_rank, part) for part in arrays(batch))
        state, loss = train_step(state, *rows)
        if io.should_stop(largest):
            save(batch.step)
            io.stop()
        if batch.step % per_epoch == 0:
            val_loss, val_accuracy, _ = evaluate(local(state[0]), io.validation())
            io.log(
                batch.step, epoch=batch.epoch, train_loss=loss, val_loss=val_loss,
                val_accuracy=val_accuracy,
            )  # fmt: skip
            print(
                f"progress step={batch.step}/{io.num_steps()} val_loss={val_loss:.3f}", flush=True
            )
            save(batch.step)
    _, accuracy, rows = evaluate(local(state[0]), io.test())
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model(local(state[0]))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
