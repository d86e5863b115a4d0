"""A project with one sweep, and its simulated study: what is proposed and chosen, undisturbed or not."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import UNSET

from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.files import write_json
from shardline.results.sweeps.describe import line_of, row_of_trial
from tests.support.simulated_study import Controller
from tests.support.small_config import CONFIG

TABLE = "name\tdataset\tmodel\tdevices\nmlp\tdigits\tmlp\t1\n"
SPACE = {
    "optim.lr": {"log": [1e-4, 1e-1]},
    "model_args.hidden": [32, 64, 128],
    "optim.weight_decay": {"uniform": [0, 0.1]},
}
STUDY: dict[str, Any] = {"base": "mlp", "space": SPACE, "sampler": "tpe", "trials": 13}
# `SIMULATED_STUDIES=500 pytest FILE` simulates so many
NUMBER = int(os.environ.get("SIMULATED_STUDIES", "5"))


def load(**sweep: Any) -> Project:
    """Load a project with one sweep, `s`, in the present folder."""
    Path("config").mkdir(exist_ok=True)
    Path("config/runs.tsv").write_text(TABLE)
    entry = {key: one for key, one in {**STUDY, **sweep}.items() if one is not UNSET}
    return load_project({**CONFIG, "sweeps": {"s": entry}})


def write_config(**sweep: Any) -> None:
    """Write the config of such a project, which commands read."""
    write_json(Path("config/config.yaml"), {**CONFIG, "sweeps": {"s": {**STUDY, **sweep}}})


@contextmanager
def elsewhere() -> Iterator[None]:
    """Make a folder for temporary files the present one."""
    with TemporaryDirectory() as folder, chdir(folder):
        yield


def some_fail(settings: Mapping[str, Any]) -> str | None:
    """High rates diverge, and one width is an error of the model."""
    if settings["optim.lr"] > 0.03:
        return "diverged"
    is_wide = settings.get("model_args.hidden") == 128
    return "error" if is_wide and settings["optim.lr"] < 3e-4 else None


def some_end(settings: Mapping[str, Any]) -> int:
    """Where a study has rungs, the trainings of one width stop early."""
    return 2 if settings.get("model_args.hidden") == 32 else 0


def outcome(
    seed: int = 0,
    *,
    kill_rate: float = 0.0,
    fault_rate: float = 0.0,
    steps: Sequence[int] = (13,),
    is_stored: bool = False,
    **sweep: Any,
) -> Any:
    """Return the outcome of a study that is extended to each number of trials in turn, with a storage or not."""
    with elsewhere():
        storage = Path("elsewhere/storage").absolute() if is_stored else None
        for trials in steps:
            controller = Controller(
                project=load(**{**sweep, "trials": trials}), seed=seed, fails=some_fail, kill_rate=kill_rate,
                fault_rate=fault_rate, last_epoch=some_end, storage=storage,
            )  # fmt: skip
            controller.run()
        return controller.outcome()


@cache
def undisturbed(sweep: str) -> Any:
    """Return the outcome of a study without kills and faults, whose settings are given as JSON."""
    return outcome(**json.loads(sweep))


def run_of_pasted_row(controller: Controller, trial: int) -> RunPlan:
    """Return the run of a table whose only row is that of a trial."""
    row = row_of_trial(controller.project, controller.plan, trial)
    Path("config/runs.tsv").write_text(f"{line_of(row)}\n{line_of(row.values())}\n")
    (run,) = load_project({**CONFIG}).runs.values()
    return run
