"""The model of a drill: a small perceptron that does to its own rank what the drill's plan says."""

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
PLAN, STRUCK = Path("plan.json"), Path("struck")


class Drill(MLP):
    """Takes the next strike of the plan each time that it begins to train, and strikes at its place.

    `plan.json` lists the strikes by the number of ranks; without it nothing happens. A strike has
    `place` (`mid-epoch`, `mid-accumulation` or `mid-validation`), `step` (optimiser step from which on
    it may fall), `rank` (None: every rank) and `action`:

    - `kill`, `stop`: the rank sends itself SIGKILL or SIGSTOP;
    - `fill`: it writes to `file` until the disk is full;
    - `linger`: from there on each batch takes `pace_s` longer, so that a fault from outside finds it at work.

    `struck/` tells what was done; it is written before it is done.
    """

    _strike: Mapping[str, Any] | None = None
    _pace_s = 0.0

    def on_train_start(self) -> None:
        """Let the first rank take the next strike for all of them."""
        mine = _take(self.trainer.world_size) if self.trainer.is_global_zero else None
        self._strike = self.trainer.strategy.broadcast(mine)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Strike in mid-epoch, or between the parts of a global batch."""
        in_step = batch_idx % int(self.trainer.accumulate_grad_batches)
        if batch_idx:
            self._reach("mid-accumulation" if in_step else "mid-epoch")
        time.sleep(self._pace_s)

    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Strike in the middle of a validation."""
        if batch_idx:
            self._reach("mid-validation")

    def _reach(self, place: str) -> None:
        strike, step = self._strike, self.global_step
        if strike is None or strike["place"] != place or step < strike["step"]:
            return
        self._strike = None
        if strike["rank"] not in (None, self.global_rank):
            return
        told = {"place": place, "step": step, "time": time.time(), "pid": os.getpid()}
        name = f"{self.trainer.world_size}-{strike['number']}-rank-{self.global_rank}.json"
        write_json(STRUCK / name, told)
        match strike["action"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "fill":
                _fill(Path(strike["file"]))
            case "linger":
                self._pace_s = strike["pace_s"]


def _take(world_size: int) -> dict[str, Any] | None:
    """Return the next strike, which no later attempt gets again."""
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    STRUCK.mkdir(exist_ok=True)
    for number, strike in enumerate(plan.get(str(world_size), [])):
        with suppress(FileExistsError):
            (STRUCK / f"{world_size}-{number}-taken").touch(exist_ok=False)
            return {**strike, "number": number}
    return None


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
