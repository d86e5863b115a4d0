"""The callback in the trainings of both sides: it records their steps, and waits for the fault."""

import time
from pathlib import Path

import pytorch_lightning as pl

FAULT_STEP = 30


class Faults(pl.Callback):
    """Records each optimiser step, and waits before the 31st until a file `go` exists.

    Where a file `nan` exists, the 31st step's gradients are NaN.
    """

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == FAULT_STEP and not Path("go").exists():
            Path(f"reached-{trainer.global_rank}").touch()
            while not Path("go").exists():
                time.sleep(0.01)

    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.global_step == FAULT_STEP and Path("nan").exists():
            loss.data.fill_(float("nan"))
            loss.register_hook(lambda gradient: gradient * float("nan"))

    def on_train_batch_end(self, trainer, *_):
        if trainer.is_global_zero:
            with Path("steps").open("a") as file:
                print(trainer.global_step, file=file)
