"""Model of the fault-injection tests: a small perceptron that injects planned faults into its own rank."""

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardline.core.files import write_json
from shardline.training.models.mlp import MLP

# Relative to the project's folder, the working directory of every rank.
PLAN, INJECTED = Path("plan.json"), Path("injected")


class Drill(MLP):
    """Perceptron that injects the next planned fault each time a training starts.

    `plan.json` lists the faults by the number of ranks. Without this file the model injects no fault. A fault has
    `place` (`mid-epoch`, `mid-accumulation` or `mid-validation`), `step` (first optimiser step at which
    the fault may be injected), `rank` (None: every rank) and `action`:

    - `kill`, `stop`: the rank sends itself SIGKILL or SIGSTOP.
    - `fill`: the rank writes to `file` until the disk is full.
    - `slow`: each further batch takes `pace_s` longer, so that a fault from outside hits a running training.

    The model records each fault in `injected/` before it injects the fault.
    """

    _fault: Mapping[str, Any] | None = None
    _pace_s = 0.0

    def on_train_start(self) -> None:
        """Read the next fault on rank 0, and send it to all ranks."""
        mine = _take(self.trainer.world_size) if self.trainer.is_global_zero else None
        self._fault = self.trainer.strategy.broadcast(mine)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Inject a `mid-epoch` or `mid-accumulation` fault."""
        in_step = batch_idx % int(self.trainer.accumulate_grad_batches)
        if batch_idx:
            self._reach("mid-accumulation" if in_step else "mid-epoch")
        time.sleep(self._pace_s)

    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Inject a `mid-validation` fault."""
        if batch_idx:
            self._reach("mid-validation")

    def _reach(self, place: str) -> None:
        fault, step = self._fault, self.global_step
        if fault is None or fault["place"] != place or step < fault["step"]:
            return
        self._fault = None
        if fault["rank"] not in (None, self.global_rank):
            return
        record = {"place": place, "step": step, "time": time.time(), "pid": os.getpid()}
        name = f"{self.trainer.world_size}-{fault['number']}-rank-{self.global_rank}.json"
        write_json(INJECTED / name, record)
        match fault["action"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "fill":
                _fill(Path(fault["file"]))
            case "slow":
                self._pace_s = fault["pace_s"]


def _take(world_size: int) -> dict[str, Any] | None:
    """Return the next fault, and mark it as used."""
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    INJECTED.mkdir(exist_ok=True)
    for number, fault in enumerate(plan.get(str(world_size), [])):
        with suppress(FileExistsError):
            (INJECTED / f"{world_size}-{number}-taken").touch(exist_ok=False)
            return {**fault, "number": number}
    return None


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
