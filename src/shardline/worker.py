"""The program of one rank: `python -m shardline.worker RUN_JSON ...`, started by a launcher."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardline.actions import Action
from shardline.config.scripts import is_script
from shardline.environments.observed import explain_differences, find_differences
from shardline.files import read_json, write_bytes, write_json
from shardline.identity.content import file_sha256
from shardline.launch.rank import run_rank
from shardline.launch.world import World
from shardline.rehearse import rehearse_run
from shardline.seals import seal

_OPTIONS = ("log_every_steps", "checkpoint_every_steps", "checkpoints_kept")
_NUMBERS = (*_OPTIONS, "rendezvous_timeout_s")
_SEALED = ("model.safetensors", "metrics.jsonl")


def main() -> int:
    """Train one rank; rank 0 seals the results. Returns the exit code."""
    args = _parse()
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    return run_rank(
        lambda world: _run(args, world), work=args.work, logs=args.rank_logs, shorten=_shorten
    )


def _shorten(error: Exception) -> str:
    from shardline.modelling import short_traceback

    return short_traceback(error)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardline.worker", description=__doc__)
    parser.add_argument("run_json", type=Path, help="the resolved run")
    parser.add_argument(
        "--manifest", type=Path, required=True, help="sealed manifest of the dataset"
    )
    parser.add_argument("--shards", type=Path, required=True, help="folder of the dataset's shards")
    parser.add_argument("--work", type=Path, required=True, help="folder of the run in the store")
    parser.add_argument("--results", type=Path, required=True, help="folder for the sealed files")
    parser.add_argument("--rank-logs", type=Path, required=True, help="folder for the ranks' logs")
    for name in _NUMBERS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, required=True, help=f"runtime.{name}"
        )
    parser.add_argument(
        "--verify", choices=("off", "first", "always"), required=True, help="runtime.verify"
    )
    parser.add_argument(
        "--strict-env", choices=("error", "warn"), required=True, help="runtime.strict_env"
    )
    parser.add_argument("--ledger", action="store_true", help="runtime.ledger")
    parser.add_argument("--oversubscribe", action="store_true", help="runtime.oversubscribe")
    parser.add_argument(
        "--set-by-row", nargs="*", default=[], help="settings that the run's own row sets"
    )
    return parser.parse_args()


def _run(args: argparse.Namespace, world: World) -> None:
    # torch is imported only once the arguments are good
    from shardline import provenance, script

    spec = read_json(args.run_json, remedy="run the pipeline again to resolve the run")
    settings = spec["settings"]
    if is_script(spec["model_class"]) and world.rank == 0:
        script.prepare(args.work)
    differences = find_differences(**spec["environment"])
    problem = explain_differences(differences)
    if problem and args.strict_env == "warn":
        print(f"warning: {problem}", flush=True)
    rehearsed = rehearse_run(
        settings,
        world,
        run=spec["run"],
        timeout_s=args.rendezvous_timeout_s,
        oversubscribe=args.oversubscribe,
        differences=differences,
        problem=problem if args.strict_env == "error" else "",
    )
    clock = time.monotonic()
    sources = (
        provenance.sources() if world.rank == 0 else {}
    )  # as they are before hours have passed
    action = Action(id=f"train/{spec['run']}", git=sources.get("git", {}))
    attempts = _count_attempt(args.work) if world.rank == 0 else 0
    work = _run_script if is_script(spec["model_class"]) else _train
    training = work(args, spec, world)
    if world.rank == 0:
        document = provenance.make_provenance(
            spec,
            sources=sources,
            world=world,
            rehearsed=rehearsed,
            manifest_sha256=file_sha256(args.manifest),
            started=action.started,
            duration_s=time.monotonic() - clock,
            attempts=attempts,
            training=training,
            files={name: file_sha256(args.results / name) for name in _SEALED},
        )
        sealed = seal({**document, "action": action.record()})
        write_json(args.results / "provenance.json", sealed)
    _leave(world)


def _train(args: argparse.Namespace, spec: dict[str, Any], world: World) -> dict[str, Any]:
    """Train a LightningModule; rank 0 seals model and metrics. Returns what is known of the training."""
    from shardline import train
    from shardline.ledger import SampleLedger
    from shardline.metrics import JsonLinesLogger, PlainProgress

    trained = train.train(
        spec,
        world,
        train.Options(
            **{name: getattr(args, name) for name in _OPTIONS},
            verify=args.verify,
            set_by_row=tuple(args.set_by_row),
        ),
        manifest=args.manifest,
        shards=args.shards,
        work=args.work,
        logger=JsonLinesLogger(args.work / "metrics.jsonl"),
        callbacks=[
            PlainProgress(),
            *([SampleLedger(args.work / "ledger", world)] if args.ledger else []),
        ],
    )
    if world.rank == 0:
        train.seal_model(trained, spec, args.results / "model.safetensors")
        write_bytes(args.results / "metrics.jsonl", (args.work / "metrics.jsonl").read_bytes())
    return {key: value for key, value in asdict(trained).items() if key != "best"}


def _run_script(args: argparse.Namespace, spec: dict[str, Any], world: World) -> dict[str, Any]:
    """Run a training script; rank 0 seals what it left. Returns what is known of the training."""
    from shardline import script

    script.run_script(
        spec,
        world,
        run_json=args.run_json,
        manifest=args.manifest,
        shards=args.shards,
        work=args.work,
    )
    return script.seal(spec, work=args.work, results=args.results) if world.rank == 0 else {}


def _count_attempt(work: Path) -> int:
    path = work / "attempts.json"
    attempts = 1 + (read_json(path, remedy=f"delete {path}")["attempts"] if path.exists() else 0)
    write_json(path, {"attempts": attempts})
    return attempts


def _leave(world: World) -> None:
    """End the process group together, so that no rank reports a peer's normal exit as a failure."""
    import torch.distributed as dist

    if world.world_size > 1 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
