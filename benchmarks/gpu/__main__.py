"""The GPU suite: `python -m benchmarks.gpu`; each check prints its lines, and what was not run is named so."""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from benchmarks.gpu import correct
from benchmarks.gpu.correct import Bench
from benchmarks.gpu.flight import flight_recorder
from benchmarks.gpu.outcome import Clock, Line, NotRun, Wrong, summary, table
from benchmarks.gpu.sizes import CPU, GPU, Sizes
from benchmarks.gpu.speed import compiled, speed
from benchmarks.turns import Ended, TimeOver

BUDGET_S = 480.0  # which those of the checks sum up to
_LEAST_S = 5.0  # a check with less time is not begun


@dataclass(frozen=True)
class Check:
    """A check and its budget.

    Attributes:
        name: for `--only`.
        budget_s: seconds that it may take.
        run: yields lines.
    """

    name: str
    budget_s: float
    run: Callable[[Bench], Iterator[Line]]


def checks(sizes: Sizes) -> list[Check]:
    """Return the checks in their order: what would cost a user most comes first."""
    return [
        Check("world", 40, correct.world),
        Check("bits", 50, correct.bits),
        Check("locked", 10, correct.locked),
        Check("bf16", 50, correct.bf16),
        Check("fp16", 50, correct.fp16),
        Check("resnet", 75, partial(speed, name="resnet", sizes=sizes)),
        Check("gpt", 65, partial(speed, name="gpt", sizes=sizes)),
        Check("fsdp", 50, correct.fsdp),
        Check("flight", 25, flight_recorder),
        Check("compile", 65, partial(compiled, sizes=sizes)),
    ]


def outcome(check: Check, bench: Bench, clock: Clock, patience: float) -> list[Line]:
    """Run a check within its budget, print its lines as they come, and return them."""
    found: list[Line] = []

    def add(line: Line) -> None:
        found.append(line)
        print(line, flush=True)

    if clock.left_s < _LEAST_S:
        add(Line(name=check.name, state="not run", text="the suite's time was over"))
        return found
    bench.end = clock.end_of(check.budget_s * patience)
    try:
        for line in check.run(bench):
            add(line)
    except NotRun as error:
        add(Line(name=check.name, state="not run", text=str(error)))
    except (Wrong, Ended) as error:
        if isinstance(error, TimeOver) and clock.left_s < _LEAST_S:
            add(Line(name=check.name, state="not run", text=f"the suite's time was over; {error}"))
        else:
            add(Line(name=check.name, state="failed", text=str(error)))
    except Exception:  # the checks behind it are to be run
        add(Line(name=check.name, state="failed", text=traceback.format_exc()))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks; returns 1 where one failed."""
    arguments = _arguments(words)
    clock = Clock(end=time.monotonic() + arguments.budget - arguments.spent)
    is_gpu = arguments.accelerator == "gpu"
    sizes = GPU if is_gpu else CPU
    device = torch.cuda.get_device_name() if is_gpu else "a CPU: no figure counts for a GPU"
    heading = f"torch {torch.__version__} on {device}"
    print(heading, flush=True)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.accelerator, sizes.threads)
        for check in checks(sizes):
            if arguments.only and check.name not in arguments.only:
                lines.append(Line(name=check.name, state="not run", text="not asked for"))
            else:
                lines += outcome(check, bench, clock, sizes.patience)
    print(summary(lines), flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        figures = {
            "device": device,
            "torch": torch.__version__,
            "lines": [asdict(line) for line in lines],
        }
        (arguments.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
        (arguments.out / "table.md").write_text(table(lines, heading))
    return int(any(line.state == "failed" for line in lines))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    names = [check.name for check in checks(CPU)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--accelerator",
        choices=["gpu", "cpu"],
        default="gpu",
        help="cpu: small sizes over gloo, no goals",
    )
    parser.add_argument("--only", nargs="+", choices=names, help="these checks alone")
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, help=f"seconds for all of it ({BUDGET_S:.0f})"
    )
    parser.add_argument(
        "--spent", type=float, default=0, help="seconds of them that are over already"
    )
    parser.add_argument("--out", type=Path, help="folder for figures.json and table.md")
    arguments = parser.parse_args(words)
    if arguments.accelerator == "gpu" and not torch.cuda.is_available():
        parser.error(
            "--accelerator gpu: torch finds no GPU; use --accelerator cpu for a trial of the suite itself"
        )
    return arguments


if __name__ == "__main__":
    sys.exit(main())
