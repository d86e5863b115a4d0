"""The program of one rank: `python -m shardline.training.worker RUN_JSON ...`, started by a launcher."""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardline.config.before import schema_of, with_before
from shardline.config.scripts import is_script
from shardline.core.digests import file_sha256
from shardline.core.errors import NAME_FILE, name_in_messages
from shardline.core.files import read_json, write_bytes, write_json
from shardline.core.world import World
from shardline.environments.installed import explain_differences, find_differences, machine
from shardline.identity import watch_reads
from shardline.identity.seals import seal
from shardline.provenance.actions import Action
from shardline.provenance.certificates import find_certificate
from shardline.supervision import heartbeat_memory as pulse
from shardline.supervision.attempts import (
    begin_attempt,
    note_resumed,
    read_attempts,
    sealed_log,
    started_s,
)
from shardline.supervision.rank import run_rank
from shardline.supervision.watchdog import Watch
from shardline.tracking.run_links import read_places
from shardline.training.goodput import Timeline, goodput, kept_seconds, throughput
from shardline.training.preflight import rehearse_run
from shardline.training.resources import gather, used_by_rank

_NUMBERS = {
    "log-every-steps": "log_every_steps",
    "checkpoint-every-steps": "checkpoint.every_steps",
    "checkpoints-kept": "checkpoint.keep",
    "best-kept": "checkpoint.keep_best",
    "rendezvous-timeout-s": "rendezvous_timeout_s",
}
# The rehearsal has as long for each of its parts: to meet, to form a group, for a message.
_REHEARSAL_PARTS = 3
_TORCH_TIMEOUT_S = 1800.0
_SEALED = ("model.safetensors", "metrics.jsonl")
# What a training ended with, and what gives its measurements when all else is sealed.
_Trained = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def main() -> int:
    """Train one rank; rank 0 seals the results. Returns the exit code."""
    args = _parse()
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    watch = Watch(
        hang_timeout_s=args.hang_timeout_s,
        startup_timeout_s=_REHEARSAL_PARTS * args.rendezvous_timeout_s + 60,
    )
    return run_rank(
        lambda world: _run(args, world),
        work=args.work,
        logs=args.rank_logs,
        shorten=_shorten,
        watch=watch,
    )


def _shorten(error: Exception) -> str:
    from shardline.training.model import short_traceback

    return short_traceback(error)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m shardline.training.worker", description=__doc__
    )
    parser.add_argument("run_json", type=Path, help="the resolved run")
    parser.add_argument(
        "--model-class", help="import path of the model now; as resolved if left out"
    )
    parser.add_argument(
        "--manifest", type=Path, required=True, help="sealed manifest of the dataset"
    )
    parser.add_argument("--shards", type=Path, required=True, help="folder of the dataset's shards")
    parser.add_argument("--work", type=Path, required=True, help="folder of the run in the store")
    parser.add_argument("--results", type=Path, required=True, help="folder for the sealed files")
    parser.add_argument("--rank-logs", type=Path, required=True, help="folder for the ranks' logs")
    for name, key in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, required=True, help=f"runtime.{key}")
    parser.add_argument(
        "--checkpoint-every-min", type=float, default=0.0, help="runtime.checkpoint.every_min"
    )
    parser.add_argument(
        "--synchronous-checkpoints", action="store_true", help="runtime.checkpoint.asynchronous"
    )
    parser.add_argument(
        "--verify", choices=("off", "first", "always"), required=True, help="runtime.verify"
    )
    parser.add_argument(
        "--strict-env", choices=("error", "warn"), required=True, help="runtime.strict_env"
    )
    parser.add_argument(
        "--watch-reads", choices=("off", "warn", "error"), default="off", help="runtime.watch_reads"
    )
    parser.add_argument(
        "--attempt", type=int, default=0, help="number of the attempt that the job has begun"
    )
    parser.add_argument("--hang-timeout-s", type=float, default=0.0, help="runtime.hang_timeout_s")
    parser.add_argument("--ledger", action="store_true", help="runtime.ledger")
    parser.add_argument("--tracking", nargs="*", default=[], help="runtime.tracking")
    parser.add_argument("--oversubscribe", action="store_true", help="runtime.oversubscribe")
    parser.add_argument(
        "--first-steps", type=int, default=0, help="train so many steps only, and seal nothing"
    )
    parser.add_argument("--first-metrics", type=Path, help="file for the metrics of these steps")
    for name in ("nodes", "devices"):
        parser.add_argument(
            f"--{name}",
            type=int,
            help=f"{name} that the job has for the run; as planned if left out",
        )
    parser.add_argument(
        "--set-by-row", nargs="*", default=[], help="settings that the run's own row sets"
    )
    return parser.parse_args()


