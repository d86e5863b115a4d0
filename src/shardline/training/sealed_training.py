"""Train a run on one rank, from the preflight check to the sealed results."""

import importlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from msgspec import UNSET
from msgspec.structs import replace

from shardline.checkpoints.folder import list_saved
from shardline.config.resolved import as_plain
from shardline.config.scripts import is_script
from shardline.core.digests import file_sha256
from shardline.core.files import write_bytes, write_json
from shardline.core.world import World, alone
from shardline.environments.installed import (
    differences_of,
    explain_differences,
    found_by_rank,
    machine,
    observed_of_script,
)
from shardline.environments.venv import make_on_node
from shardline.identity import watch_reads
from shardline.launch.export import with_hosts
from shardline.provenance.actions import Action
from shardline.provenance.resume_certificates import find_certificate
from shardline.records.attempts import Attempt
from shardline.records.base import sealed
from shardline.records.measured import (
    Goodput,
    RankUsage,
    Resources,
    SealedCheck,
    Throughput,
    Weights,
)
from shardline.records.origins import Continued, LoadedWeights
from shardline.records.trainings import PackedSamples, Training
from shardline.supervision.attempt_log import (
    begin_attempt,
    read_attempts,
    record_resumed_step,
    sealed_again,
    sealed_log,
)
from shardline.tracking.run_links import read_places
from shardline.training.goodput import Timeline, goodput, kept_seconds, throughput
from shardline.training.observed_files import profiled
from shardline.training.preflight import meet
from shardline.training.rank_task import RankTask, ShortTraining, Train
from shardline.training.resources import gather, used_by_rank
from shardline.training.script_requests import kept_until
from shardline_io import heartbeat_memory

_SEALED = ("model.safetensors", "metrics.jsonl")
_VALUES_AT_A_TIME = 1 << 24  # 64 MB of float32


class _Measured(TypedDict, total=False):
    """Measurements of the training, for its provenance."""

    attempts: int
    attempt_log: list[Attempt]
    goodput: Goodput
    throughput: Throughput
    resources: Resources
    packs: PackedSamples  # missing if samples are rows
    weights: Weights
    sealed_check: SealedCheck
    continued: Continued  # missing if the training began at step 0


# The record of the training, and a function that measures it once all else is sealed.
_Trained = tuple[Training, Callable[[], _Measured]]


def train_and_seal(task: RankTask, action: Train, world: World) -> None:
    """Train as one rank; rank 0 seals the results."""
    # torch is imported only after the task was read without an error
    from shardline.provenance import record as provenance
    from shardline.training import script

    timeline = Timeline(time.time())
    if world.rank == 0:  # the job has begun the attempt, unless ranks were started without a job
        action = replace(action, attempt=action.attempt or begin_attempt(task.work))
        timeline = Timeline(read_attempts(task.work)[action.attempt - 1].started_s)
    run, is_strict = task.run, task.runtime.strict_env == "error"
    is_own = is_script(run.model_class)
    if is_own and world.rank == 0:
        script.prepare(task.work)
    if action.script_environment:
        action = replace(action, script_python=make_on_node(action.script_environment))
    interpreter = found_by_rank(run.environment, action.script_python)
    differences = differences_of(run.environment, interpreter)
    problem = explain_differences(differences)
    if problem and not is_strict:
        print(f"warning: {problem}", flush=True)
    importlib.import_module("torch")  # must not count as waiting for other ranks
    timeline.switch("rendezvous")
    heartbeat_memory.mine().tick(0, "rendezvous")
    preflight = meet(task, world, differences=differences, problem=problem if is_strict else "")
    timeline.switch("environment")
    heartbeat_memory.mine().tick(0, "startup")
    if action.first_steps:
        _train_first_steps(task, action, action.first_steps, world)
        return
    clock = time.monotonic()
    # read now, since the files may change during hours of training
    sources = provenance.sources() if world.rank == 0 else {}
    began = Action(id=f"train/{run.run}", git=sources.get("git", {}))
    if is_own:
        world_of_script = with_hosts(world, preflight["ranks"])
        training, measured = _run_script(task, action, world_of_script, timeline)
    elif run.settings.combined:
        if world.rank:  # one rank combines sealed runs alone
            return
        watch_reads.start_rank(task.work, task.runtime.watch_reads)
        training, measured = _combine(task, action, alone(world), timeline)
    else:
        watch_reads.start_rank(task.work, task.runtime.watch_reads)
        training, measured = _train(task, action, world, timeline)
    if world.rank == 0:
        document = provenance.make_provenance(
            run,
            sources=sources,
            world=world,
            preflight=preflight,
            manifests=[file_sha256(one.manifest) for one in task.datasets],
            started=began.started,
            duration_s=time.monotonic() - clock,
            measured=measured(),
            training=training,
            tracking=read_places(task.work, action.tracking) | profiled(task.work),
            files={name: file_sha256(action.results / name) for name in _SEALED},
        )
        certificate = None if is_own else find_certificate(sources["environment"])
        document = replace(document, certificate=certificate, action=began.record())
        write_json(action.results / "provenance.json", sealed(document))


