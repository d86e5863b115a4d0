"""Commands of fault-injection tests that train nothing: they write what a training would have sealed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from shardline.checkpoints.folder import saving
from shardline.core.files import write_bytes, write_json
from shardline.drills.profile_command import Commands
from shardline.drills.tiny import Tiny, num_ranks

_ATTEMPT = {
    "host": "n1",
    "started": "2026-01-31T10:00:00Z",
    "steps_done": 20,
    "steps_lost": 1,
    "lost_s": 0.5,
}
_STATE = {"optimizer_states": [torch.ones(2)], "lr_schedulers": [], "global_step": 40, "epoch": 4}


def simulated_commands(*, survives: bool) -> Callable[..., AbstractContextManager[Any]]:
    """Return a method in place of `Commands.started`.

    Args:
        survives: Whether the training with faults ends. If not, each command fails and seals nothing.
    """

    @contextmanager
    def started(commands: Commands, tiny: Tiny, *more: str) -> Iterator[Any]:
        is_broken = tiny.folder.name == "broken"
        is_whole = survives or not is_broken
        for run in tiny.runs:
            if is_broken:
                fault = {"place": "mid-epoch", "step": 14, "time": 1.5, "pid": 9}
                write_json(tiny.folder / f"injected/{num_ranks(run)}-0-rank-0.json", fault)
            if is_whole:
                _seal(tiny, run)
        code = 0 if is_whole else 1
        yield SimpleNamespace(pid=2**22 + 1, returncode=code, wait=lambda seconds: code)

    return started


def _seal(tiny: Tiny, run: Any) -> None:
    work, results = tiny.work(run), tiny.results(run)
    write_bytes(results / "model.safetensors", b"weights")
    document = {
        "training": {"steps": 40, "epochs": 4},
        "attempts": 2,
        "attempt_log": [_ATTEMPT] * 2,
    }
    write_json(results / "provenance.json", document)
    write_bytes(work / "ledger/from-0-rank-0-of-1.jsonl", b'{"step": 1, "epoch": 0, "ids": [1]}\n')
    with saving(
        work / "checkpoints", step=40, epoch=4, identity="a" * 64, world_size=1, keep=1
    ) as folder:
        torch.save(_STATE, folder / "state.pt")
