"""Run a training script as the program of one rank, and seal its outputs."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.scripts import split_script
from shardline.core.errors import ConfigError, DataError, ShardlineError, Stopped
from shardline.core.files import atomic_writer, make_folder, write_bytes, write_json
from shardline.core.process import die_with_parent, kill_group
from shardline.core.world import World
from shardline.environments.installed import MODULES
from shardline.identity.watch_reads import REFUSED
from shardline.launch.export import export_world
from shardline.records.base import encode, read_record
from shardline.records.measured import RankUsage
from shardline.records.trainings import Training
from shardline.supervision.watchdog import DUMP_SIGNAL
from shardline.supervision.watchdog.heartbeats import stack_file
from shardline.supervision.watchdog.proc import signal_name
from shardline.training.resources import used_by_rank
from shardline.training.script_outputs import read_evaluation
from shardline.training.script_requests import Answer, answered
from shardline_io import heartbeat_memory
from shardline_io.checkpoints import last_saved
from shardline_io.stopping import SIGNALS

_OUTPUT, _ENDED, _CHECKPOINTS = "output", "ended", "checkpoints"
_MODEL = "model.safetensors"
_TAIL_BYTES = 65536
_LINES_SHOWN = 10
_DRAIN_S = 5.0  # processes that the script left in another session may keep its stderr open
_LOOK_S = 0.2
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?", re.MULTILINE)  # torch adds it to tracebacks
# A failing rank closes its connections, so its peers fail within milliseconds. A rank
# that only lost its peer waits, so that the cause is reported first.
_LOST_PEER = re.compile(r"by peer|Broken pipe|remote process|Dist(Backend|Network|Store)Error")
_LOST_PEER_S = 3.0


class ScriptError(ShardlineError):
    """A training script failed or was killed; the message ends with its last lines."""


def prepare(work: Path) -> None:
    """Remove the outputs of an earlier attempt; rank 0 calls this before the rendezvous.

    Args:
        work: The run's folder in the store; its training checkpoints are kept.
    """
    for name in (_OUTPUT, _ENDED):
        shutil.rmtree(work / name, ignore_errors=True)
        make_folder(work / name)
    make_folder(work / _CHECKPOINTS)
    shutil.rmtree(work / MODULES, ignore_errors=True)
    # the script's own environment gets shardline_io, and nothing else from this environment
    source = Path(heartbeat_memory.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, work / MODULES / source.name, ignore=ignored)
    for partial in (work / _CHECKPOINTS).glob("step-*.partial*"):  # incomplete, from shardline_io
        shutil.rmtree(partial, ignore_errors=True)


def run_script(
    model_class: str, world: World, *, run_json: Path, dataset: DatasetPlace, work: Path,
    window_rows: int = 0, ledger: bool = False, reads: Mapping[str, Any] | None = None,
    answers: Mapping[str, Answer] | None = None, python: Sequence[str] = (), python_args: Sequence[str] = (),
) -> list[RankUsage]:  # fmt: skip
    """Run a script on this rank; rank 0 returns once the scripts of all ranks have succeeded.

    Args:
        model_class: Script and its arguments, as in the run table.
        world: This rank's place in the job.
        run_json: File of the resolved run.
        dataset: Dataset of the script; the first dataset of a mix.
        work: The run's folder in the store.
        window_rows: Rows in memory at a time, within which the order is shuffled.
        ledger: Whether `shardline_io` writes which rows each step consumed.
        reads: How `shardline_io` reads the data: `datasets`, `data` settings and `verify`.
        answers: Requests that `shardline_io` may send, see `script_requests.answered`.
        python: Command of Python in the script's own environment; empty for this process's Python.
        python_args: Arguments between Python and the script.

    Returns:
        Resources that the ranks used, see `resources.used_by_rank`: all ranks on rank 0, else this rank.

    Raises:
        ConfigError: The script read a file that no identity contains, and this is set to be an error.
        ScriptError: The exit code was not 0; the message contains the end of the traceback.
        Stopped: The script saved and ended after a stop request, through `shardline_io`.
        SystemExit: This rank received SIGTERM, and the script has ended.
    """
    path, *arguments = split_script(model_class)
    folders = {"RUN_JSON": run_json, "MANIFEST": dataset.manifest, "SHARDS": dataset.shards}
    folders |= {"WORK": work / _CHECKPOINTS, "OUTPUT": work / _OUTPUT}
    memory = heartbeat_memory.mine()
    shared = (memory.descriptor,) if memory.descriptor >= 0 else ()
    of_io = {"WINDOW_ROWS": str(window_rows)}  # further variables that shardline_io reads
    of_io |= {"READS": json.dumps(reads)} if reads else {}
    of_io |= {"HEARTBEAT": str(shared[0])} if shared else {}
    if shared:
        stacks = stack_file(work, world.rank).absolute()
        of_io |= {"STACKS": str(stacks), "STACKS_SIGNAL": str(int(DUMP_SIGNAL))}
    of_io |= {"LEDGER": str((work / "ledger").absolute())} if ledger else {}
    own = [str((work / MODULES).absolute())] if python else []
    search = [str(Path.cwd()), *own, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        **export_world(world),
        **{f"SHARDLINE_{name}": str(folder.absolute()) for name, folder in folders.items()},
        **{f"SHARDLINE_{name}": value for name, value in of_io.items()},
        "PYTHONPATH": os.pathsep.join(search),
    }
    with answered(answers or {}) as requests:
        code, tail = _run_child(
            [*(python or [sys.executable]), *python_args, str(Path(path).absolute()), *arguments],
            {**os.environ, **variables, "SHARDLINE_REQUESTS": str(requests)},
            (*shared, requests),
        )
    memory.record_program(0)
    if memory.heeds_stops:  # no more heartbeats from here, while other ranks end
        memory.again("script")
        if code == Stopped.exit_code and (reason := memory.stop_reason()):
            saved = last_saved(work / _CHECKPOINTS)
            raise Stopped(reason, saved.step if saved else None)
    if code:
        message = _failure(path, code, tail)
        if python_args and REFUSED in message:
            raise ConfigError(message)
        if _LOST_PEER.search(message):
            time.sleep(_LOST_PEER_S)
        raise ScriptError(message)
    used = used_by_rank(world, work)
    write_json(work / _ENDED / f"rank-{world.rank}.json", encode(used))
    return _wait_for_all(work / _ENDED, world.world_size) if world.rank == 0 else [used]


def _run_child(
    command: list[str], env: Mapping[str, str], shared: Sequence[int]
) -> tuple[int, str]:
    """Run a program; return its exit code and the end of its stderr, which is passed on as it arrives."""
    child = subprocess.Popen(
        command,
        env=dict(env),
        stderr=subprocess.PIPE,
        pass_fds=shared,
        preexec_fn=die_with_parent,  # even when this rank is killed outright
        process_group=0,  # so that SIGTERM to this rank's group reaches the script only through us
    )
    tail = bytearray()
    assert child.stderr is not None
    reader = threading.Thread(target=_pass_on, args=(child.stderr, tail), daemon=True)
    reader.start()
    with _sigterm_passed_on(child):
        code = child.wait()
    kill_group(child.pid)  # processes that the script left running
    reader.join(_DRAIN_S)
    return code, tail.decode(errors="replace")


def _pass_on(stream: IO[bytes], tail: bytearray) -> None:
    while chunk := os.read(stream.fileno(), _TAIL_BYTES):
        with suppress(OSError):  # the reader of this rank's output may be gone
            os.write(2, chunk)
        tail += chunk
        del tail[:-_TAIL_BYTES]


@contextmanager
def _sigterm_passed_on(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass SIGTERM on to the script; once it has ended, exit with SIGTERM's code.

    A script that uses `shardline_io` gets stop requests through shared memory instead.
    """
    received, memory = [], heartbeat_memory.mine()

    def pass_on(number: int, frame: FrameType | None) -> None:
        if memory.heeds_stops:
            memory.request_stop(SIGNALS[signal.Signals(number)])
            return
        received.append(number)
        child.send_signal(number)

    def request(number: int, frame: FrameType | None) -> None:
        if memory.heeds_stops:
            memory.request_stop(SIGNALS[signal.Signals(number)])
        elif callable(before_request):
            before_request(number, frame)

    before = signal.signal(signal.SIGTERM, pass_on)
    before_request = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGUSR1, before_request)
    if received:
        sys.exit(128 + received[0])


