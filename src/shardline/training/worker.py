"""The program of one rank: `python -m shardline.training.worker rank.json`, started by a launcher."""

import importlib
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shardline.config.geometry import ActualGeometry
from shardline.config.resolved import as_plain
from shardline.config.run_spec import RunSpec
from shardline.config.scripts import is_script
from shardline.core.digests import file_sha256
from shardline.core.errors import NAME_FILE, DataError
from shardline.core.files import write_bytes, write_json
from shardline.core.imports import short_traceback
from shardline.core.world import World
from shardline.environments.installed import explain_differences, machine
from shardline.environments.on_rank import differences_of, found_by_rank, observed_of_script
from shardline.environments.venv import make_on_node
from shardline.identity import watch_reads
from shardline.launch.export import with_hosts
from shardline.provenance.actions import Action
from shardline.provenance.certificates import find_certificate
from shardline.records.base import read_record, sealed
from shardline.records.runs import ResolvedRun, Training
from shardline.supervision.attempts import (
    begin_attempt,
    read_attempts,
    record_resumed_step,
    sealed_again,
    sealed_log,
)
from shardline.supervision.rank import run_rank
from shardline.supervision.watchdog import Watch
from shardline.tracking.run_links import read_places
from shardline.training.goodput import Timeline, goodput, kept_seconds, throughput
from shardline.training.preflight import preflight_run
from shardline.training.rank_spec import FirstSteps, RankSpec, spec_of_command
from shardline.training.resources import gather, stepped, used_by_rank
from shardline.training.script_requests import kept_until
from shardline_io import heartbeat_memory
from shardline_io.order import VERSION as ORDER_VERSION

# The preflight check has as long for each of its parts: to meet, to form a group, for a message.
_PREFLIGHT_PARTS = 3
_SEALED = ("model.safetensors", "metrics.jsonl")
# What a training ended with, and what gives its measurements when all else is sealed.
_Trained = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def main() -> int:
    """Train one rank; rank 0 seals the results. Returns the exit code."""
    rank = _read_rank()
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    watch = Watch(
        hang_timeout_s=rank.runtime.hang_timeout_s,
        startup_timeout_s=_PREFLIGHT_PARTS * rank.runtime.rendezvous_timeout_s + 60,
        attempt=rank.attempt,
    )
    return run_rank(
        lambda world: _run(rank, world),
        work=rank.work,
        logs=rank.rank_logs,
        shorten=short_traceback,
        watch=watch,
    )


def _read_rank() -> RankSpec:
    return spec_of_command(RankSpec, "shardline.training.worker", __doc__)


def _run(rank: RankSpec, world: World) -> None:
    # torch is imported only once what the ranks are given is good
    from shardline.provenance import record as provenance
    from shardline.training import script

    attempt, timeline = _begin(rank, world)
    rank = replace(rank, attempt=attempt)
    spec, runtime = _read_run(rank), rank.runtime
    settings, is_own = spec.settings, is_script(spec.model_class)
    if is_own and world.rank == 0:
        script.prepare(rank.work)
    if rank.script_environment:
        rank = replace(rank, script_python=make_on_node(rank.script_environment))
    interpreter = found_by_rank(spec.environment, rank.script_python)
    differences = differences_of(spec.environment, interpreter)
    problem = explain_differences(differences)
    if problem and runtime.strict_env == "warn":
        print(f"warning: {problem}", flush=True)
    importlib.import_module("torch")  # its seconds are not the ranks' waiting
    timeline.switch("rendezvous")
    heartbeat_memory.mine().tick(0, "rendezvous")
    planned = ActualGeometry(nodes=settings.nodes, devices=settings.devices)
    preflight = preflight_run(
        world,
        rank.geometry or planned,
        accelerator=settings.accelerator,
        run=spec.title,
        timeout_s=runtime.rendezvous_timeout_s,
        oversubscribe=runtime.oversubscribe,
        differences=differences,
        problem=problem if runtime.strict_env == "error" else "",
    )
    timeline.switch("environment")
    heartbeat_memory.mine().tick(0, "startup")
    if rank.first_steps:
        _train_first_steps(rank, rank.first_steps, spec, world)
        _leave()
        return
    clock = time.monotonic()
    sources = (
        provenance.sources() if world.rank == 0 else {}
    )  # as they are before hours have passed
    action = Action(id=f"train/{spec.run}", git=sources.get("git", {}))
    if not is_own:  # whose script has a process of its own
        _watch_reads(rank)
    if is_own:
        training, measured = _run_script(
            rank, spec, with_hosts(world, preflight["ranks"]), timeline
        )
    else:
        training, measured = _train(rank, spec, world, timeline)
    if world.rank == 0:
        document = provenance.make_provenance(
            spec,
            sources=sources,
            world=world,
            preflight=preflight,
            manifests=[file_sha256(one.manifest) for one in rank.datasets],
            started=action.started,
            duration_s=time.monotonic() - clock,
            measured=measured(),
            training=Training(**training),
            tracking=read_places(rank.work, rank.tracking),
            files={name: file_sha256(rank.results / name) for name in _SEALED},
        )
        certificate = None if is_own else find_certificate(sources)
        document = replace(document, certificate=certificate, action=action.record())
        write_json(rank.results / "provenance.json", sealed(document))
    _leave()