def _run(args: argparse.Namespace, world: World) -> None:
    # torch is imported only once the arguments are good
    from shardline.provenance import record as provenance
    from shardline.training import script

    timeline = _begin(args, world)
    spec = _read_spec(args)
    settings, is_own = spec["settings"], is_script(spec["model_class"])
    if is_own and world.rank == 0:
        script.prepare(args.work)
    differences = find_differences(**spec["environment"])
    problem = explain_differences(differences)
    if problem and args.strict_env == "warn":
        print(f"warning: {problem}", flush=True)
    importlib.import_module("torch")  # its seconds are not the ranks' waiting
    timeline.switch("rendezvous")
    pulse.mine().tick(0, "rendezvous")
    here = {name: getattr(args, name) or settings[name] for name in ("nodes", "devices")}
    rehearsed = rehearse_run(
        {**settings, **here},
        world,
        run=name_in_messages(spec),
        timeout_s=args.rendezvous_timeout_s,
        oversubscribe=args.oversubscribe,
        differences=differences,
        problem=problem if args.strict_env == "error" else "",
    )
    timeline.switch("environment")
    pulse.mine().tick(0, "startup")
    if args.first_steps:
        _train_first_steps(args, spec, world)
        _leave()
        return
    clock = time.monotonic()
    sources = (
        provenance.sources() if world.rank == 0 else {}
    )  # as they are before hours have passed
    action = Action(id=f"train/{spec['run']}", git=sources.get("git", {}))
    if not is_own:  # whose script has a process of its own
        _watch_reads(args)
    training, measured = (_run_script if is_own else _train)(args, spec, world, timeline)
    if world.rank == 0:
        document = provenance.make_provenance(
            spec,
            sources=sources,
            world=world,
            rehearsed=rehearsed,
            manifest_sha256=file_sha256(args.manifest),
            started=action.started,
            duration_s=time.monotonic() - clock,
            measured=measured(),
            training=training,
            tracking=read_places(args.work, args.tracking),
            files={name: file_sha256(args.results / name) for name in _SEALED},
        )
        certificate = None if is_own else find_certificate(sources)
        sealed = seal({**document, "certificate": certificate, "action": action.record()})
        write_json(args.results / "provenance.json", sealed)
    _leave()


def _watch_reads(args: argparse.Namespace, *, is_spawned: bool = False) -> None:
    if args.watch_reads != "off":
        known = watch_reads.read_counted(args.work / watch_reads.COUNTED_FILE)
        watch_reads.start(
            watch_reads.Watch(known=known, mode=args.watch_reads, is_spawned=is_spawned)
        )


def _read_spec(args: argparse.Namespace) -> dict[str, Any]:
    """Return the resolved run, which an earlier Shardline may have written, as it is to be trained now."""
    spec: dict[str, Any] = read_json(
        args.run_json, remedy="run the pipeline again to resolve the run"
    )
    spec["settings"] = with_before(spec["settings"], schema_of("train"))
    spec["model_class"] = args.model_class or spec["model_class"]
    with suppress(OSError):  # ranks that were started without a job have none
        spec["name"] = (args.work / NAME_FILE).read_text(encoding="utf-8")
    return spec


def _begin(args: argparse.Namespace, world: World) -> Timeline:
    """Find the attempt that the job has begun; begin one where ranks were started without a job."""
    if world.rank != 0:
        return Timeline(time.time())
    args.attempt = args.attempt or begin_attempt(args.work)
    return Timeline(started_s(read_attempts(args.work)[args.attempt - 1]))