def _failure(path: str, code: int, tail: str) -> str:
    """Return why a script ended: the last exception with its frames, else the last lines of stderr."""
    how = f"ended with code {code}" if code > 0 else f"was ended by {signal_name(-code)}"
    if -code == DUMP_SIGNAL:  # Python no longer handles the signal
        how = "did not exit after its interpreter had ended"
    lines = _RANK_PREFIX.sub("", tail).rstrip().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    if starts:
        lines = lines[starts[-1] + 1 :]
        last = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), 0)
        # lines that libraries log at exit are not part of the traceback
        end = next((i for i in range(last + 1, len(lines)) if lines[i].startswith("[")), len(lines))
        lines = lines[:end]
    if not lines:
        return f"script {path} {how} and wrote nothing to standard error; see the run's log"
    return "\n  ".join([f"script {path} {how}:", *lines[-_LINES_SHOWN:]])


def _wait_for_all(folder: Path, world_size: int) -> list[RankUsage]:
    # no deadline: if a rank fails, the launcher ends the others
    names = [f"rank-{rank}.json" for rank in range(world_size)]
    while set(names) - {path.name for path in folder.iterdir()}:
        time.sleep(_LOOK_S)
    return [read_record(folder / name, RankUsage, remedy="run it again") for name in names]


def seal(spec: RunSpec, *, work: Path, results: Path) -> Training:
    """Check a script's outputs, seal its model and metrics, and return the record of the training.

    Raises:
        DataError: `model.safetensors` is missing, unreadable, empty or not finite, or another file
            has the wrong form. Nothing is sealed then.
    """
    output = work / _OUTPUT
    path, *arguments = split_script(spec.model_class)
    _check_model(output / _MODEL)
    metrics = read_metrics(output / "metrics.jsonl")
    evaluation = read_evaluation(output / "evaluation.json")
    _copy_model(output / _MODEL, results / _MODEL, spec.identity)
    write_bytes(results / "metrics.jsonl", metrics)
    return Training(script=path, arguments=arguments, evaluation=evaluation)


