"""The flight recorder of torch on a collective operation that hangs: dumped as JSON, so that nothing is unpickled.

`python -m benchmarks.gpu.flight DEVICE RANK RANKS FOLDER` is a rank that hangs. On a GPU one rank is enough: a kernel
that does not end stands before the operation. On a CPU the other rank does not take part.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.gpu.correct import Bench
from benchmarks.gpu.outcome import Line, NotRun, Wrong
from benchmarks.turns import REPOSITORY, Ended, TimeOver

from shardline.core.rank_environment import rank_variables

_VALUES = 1024
_SEEN_AFTER_S = 2.0  # torch looks for the ends of operations ten times a second
_CYCLES = 1 << 40  # minutes of a GPU's clock
_POLL_S = 0.05
# before torch 2.9 it had the second name
_SWITCHES = dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "100")


def flight_recorder(bench: Bench) -> Iterator[Line]:
    """The operation that hangs is named by the recorder's dump, with the one that was done before it."""
    ranks = 1 if bench.is_gpu else 2
    folder = bench.folder / "flight"
    folder.mkdir()
    env = {**os.environ, **rank_variables(bench.threads, {}, ""), **_SWITCHES}
    with (folder / "output").open("w") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, bench.accelerator, str(rank), str(ranks), str(folder)],
                cwd=REPOSITORY, env=env, stdout=output, stderr=output, start_new_session=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
    try:
        document = _dump_of(folder, processes, bench.end)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    yield _line(document)


def _dump_of(folder: Path, processes: list["subprocess.Popen[bytes]"], end: float) -> Any:
    dump, cause = folder / "flight.json", folder / "cannot"
    while not dump.exists():
        tail = (folder / "output").read_text(errors="replace")[-1500:]
        if cause.exists():
            raise NotRun(cause.read_text())
        if any(process.poll() is not None for process in processes):
            raise Ended(tail)
        if time.monotonic() > end:
            raise TimeOver(f"its time was over; {tail}")
        time.sleep(_POLL_S)
    return json.loads(dump.read_bytes())


def _line(document: Mapping[str, Any]) -> Line:
    hung, done = hung_and_done(document)
    if [one["op"] for one in hung] != [2] or [one["op"] for one in done] != [1]:
        raise Wrong(
            f"the recorder has {len(done)} operations that ended and {len(hung)} that hang, expected the first and "
            f"the second; {json.dumps(document)[:500]}"
        )
    (one,) = hung
    text = f"the dump names what hangs: {one['name']}, operation {one['op']}, of {one['sizes']}, {one['state']}"
    return Line(name="flight", state="passed", text=text, figures={"hung": hung, "done": done})


def hung_and_done(
    document: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the all-reduces of a dump that hang, and those that ended, in their order.

    Each has `name`, `op` (its number in the group, from 1), `sizes` and `state`.
    """
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for entry in document.get("entries", ()):
        if "all_reduce" in str(entry["profiling_name"]):
            of = {
                "name": str(entry["profiling_name"]),
                "op": int(entry["collective_seq_id"]),
                "sizes": entry["input_sizes"],
                "state": str(entry["state"]),
            }
            found[bool(entry["retired"])].append(of)
    return found


def _dump(is_gpu: bool) -> bytes | None:
    from torch._C import _distributed_c10d as c10d

    names = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
    for name in names if is_gpu else names[1:]:
        if hasattr(c10d, name):
            dump: bytes = getattr(c10d, name)(includeCollectives=True, onlyActive=False)
            return dump
    return None


def main() -> None:
    """Hang as a rank."""
    accelerator, rank, ranks, folder = sys.argv[1], *map(int, sys.argv[2:4]), Path(sys.argv[4])
    is_gpu = accelerator == "gpu"
    dist.init_process_group(
        "nccl" if is_gpu else "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=ranks
    )  # fmt: skip
    values = torch.ones(_VALUES, device="cuda" if is_gpu else "cpu")
    dist.all_reduce(values)
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda._sleep(_CYCLES)
    if rank == 0:
        work = dist.all_reduce(values, async_op=True)
        time.sleep(_SEEN_AFTER_S)
        assert not work.is_completed(), "nothing hangs"
        if (dump := _dump(is_gpu)) is None:
            (folder / "cannot").write_text(f"torch {torch.__version__} dumps no JSON")
        else:
            (folder / "partial").write_bytes(dump)
            (folder / "partial").rename(folder / "flight.json")
    time.sleep(600)


if __name__ == "__main__":
    main()
