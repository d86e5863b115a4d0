"""Runs the cases' jobs in processes forked from one that has imported torch: what mutants are compared by.

Each stage is the job that its rule calls; only the launcher is another one, and a rank that was killed is
started again at once, as Snakemake's retries would. Shardline itself is imported behind the fork, so that a
mutated module can take the place of one of its modules.
"""

import importlib.abc
import importlib.machinery
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from msgspec import structs

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
_RETRIES = 3
# imported before ranks are forked
_OF_RANKS = (
    "shardline.checkpoints.manager", "shardline.launch.preflight.preflight_check", "shardline.ledger",
    "shardline.provenance.record", "shardline.training.metrics_file", "shardline.training.script",
    "shardline.training.fit", "shardline.training.sealed_training", "shardline.training.rank",
)  # fmt: skip


class Mutated(importlib.machinery.SourceFileLoader):
    """Loads one module from other code than its file's."""

    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        """Return the other code."""
        return self.code


class Mutating(importlib.abc.MetaPathFinder):
    """Finds one module of Shardline with other code.

    Args:
        module: dotted name.
        code: what it is made of.
    """

    def __init__(self, module: str, code: CodeType) -> None:
        self._module, self._code = module, code

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Return the module's place, with a loader of its own."""
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        loader = Mutated(fullname, spec.origin)
        loader.code = self._code
        spec.loader = loader
        return spec


class Tracer:
    """Which lines of some files are executed.

    Each line is written as it is reached, since a process that is killed writes nothing at its end.

    Args:
        files: whose lines count.
        path: where all processes leave their lines.
    """

    def __init__(self, files: frozenset[str], path: Path) -> None:
        self._files, self._path = files, path
        self._lines: set[tuple[str, int]] = set()
        self._out = -1

    def begin(self) -> None:
        """Trace this process from here on."""
        self._out = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.settrace(self._enter)
        threading.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return (
            self._line(frame, event, argument) if frame.f_code.co_filename in self._files else None
        )

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if line not in self._lines:
            self._lines.add(line)
            os.write(self._out, f"{json.dumps(line)}\n".encode())
        return self._line

    def leave(self) -> None:
        """End the trace."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def forked(work: Callable[[], object], *, limit_s: int = 0, log: Path | None = None) -> int:
    """Do some work in a forked process and return its exit code, negative for a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _end_with(work, limit_s, log)
    raise AssertionError


def _end_with(work: Callable[[], object], limit_s: int, log: Path | None) -> None:
    code = 1
    try:
        signal.alarm(limit_s)
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        code = int(work() or 0)  # type: ignore[call-overload]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def preload(modules: Sequence[str]) -> None:
    """Import what forked processes use, and read what is installed, which they record."""
    for name in modules:
        importlib.import_module(name)
    read = metadata.PathDistribution.metadata.fget  # type: ignore[attr-defined]
    known = {str(one._path): read(one) for one in metadata.distributions()}  # type: ignore[attr-defined]
    metadata.PathDistribution.metadata = property(  # type: ignore[assignment]
        lambda self: known.get(str(self._path)) or read(self)
    )


def import_shardline() -> None:
    """Import what the jobs and ranks use, by the finder that may be there for one module."""
    if str(SRC) not in sys.path:
        sys.path.insert(0, str(SRC))
    for name in (
        "shardline.pipeline",
        "shardline.supervision.supervisor",
        "shardline.data.build",
        "shardline.training.evaluate",
        *_OF_RANKS,
    ):
        importlib.import_module(name)


@contextmanager
def forked_ranks(tracer: Tracer | None) -> Iterator[None]:
    """Have training jobs fork their ranks in the place of starting a launcher."""
    from shardline.supervision import supervisor as supervise
    from shardline.training.rank_task import read_task, write_task

    def run_ranks(command: Sequence[str], *, env: Mapping[str, str], log: Path, **_: Any) -> None:
        path = Path(command[list(command).index("shardline.training.rank") + 1])
        given = read_task(path)
        runtime = structs.replace(given.runtime, hang_timeout_s=0.0)  # no watchdog
        write_task(path, structs.replace(given, runtime=runtime))
        size = next((int(a.partition("=")[2]) for a in command if a.startswith("--nproc")), 1)
        code = _ranks(path, {**env}, size, log, tracer)
        if code:
            raise supervise.RankError(
                f"a rank ended with code {code}", is_killed=code == -signal.SIGKILL
            )

    before, supervise.run_ranks = supervise.run_ranks, run_ranks  # type: ignore[assignment]
    try:
        yield
    finally:
        supervise.run_ranks = before


def _ranks(spec: Path, env: dict[str, str], size: int, log: Path, tracer: Tracer | None) -> int:
    """Fork the ranks; the first that fails ends the others, and its exit code is the result."""
    if size > 1:
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    left = set()
    for rank in range(size):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        place = {key: str(value) for key, value in own.items()} if size > 1 else {}
        if not (pid := os.fork()):
            _end_with(lambda place=place: _rank(spec, env | place, tracer), 0, log)
        left.add(pid)
    first = 0
    while left:
        pid, status = os.wait()
        left.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first = code
            for other in left:
                os.kill(other, signal.SIGKILL)
    return first


def _rank(spec: Path, env: Mapping[str, str], tracer: Tracer | None) -> int:
    from shardline.training import rank

    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["shardline.training.rank", str(spec)]
    if tracer:
        tracer.begin()
    try:
        return rank.main()
    finally:
        if tracer:
            tracer.leave()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def config_of(folder: Path) -> dict[str, Any]:
    """Return a project's config, as Snakemake passes it."""
    import yaml

    found: dict[str, Any] = yaml.safe_load((folder / "config/config.yaml").read_text())
    return found


def build(config: Mapping[str, Any], name: str) -> None:
    """Do the jobs of a dataset."""
    from shardline.config.load import load_project
    from shardline.pipeline import dataset_jobs as jobs

    project = load_project(config)
    dataset = next(one for one in project.datasets.values() if one.name == name)
    parts = project.store / "datasets" / dataset.id / "parts"
    plan = project.part(datasets=[dataset.id])
    for part in dataset.parts:
        jobs.build_shards(plan, part, str(parts / f"{part}.json"))
    jobs.seal_dataset(plan, str(dataset.manifest), str(dataset.provenance))


def train(config: Mapping[str, Any], name: str, tracer: Tracer | None) -> None:
    """Do the jobs of a run; its dataset is there."""
    from shardline.config.load import load_project
    from shardline.pipeline.run_jobs import evaluate, resolve_run
    from shardline.pipeline.training import train as train_run
    from shardline.supervision.supervisor import RankError

    project = load_project(config)
    key, run = next(one for one in project.runs.items() if one[1].names[0] == name)
    plan = project.part(runs=[key])
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    files = {"spec": str(run.folder / "run.json"), "manifest": str(run.dataset.manifest)}
    resolve_run(plan, files["spec"], str(run.folder / "identity.json"))
    log = Path("logs/train") / f"{run.id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _RETRIES + 1):
        try:
            with forked_ranks(tracer):
                train_run(plan, log, str(run.model), files, attempt=attempt)
            break
        except RankError as error:
            if not error.is_killed or attempt == _RETRIES:
                raise
    evaluate(plan, str(run.evaluation), {**files, "model": str(run.model)})