def _check_model(path: Path) -> None:
    import torch
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError(
            f"the script succeeded, but rank 0 wrote no {path}; save the weights to {_MODEL} in the folder that "
            "the variable SHARDLINE_OUTPUT names"
        )
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            for name in names:
                value = file.get_tensor(name)
                if value.is_floating_point() and value.element_size() == 1:
                    value = value.float()  # isfinite does not support 8-bit floats
                if not bool(torch.isfinite(value).all()):
                    raise DataError(
                        f"{path}: weight {name} is NaN or infinite; lower the learning rate or clip gradients"
                    )
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is not a complete safetensors file ({error}); write it with safetensors.torch.save_file"
        ) from None
    if not names:
        raise DataError(f"{path} contains no weights; save the model's state_dict")


def _copy_model(source: Path, target: Path, identity: str) -> None:
    """Copy a safetensors file, and add the run's identity to its metadata."""
    with source.open("rb") as weights, atomic_writer(target) as file:
        header = json.loads(weights.read(int.from_bytes(weights.read(8), "little")))
        header["__metadata__"] = {**header.get("__metadata__", {}), "identity": identity}
        # sorted, since safetensors does not write metadata in a fixed order
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin aligned
        file.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(weights, file, 1 << 20)


def read_metrics(path: Path) -> bytes:
    """Read and normalise the `metrics.jsonl` of a script; return empty bytes if there is none.

    Each line is a JSON object with an integer `step` and optionally `epoch`, `wall_s` (seconds of
    training) and metrics by name. NaN and infinity, which JSON lacks, become null.

    Raises:
        DataError: A line is not such an object; the message names the line.
    """
    if not path.exists():
        return b""
    lines = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        step = record.get("step") if isinstance(record, dict) else None
        if not isinstance(step, int) or isinstance(step, bool):
            raise DataError(
                f"{path} line {number} is not a JSON object with an integer step; write one such as "
                '{"step": 50, "epoch": 0, "wall_s": 1.5, "train_loss": 0.9}'
            )
        record = {key: _finite(value) for key, value in record.items()}
        lines.append(json.dumps(record) + "\n")
    return "".join(lines).encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
