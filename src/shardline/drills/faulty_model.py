"""The model of a fault-injection test: a small perceptron that injects the planned faults into its own rank."""

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

# In the project's folder, which every rank works in.
PLAN, INJECTED = Path("plan.json"), Path("injected")


class Drill(MLP):
    """Takes the next fault of the plan each time that a training starts, and injects it at its place.

    `plan.json` lists the faults by the number of ranks; without the file nothing happens. A fault has
    `place` (`mid-epoch`, `mid-accumulation` or `mid-validation`), `step` (first optimiser step at which
    it may be injected), `rank` (None: every rank) and `action`:

    - `kill`, `stop`: the rank sends itself SIGKILL or SIGSTOP;
    - `fill`: the rank writes to `file` until the disk is full;
    - `slow`: from there on each batch takes `pace_s` longer, so that a fault from outside comes while it trains.

    `injected/` records each fault, before it is injected.
    """

    _fault: Mapping[str, Any] | None = None
    _pace_s = 0.0

    def on_train_start(self) -> None:
        """Let the first rank take the next fault for all ranks."""
        mine = _take(self.trainer.world_size) if self.trainer.is_global_zero else None
        self._fault = self.trainer.strategy.broadcast(mine)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Inject in mid-epoch, or between the parts of a global batch."""
        in_step = batch_idx % int(self.trainer.accumulate_grad_batches)
        if batch_idx:
            self._reach("mid-accumulation" if in_step else "mid-epoch")
        time.sleep(self._pace_s)

    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Inject in the middle of a validation."""
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
    """Return the next fault, which no later attempt gets again."""
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