def _train(task: RankTask, action: Train, world: World, timeline: Timeline) -> _Trained:
    """Train a LightningModule; rank 0 seals model and metrics."""
    from shardline.training.fit import seal_model, train
    from shardline.training.stopwatch import Parts, Stopwatch

    def note(step: int, kept: Parts) -> None:
        if world.rank == 0:
            kept_s = kept_seconds(kept)
            record_resumed_step(task.work, action.attempt, step, kept_s, world=world.world_size)

    stopwatch = Stopwatch(timeline, action.attempt, note)
    trained = train(task, world, [stopwatch, *_callbacks(task)], set_by_row=action.set_by_row)
    if trained.resumed_step == trained.steps:  # nothing was left to train
        note(trained.resumed_step, stopwatch.kept())
        if world.rank == 0 and trained.steps:
            print(f"warning: {sealed_again(trained.steps, task.run.run)}", flush=True)
    _report_reads(task, world)
    used = gather(used_by_rank(world, task.work, timeline.seconds()), world)
    if world.rank == 0:
        seal_model(trained, task.run, action.results / "model.safetensors")
        write_bytes(action.results / "metrics.jsonl", (task.work / "metrics.jsonl").read_bytes())
    result = Training(
        best_score=trained.best_score,
        steps=trained.steps,
        epochs=trained.epochs,
        stopped_early=trained.stopped_early,
        resumed_step=trained.resumed_step,
        consumed=trained.consumed or UNSET,
        checkpoint_s=trained.checkpoint_s,
        interventions=[*trained.interventions],
        own_optimizer=trained.own_optimizer or UNSET,
        init=_loaded(task) or UNSET,
        unsaved=[*trained.unsaved] or UNSET,
    )
    readings = stopwatch.readings, stopwatch.steps_a_reading

    def measured() -> _Measured:
        found = _measured(task, stopwatch.kept(), used, readings, trained.packs)
        found["weights"] = _weights(action, trained.parameters)
        if trained.sealed_check:
            found["sealed_check"] = trained.sealed_check
        if continued := _continued(task):
            found["continued"] = continued
        return found

    return result, measured


def _loaded(task: RankTask) -> LoadedWeights | None:
    """Return the record of the weights with which the training began, in this attempt or an earlier one."""
    from shardline.training.init_weights import read_loaded

    return read_loaded(task.work) if task.run.init else None


def _continued(task: RankTask) -> Continued | None:
    """Return the record of the shorter run whose state the training began with, if there is one."""
    newest = next(iter(list_saved(task.work / "checkpoints")), None)
    if newest is None or newest.continued is None:
        return None
    one = newest.continued
    return Continued(
        run=one.run, identity=one.identity, step=one.step, seconds=round(one.seconds, 3),
        device_hours=round(one.device_hours, 6),
    )  # fmt: skip


def _combine(task: RankTask, action: Train, world: World, timeline: Timeline) -> _Trained:
    """Average sealed runs in place of a training, and seal model and metrics."""
    from shardline.training.averages import seal_combined

    timeline.switch("validation")
    result, parameters = seal_combined(task, action.results, world)
    _report_reads(task, world)
    seconds = timeline.seconds()
    used = [used_by_rank(world, task.work, seconds)]

    def measured() -> _Measured:
        found = _measured(task, {action.attempt: seconds}, used)
        found["weights"] = _weights(action, parameters)
        return found

    return result, measured


def _train_first_steps(task: RankTask, action: Train, first: ShortTraining, world: World) -> None:
    """Train the first steps of a LightningModule; rank 0 writes their metrics."""
    from shardline.training.fit import train
    from shardline.training.stop_agreement import EndAfter, StepsDone

    with suppress(StepsDone):
        train(task, world, [EndAfter(first.num_steps)], set_by_row=action.set_by_row)
    if world.rank == 0:
        write_bytes(first.metrics, (task.work / "metrics.jsonl").read_bytes())


def _callbacks(task: RankTask) -> list[Any]:
    """Return callbacks that check watched reads, since a model may catch the error of a read."""
    from pytorch_lightning.callbacks import LambdaCallback

    if task.runtime.watch_reads == "off":
        return []
    looking = LambdaCallback(on_fit_start=lambda *_: watch_reads.look())
    if task.runtime.watch_reads == "warn":
        return [looking]
    return [looking, LambdaCallback(on_train_batch_end=lambda *_: watch_reads.check())]


