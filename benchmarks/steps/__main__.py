"""What a step of a small model costs: `python -m benchmarks.steps`, from the repository.

A bare loop, Lightning alone, Lightning with what most trainings add (a logger, checkpoints, early
stopping), and Shardline, in turn: in each round each trains the same model once, in processes of its
own. A round's figure is the median step of its training, data loading included; the table's is the
median of the rounds.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.steps.timed import CALLBACKS, EPOCH_STEPS, MODELS, OUT, PROFILED
from msgspec import structs
from rich.console import Console
from rich.table import Table
from tests.support.rank_tasks import rank_runtime, rank_task

from shardline.core.rank_environment import rank_variables
from shardline.training.rank_task import write_task

REPOSITORY = Path(__file__).parents[2]
USUAL, OURS, BEFORE = "Lightning, logger, checkpoints", "Shardline", "Shardline before"
OF_LIGHTNING = "Shardline, lightning.pytorch"
# the latter makes each process compile its imports
_LEFT_OUT = {"MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"}
_READ = """
import sys, pathlib
from shardline.training.rank_task import read_task
read_task(pathlib.Path(sys.argv[1]))
"""
_UNKNOWN = re.compile(r"unknown field `([^`]+)`(?: - at `\$\.?([^`]*)`)?")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


class Program:
    """One way to train a model.

    Args:
        name: what the table calls it.
        folder: for its files.
        checkout: folder of the checkout whose Shardline trains; None for the installed one.
        with_callbacks: train with three callbacks.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        model: str,
        ranks: int,
        epochs: int,
        checkout: Path | None = None,
        *,
        with_callbacks: bool = False,
    ) -> None:
        self.name, self._folder, self._ranks = name, folder, ranks
        # an earlier version knows no setting for callbacks, so its model brings them, as in Lightning
        self._is_set = with_callbacks and name in (OURS, OF_LIGHTNING)
        by_model = with_callbacks and not self._is_set and name in (USUAL, BEFORE)
        threads = max(1, (os.cpu_count() or 1) // ranks)
        # the same threads for all; and what our launchers set besides is ours alone
        set_by_launchers = rank_variables(threads, {}, "") if name.startswith(OURS) else {}
        self._variables = {
            **set_by_launchers, "OMP_NUM_THREADS": str(threads), CALLBACKS: "1" if by_model else "",
        }  # fmt: skip
        self._checkout = checkout or REPOSITORY
        self.steps_s: list[float] = []  # median step of each round
        self.cores: list[float] = []
        folder.mkdir(parents=True)
        self._words = self._command(model, epochs)

    def _command(self, model: str, epochs: int) -> list[str]:
        arguments = [model, str(epochs)]
        if self.name == "bare loop":
            return ["-m", "benchmarks.steps.bare", *arguments]
        if self.name.startswith("Lightning"):
            alone = [] if self.name == USUAL else ["--bare"]
            arguments += [str(self._ranks), str(self._folder / "made"), *alone]
            return ["-m", "benchmarks.steps.plain", *arguments]
        project = self._folder / "project"
        options = ["--callbacks"] * self._is_set + ["--lightning"] * (self.name == OF_LIGHTNING)
        made = self._python(
            "-m", "benchmarks.steps.project", str(project), *arguments, str(self._ranks), *options
        )
        place = {name: Path(path) for name, path in json.loads(made.splitlines()[-1]).items()}
        runtime = rank_runtime(
            log_every_steps=10, ledger=False, strict_env="warn", rendezvous_timeout_s=300, hang_timeout_s=1800.0,
            checkpoint={"every_steps": 200, "every_min": 10.0},
        )  # fmt: skip
        work = self._folder / "made"
        spec = rank_task(work, run_json=project / "run.json", **place, runtime=runtime)
        write_task(project / "rank.json", structs.replace(spec, work=work))
        self._leave_out_unknown(project / "rank.json")
        return ["-m", "shardline.training.rank", str(project / "rank.json")]

    def train(self, *, is_profiled: bool = False) -> dict[str, Any]:
        """Train once, and return the clock's measurements."""
        made = self._folder / "made"
        shutil.rmtree(made, ignore_errors=True)
        (made / "results").mkdir(parents=True)
        out = self._folder / "out.json"
        several = [*_TORCHRUN, str(self._ranks)] if self._ranks > 1 else []
        # torchrun takes `-m MODULE` as a Python would
        self._python(
            *several, *self._words, **{OUT: str(out), PROFILED: "1" if is_profiled else ""}
        )
        timed: dict[str, Any] = json.loads(out.read_text())
        return timed

    def take_turn(self) -> None:
        """Train once, and keep the median step."""
        timed = self.train()
        self.steps_s.append(statistics.median(timed["seconds"]))
        self.cores.append(timed["cores"])

    def _leave_out_unknown(self, task: Path) -> None:
        """Drop the fields of a task that the checkout, an earlier version, does not know."""
        while True:
            env = os.environ | {"PYTHONPATH": f"{self._checkout / 'src'}:{REPOSITORY}"}
            read = subprocess.run(
                [sys.executable, "-c", _READ, str(task)], env=env, text=True, capture_output=True, check=False,
            )  # fmt: skip
            if not (unknown := _UNKNOWN.search(read.stderr)):
                return
            fields = at = json.loads(task.read_text())
            for key in filter(None, (unknown[2] or "").split(".")):
                at = at[key]
            del at[unknown[1]]
            task.write_text(json.dumps(fields))

    def _python(self, *words: str, **variables: str) -> str:
        env = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        path = f"{self._checkout / 'src'}:{REPOSITORY}:{self._folder / 'project'}"
        env |= {**self._variables, "PYTHONPATH": path, **variables}
        done = subprocess.run(
            [sys.executable, *words], cwd=REPOSITORY, env=env, text=True, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{self.name} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout


def main() -> None:
    arguments = _arguments()
    os.environ["STEPS_ACCELERATOR"] = arguments.accelerator  # for all programs
    console = Console(width=None if sys.stdout.isatty() else 120)
    epochs = -(-arguments.steps // EPOCH_STEPS)
    console.print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.rounds} rounds"
    )
    for model in arguments.models:
        for ranks in arguments.ranks:
            with tempfile.TemporaryDirectory() as folder:
                programs = list(_programs(Path(folder), model, ranks, epochs, arguments))
                for number in range(arguments.rounds):
                    for program in programs if number % 2 else reversed(programs):
                        program.take_turn()
                title = f"{model}, {ranks} rank{'s' * (ranks > 1)}"
                console.print(_steps(title, programs))
                if not arguments.no_parts:
                    profiled = programs[-1].train(is_profiled=True)["parts"]
                    beside = programs[2].train(is_profiled=True)["parts"]
                    step_s = [statistics.median(programs[i].steps_s) for i in (2, -1)]
                    console.print(_parts(title, beside, profiled, step_s))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=900, help="of each training (900)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--accelerator", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--before", type=Path, help="checkout of another version of Shardline")
    parser.add_argument("--callbacks", action="store_true", help="train with three callbacks")
    parser.add_argument(
        "--lightning", action="store_true", help="also with a model of lightning.pytorch"
    )
    parser.add_argument("--no-parts", action="store_true", help="omit the time by part of a step")
    return parser.parse_args()


def _programs(
    folder: Path, model: str, ranks: int, epochs: int, arguments: argparse.Namespace
) -> Iterator[Program]:
    names = ["bare loop", "Lightning alone", USUAL]
    names += [BEFORE] * bool(arguments.before) + [OF_LIGHTNING] * arguments.lightning + [OURS]
    for number, name in enumerate(names):
        checkout = arguments.before.resolve() if name == BEFORE else None
        yield Program(
            name, folder / str(number), model, ranks, epochs, checkout,
            with_callbacks=arguments.callbacks,
        )  # fmt: skip


def _steps(title: str, programs: Sequence[Program]) -> Table:
    usual = next(program for program in programs if program.name == USUAL)
    table = Table(title=title, title_justify="left")
    table.add_column("program")
    for column in ("ms a step", "least and most", f"/ {USUAL}", "cores busy"):
        table.add_column(column, justify="right")
    for program in programs:
        ms = [1e3 * seconds for seconds in program.steps_s]
        ratio = statistics.median(
            a / b for a, b in zip(program.steps_s, usual.steps_s, strict=True)
        )
        spread = f"{min(ms):.2f} to {max(ms):.2f}"
        cores = f"{statistics.median(program.cores):.2f}"
        table.add_row(program.name, f"{statistics.median(ms):.2f}", spread, f"{ratio:.2f}", cores)
    return table


def _parts(
    title: str, usual: dict[str, int], ours: dict[str, int], step_s: Sequence[float]
) -> Table:
    table = Table(title=f"{title}: ms of a step", title_justify="left")
    table.add_column("part")
    for name in (USUAL, OURS):
        table.add_column(name, justify="right")
    for part, _ in Counter(ours).most_common():
        shares = (
            counts.get(part, 0) / max(1, sum(counts.values())) * 1e3 * seconds
            for counts, seconds in zip((usual, ours), step_s, strict=True)
        )
        table.add_row(part, *(f"{share:.3f}" for share in shares))
    return table


if __name__ == "__main__":
    main()