def _train(
    args: argparse.Namespace, spec: dict[str, Any], world: World, timeline: Timeline
) -> _Trained:
    """Train a LightningModule; rank 0 seals model and metrics."""
    from shardline.training import fit as train
    from shardline.training.stopwatch import Parts, Stopwatch

    def note(step: int, kept: Parts) -> None:
        if world.rank == 0:
            kept_s = kept_seconds(kept)
            note_resumed(args.work, args.attempt, step, kept_s, world=world.world_size)

    stopwatch = Stopwatch(timeline, args.attempt, note)
    trained = _fit(args, spec, world, [stopwatch, *_callbacks(args)])
    if trained.resumed_step == trained.steps:  # it was whole, and Lightning began nothing
        note(trained.resumed_step, stopwatch.kept())
    _tell_reads(args, world)
    used = gather(used_by_rank(world), world)
    if world.rank == 0:
        train.seal_model(trained, spec, args.results / "model.safetensors")
        write_bytes(args.results / "metrics.jsonl", (args.work / "metrics.jsonl").read_bytes())
    told = {key: value for key, value in asdict(trained).items() if key != "best"}
    readings = stopwatch.readings, stopwatch.steps_a_reading
    return told, lambda: _measured(args.work, spec, stopwatch.kept(), used, readings)


def _fit(args: argparse.Namespace, spec: dict[str, Any], world: World, callbacks: list[Any]) -> Any:
    """Train as the arguments say, and return what `train.train` does."""
    from shardline.training import fit as train

    options = train.Options(
        log_every_steps=args.log_every_steps,
        best_kept=args.best_kept,
        verify=args.verify,
        set_by_row=tuple(args.set_by_row),
        # an unnamed error of torch must not come before the watchdog's
        collective_timeout_s=max(_TORCH_TIMEOUT_S, 2 * args.hang_timeout_s),
        save_every_steps=args.checkpoint_every_steps,
        save_every_s=60 * args.checkpoint_every_min,
        checkpoints_kept=args.checkpoints_kept,
        is_synchronous=args.synchronous_checkpoints,
        ledger=args.ledger,
    )
    return train.train(
        spec,
        world,
        options,
        manifest=args.manifest,
        shards=args.shards,
        work=args.work,
        callbacks=callbacks,
    )


def _train_first_steps(args: argparse.Namespace, spec: dict[str, Any], world: World) -> None:
    """Train some steps of a LightningModule; rank 0 writes their metrics."""
    from shardline.training.stop_agreement import EndAfter, StepsDone

    with suppress(StepsDone):
        _fit(args, spec, world, [EndAfter(args.first_steps)])
    if world.rank == 0:
        write_bytes(args.first_metrics, (args.work / "metrics.jsonl").read_bytes())


def _callbacks(args: argparse.Namespace) -> list[Any]:
    """Return what ends a training at its next step where a model has caught the error of a read."""
    from pytorch_lightning.callbacks import LambdaCallback

    if args.watch_reads != "error":
        return []
    return [LambdaCallback(on_train_batch_end=lambda *_: watch_reads.check())]


def _tell_reads(args: argparse.Namespace, world: World) -> None:
    """Have rank 0 name the files that any rank has read and no identity holds."""
    if args.watch_reads == "off":
        return
    found = gather(watch_reads.found(), world)
    warning = watch_reads.finish({path: line for one in found for path, line in one.items()})
    if warning and world.rank == 0:
        print(f"warning: {warning}", flush=True)


def _run_script(
    args: argparse.Namespace, spec: dict[str, Any], world: World, timeline: Timeline
) -> _Trained:
    """Run a training script; rank 0 seals what it left."""
    from shardline.training import script

    timeline.switch("other")
    pulse.mine().tick(0, "script")
    used = script.run_script(
        spec,
        world,
        run_json=args.run_json,
        manifest=args.manifest,
        shards=args.shards,
        work=args.work,
        python_args=watch_reads.command_of_script(args.watch_reads, args.work),
    )
    told = script.seal(spec, work=args.work, results=args.results) if world.rank == 0 else {}
    return told, lambda: _measured(args.work, spec, {args.attempt: timeline.seconds()}, used)


def _measured(
    work: Path, spec: Mapping[str, Any], kept: Mapping[int, Mapping[str, float]],
    used: Sequence[Mapping[str, Any]], readings: tuple[Sequence[float], int] = ((), 1),
) -> dict[str, Any]:  # fmt: skip
    """Return what the training tells of itself, for its provenance."""
    log = sealed_log(work)
    return {
        "attempts": len(log),
        "attempt_log": log,
        "goodput": goodput(log, kept, is_script=is_script(spec["model_class"])),
        "throughput": throughput(
            *readings, global_batch=spec["settings"]["global_batch"], ranks=len(used)
        ),
        "resources": {**machine(), "ranks": list(used)},
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
    _watch_reads(_parse(), is_spawned=True)