def _watch_reads(rank: RankSpec, *, is_spawned: bool = False) -> None:
    watch_reads.start_rank(rank.work, rank.runtime.watch_reads, is_spawned=is_spawned)


def _read_run(rank: RankSpec) -> RunSpec:
    """Return the resolved run as it is to be trained now."""
    recorded = read_record(
        rank.run_json, ResolvedRun, remedy="run the pipeline again to resolve the run"
    )
    name = ""
    with suppress(OSError):  # ranks that were started without a job have none
        name = (rank.work / NAME_FILE).read_text(encoding="utf-8")
    if recorded.order != ORDER_VERSION:
        raise DataError(
            f"{rank.run_json} has the order of samples of version {recorded.order}, expected {ORDER_VERSION}, this "
            "Shardline's; delete the run's folder beside it to resolve it again, or use the Shardline that wrote it"
        )
    return RunSpec.of(recorded, name=name, model_class=rank.model_class, data=rank.data)


def _begin(rank: RankSpec, world: World) -> tuple[int, Timeline]:
    """Find the attempt that the job has begun; begin one where ranks were started without a job."""
    if world.rank != 0:
        return rank.attempt, Timeline(time.time())
    number = rank.attempt or begin_attempt(rank.work)
    return number, Timeline(read_attempts(rank.work)[number - 1].started_s)


def _train(rank: RankSpec, spec: RunSpec, world: World, timeline: Timeline) -> _Trained:
    """Train a LightningModule; rank 0 seals model and metrics."""
    from shardline.training.fit import seal_model, train
    from shardline.training.stopwatch import Parts, Stopwatch

    def note(step: int, kept: Parts) -> None:
        if world.rank == 0:
            kept_s = kept_seconds(kept)
            record_resumed_step(rank.work, rank.attempt, step, kept_s, world=world.world_size)

    stopwatch = Stopwatch(timeline, rank.attempt, note)
    trained = train(spec, world, rank, [stopwatch, *_callbacks(rank)])
    if trained.resumed_step == trained.steps:  # it was whole, and Lightning began nothing
        note(trained.resumed_step, stopwatch.kept())
        if world.rank == 0 and trained.steps:
            print(f"warning: {sealed_again(trained.steps, spec.run)}", flush=True)
    _report_reads(rank, world)
    used = gather({**used_by_rank(world, rank.work), **stepped(timeline.seconds())}, world)
    if world.rank == 0:
        seal_model(trained, spec, rank.results / "model.safetensors")
        write_bytes(rank.results / "metrics.jsonl", (rank.work / "metrics.jsonl").read_bytes())
    result = {
        key: value
        for key, value in asdict(trained).items()
        if key not in ("best", "parameters", "packs", "sealed_check")
    }
    readings, packs = (stopwatch.readings, stopwatch.steps_a_reading), trained.packs
    return result, lambda: {
        **_measured(rank.work, spec, stopwatch.kept(), used, readings, packs),
        "weights": _weights(rank, trained.parameters),
        "sealed_check": trained.sealed_check,
    }


def _train_first_steps(rank: RankSpec, first: FirstSteps, spec: RunSpec, world: World) -> None:
    """Train some steps of a LightningModule; rank 0 writes their metrics."""
    from shardline.training.fit import train
    from shardline.training.stop_agreement import EndAfter, StepsDone

    with suppress(StepsDone):
        train(spec, world, rank, [EndAfter(first.num_steps)])
    if world.rank == 0:
        write_bytes(first.metrics, (rank.work / "metrics.jsonl").read_bytes())