def _report_reads(task: RankTask, world: World) -> None:
    """Let rank 0 warn about files that any rank has read and no identity contains."""
    if task.runtime.watch_reads == "off":
        return
    found = gather(watch_reads.found(), world)
    warning = watch_reads.finish({path: line for one in found for path, line in one.items()})
    if warning and world.rank == 0:
        print(f"warning: {warning}", flush=True)


def _run_script(task: RankTask, action: Train, world: World, timeline: Timeline) -> _Trained:
    """Run a training script; rank 0 seals its outputs."""
    from shardline.data.dataset import Dataset
    from shardline.data.python.applied import calls_of
    from shardline.training import script

    place = task.datasets[0]
    dataset = Dataset(place.manifest, place.shards, verify=task.runtime.verify, fold=place.fold)
    if calls_of(dataset.manifest, "train") and world.rank == 0:
        print(
            f"warning: dataset {dataset.manifest.dataset} has transforms of its own, which shards do not contain; a "
            "script gets the stored rows, so apply the transforms in the script",
            flush=True,
        )

    def resumed(at: Mapping[str, Any]) -> None:
        kept_s = kept_until(read_attempts(task.work), at["step"], at["saved_s"])
        record_resumed_step(task.work, action.attempt, at["step"], kept_s, world=world.world_size)

    timeline.switch("other")
    heartbeat_memory.mine().tick(0, "script")
    used = script.run_script(
        task.run.model_class,
        world,
        run_json=action.run_json,
        dataset=place,
        work=task.work,
        window_rows=dataset.window_rows(task.run.settings.data.window_bytes),
        ledger=task.runtime.ledger,
        reads=_reads(task),
        answers={"shard": dataset.verifier.check, "resumed": resumed},
        python=action.script_python,
        # the script's own environment may lack Shardline, which watches the reads
        python_args=()
        if action.script_python
        else watch_reads.command_of_script(task.runtime.watch_reads, task.work),
    )
    result = Training()
    if world.rank == 0:
        result = script.seal(task.run, work=task.work, results=action.results)
        if action.script_python:
            found = observed_of_script(task.run.environment, action.script_python)
            result = replace(result, environment=found)

    def measured() -> _Measured:
        found = _measured(task, {action.attempt: timeline.seconds()}, used)
        found["weights"] = _weights(action)
        return found

    return result, measured


def _reads(task: RankTask) -> dict[str, Any]:
    """Return how the `shardline_io` of a script reads the data, as JSON types."""
    places = [
        {"manifest": str(one.manifest.absolute()), "shards": str(one.shards.absolute()), "weight": one.weight}
        for one in task.datasets
    ]  # fmt: skip
    return {
        "datasets": places,
        "data": as_plain(task.run.settings.data),
        "verify": task.runtime.verify,
    }


def _weights(action: Train, parameters: Collection[str] = ()) -> Weights:
    """Return the record of the sealed weights."""
    return Weights(largest=largest_weight(action.results / "model.safetensors", parameters))


def largest_weight(path: Path, parameters: Collection[str] = ()) -> float | None:
    """Return the largest absolute value of a model's parameters; None if it has none.

    Buffers do not count, since running statistics and masks may contain any number.

    Args:
        path: File of the sealed weights, whose values are finite.
        parameters: Names of the parameters; if empty, all names that end with `weight` or `bias`.
    """
    import torch
    from safetensors import safe_open

    largest = None
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118, a file is no mapping
            known = name in parameters if parameters else name.split(".")[-1] in ("weight", "bias")
            value = file.get_tensor(name) if known else torch.empty(0)
            if value.numel() and (value.is_floating_point() or value.is_complex()):
                for part in torch.split(value.flatten(), _VALUES_AT_A_TIME):
                    # torch has no abs() of 8-bit floats
                    part = part if part.is_complex() else part.float()
                    largest = max(largest or 0.0, float(part.abs().max()))
    return largest


def _measured(
    task: RankTask, kept: Mapping[int, Mapping[str, float]],
    used: Sequence[RankUsage], readings: tuple[Sequence[float], int] = ((), 1),
    packs: PackedSamples | None = None,
) -> _Measured:  # fmt: skip
    log = sealed_log(task.work)
    found: _Measured = {
        "attempts": len(log),
        "attempt_log": log,
        "goodput": goodput(log, kept, is_script=is_script(task.run.model_class)),
        "throughput": throughput(
            *readings, global_batch=task.run.settings.global_batch, ranks=len(used)
        ),
        "resources": Resources(**machine(), ranks=[*used]),
    }
    return found | {"packs": packs} if packs else found
