"""A custom Keras training loop under MultiWorkerMirroredStrategy, which finds its workers by TF_CONFIG."""

import sys

import keras
import numpy as np
import tensorflow as tf

import shardline_io as io


def arrays(batch):
    """Convert a batch to pixels [B, 64] from 0 to 1 and labels [B]."""
    return tf.constant(batch["features"], tf.float32) / 16, tf.constant(batch["labels"], tf.int64)


def main():
    """Train, and save at the end of each epoch and when the training must stop."""
    tf.config.experimental.enable_op_determinism()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # must come before any other operation
    if strategy.num_replicas_in_sync != io.world().world_size:
        found = strategy.num_replicas_in_sync
        sys.exit(f"TensorFlow has {found} workers, expected one per rank; check TF_CONFIG")
    settings = io.settings()
    keras.utils.set_random_seed(settings["seed"])
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((64,)),
                keras.layers.Dense(io.model_args()["hidden"], "relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(settings["optim"]["lr"])
        optimizer.build(model.trainable_variables)
    variables = [*model.variables, *optimizer.variables]
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    if saved := io.resume():
        with np.load(saved.folder / "state.npz") as file:
            for place, variable in enumerate(variables):
                variable.assign(file[str(place)])

    @tf.function
    def train_step(pixels, labels):
        def step(pixels, labels):
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(pixels, training=True)) / settings["global_batch"]
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)  # sums over the workers
            return loss

        return strategy.reduce("SUM", strategy.run(step, (pixels, labels)), axis=None)

    @tf.function(reduce_retracing=True)
    def sums_of(pixels, labels):
        logits = model(pixels)
        right = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.float32))
        return tf.stack([loss_of(labels, logits), right, tf.cast(tf.size(labels), tf.float32)])

    @tf.function
    def of_all(values):
        return strategy.gather(values, axis=0)

    def evaluate(batches):
        sums = sum(sums_of(*arrays(batch)) for batch in batches)
        loss, right, rows = of_all(sums[None]).numpy().sum(axis=0).tolist()
        return loss / rows, right / rows, int(rows)

    def largest(number):
        return int(of_all(tf.constant([number])).numpy().max())

    def save(step):
        with io.checkpoint(step) as folder:
            if io.world().rank == 0:
                state = {str(place): one.numpy() for place, one in enumerate(variables)}
                np.savez(folder / "state.npz", **state)

    per_epoch = io.num_steps(0)
    for batch in io.train():
        loss = train_step(*arrays(batch))
        if io.should_stop(largest):
            save(batch.step)
            io.stop()
        if batch.step % per_epoch == 0:
            val_loss, val_accuracy, _ = evaluate(io.validation())
            io.log(
                batch.step, epoch=batch.epoch, train_loss=float(loss), val_loss=val_loss,
                val_accuracy=val_accuracy,
            )  # fmt: skip
            print(
                f"progress step={batch.step}/{io.num_steps()} val_loss={val_loss:.3f}", flush=True
            )
            save(batch.step)
    _, accuracy, rows = evaluate(io.test())
    io.write_evaluation({"accuracy": accuracy}, rows)
    io.save_model({variable.path: variable.numpy() for variable in model.variables})


if __name__ == "__main__":
    main()