def _callbacks(rank: RankSpec) -> list[Any]:
    """Return what looks at reads in `setup`, and ends a training where a model has caught the error of a read."""
    from pytorch_lightning.callbacks import LambdaCallback

    if rank.runtime.watch_reads == "off":
        return []
    looking = LambdaCallback(on_fit_start=lambda *_: watch_reads.look())
    if rank.runtime.watch_reads == "warn":
        return [looking]
    return [looking, LambdaCallback(on_train_batch_end=lambda *_: watch_reads.check())]


def _report_reads(rank: RankSpec, world: World) -> None:
    """Have rank 0 name the files that any rank has read and no identity holds."""
    if rank.runtime.watch_reads == "off":
        return
    found = gather(watch_reads.found(), world)
    warning = watch_reads.finish({path: line for one in found for path, line in one.items()})
    if warning and world.rank == 0:
        print(f"warning: {warning}", flush=True)


def _run_script(rank: RankSpec, spec: RunSpec, world: World, timeline: Timeline) -> _Trained:
    """Run a training script; rank 0 seals what it left."""
    from shardline.data.dataset import Dataset
    from shardline.training import script

    place = rank.datasets[0]
    dataset = Dataset(place.manifest, place.shards, verify=rank.runtime.verify)

    def resumed(at: Mapping[str, Any]) -> None:
        kept_s = kept_until(read_attempts(rank.work), at["step"], at["saved_s"])
        record_resumed_step(rank.work, rank.attempt, at["step"], kept_s, world=world.world_size)

    timeline.switch("other")
    heartbeat_memory.mine().tick(0, "script")
    used = script.run_script(
        spec.model_class,
        world,
        run_json=rank.run_json,
        dataset=place,
        work=rank.work,
        window_rows=dataset.window_rows(spec.settings.data.window_bytes),
        ledger=rank.runtime.ledger,
        reads=_reads(rank, spec),
        answers={"shard": dataset.verifier.check, "resumed": resumed},
        python=rank.script_python,
        # what looks at reads is Shardline's, which an environment of its own may lack
        python_args=()
        if rank.script_python
        else watch_reads.command_of_script(rank.runtime.watch_reads, rank.work),
    )
    result = script.seal(spec, work=rank.work, results=rank.results) if world.rank == 0 else {}
    if result and rank.script_python:
        result["environment"] = observed_of_script(spec.environment, rank.script_python)
    return result, lambda: {
        **_measured(rank.work, spec, {rank.attempt: timeline.seconds()}, used),
        "weights": _weights(rank),
    }


def _reads(rank: RankSpec, spec: RunSpec) -> dict[str, Any]:
    """Return how a script's `shardline_io` reads the data."""
    places = [
        {"manifest": str(one.manifest.absolute()), "shards": str(one.shards.absolute()), "weight": one.weight}
        for one in rank.datasets
    ]  # fmt: skip
    return {
        "datasets": places,
        "data": as_plain(spec.settings.data),
        "verify": rank.runtime.verify,
    }


def _weights(rank: RankSpec, parameters: Collection[str] = ()) -> dict[str, float | None]:
    """Return what is recorded of the sealed weights."""
    from shardline.training.weights import largest_weight

    return {"largest": largest_weight(rank.results / "model.safetensors", parameters)}


def _measured(
    work: Path, spec: RunSpec, kept: Mapping[int, Mapping[str, float]],
    used: Sequence[Mapping[str, Any]], readings: tuple[Sequence[float], int] = ((), 1),
    packs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what the training tells of itself, for its provenance."""
    log = sealed_log(work)
    return {
        "attempts": len(log),
        "attempt_log": log,
        "goodput": goodput(log, kept, is_script=is_script(spec.model_class)),
        "throughput": throughput(
            *readings, global_batch=spec.settings.global_batch, ranks=len(used)
        ),
        "resources": {**machine(), "ranks": list(used)},
        **({"packs": dict(packs)} if packs else {}),  # rows that are samples leave no key
    }


def _leave() -> None:
    """End the process group together, so that no rank reports a peer's normal exit as a failure."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":  # of a process that user code has multiprocessing spawn
    _watch_reads(_read_rank(), is_spawned=True)
