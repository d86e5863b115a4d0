"""The program of one rank: `python -m shardline.worker RUN_JSON ...`, started by a launcher."""

import argparse
import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardline.errors import ShardlineError
from shardline.files import read_json, write_bytes, write_json
from shardline.identity.content import file_sha256
from shardline.launch.process import die_with_parent
from shardline.launch.world import World, check_world, resolve_world

_OPTIONS = ("log_every_steps", "checkpoint_every_steps", "checkpoints_kept")
_SEALED = ("model.safetensors", "metrics.jsonl")


def main(arguments: list[str] | None = None) -> int:
    """Train one rank; rank 0 seals the results. Returns the exit code."""
    die_with_parent()
    args = _parse(arguments)
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    try:
        world = resolve_world(os.environ)
        _run(args, world)
    except ShardlineError as error:
        _report_error(args.work, str(error))
        return error.exit_code
    except Exception as error:
        from shardline.modelling import short_traceback

        traceback.print_exc()  # all of it, into the log
        _report_error(args.work, short_traceback(error))
        return 1
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardline.worker", description=__doc__)
    parser.add_argument("run_json", type=Path, help="the resolved run")
    parser.add_argument(
        "--manifest", type=Path, required=True, help="sealed manifest of the dataset"
    )
    parser.add_argument("--shards", type=Path, required=True, help="folder of the dataset's shards")
    parser.add_argument("--work", type=Path, required=True, help="folder of the run in the store")
    parser.add_argument("--results", type=Path, required=True, help="folder for the sealed files")
    for name in _OPTIONS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, required=True, help=f"runtime.{name}"
        )
    parser.add_argument(
        "--verify", choices=("off", "first", "always"), required=True, help="runtime.verify"
    )
    parser.add_argument("--ledger", action="store_true", help="runtime.ledger")
    parser.add_argument(
        "--set-by-row", nargs="*", default=[], help="settings that the run's own row sets"
    )
    return parser.parse_args(arguments)


def _report_error(work: Path, message: str) -> None:
    """Leave the message where the job finds it: the first rank to fail tells the cause."""
    rank = os.environ.get("RANK", "0")
    print(message, file=sys.stderr, flush=True)
    folder = work / "errors"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / f"rank-{rank}.json", {"rank": rank, "time": time.time(), "message": message}
    )


def _run(args: argparse.Namespace, world: World) -> None:
    # torch is imported only once the arguments are good
    from shardline import provenance, train
    from shardline.ledger import SampleLedger
    from shardline.metrics import JsonLinesLogger, PlainProgress

    spec = read_json(args.run_json, remedy="run the pipeline again to resolve the run")
    check_world(world, nodes=spec["settings"]["nodes"], devices=spec["settings"]["devices"])
    started, clock = provenance.now(), time.monotonic()
    sources = (
        provenance.sources() if world.rank == 0 else {}
    )  # as they are before hours have passed
    attempts = _count_attempt(args.work) if world.rank == 0 else 0
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
    ranks = _gather(_describe(world, trained.device), world)
    if world.rank == 0:
        training = {
            key: value for key, value in asdict(trained).items() if key not in ("best", "device")
        }
        train.seal_model(trained, spec, args.results / "model.safetensors")
        write_bytes(args.results / "metrics.jsonl", (args.work / "metrics.jsonl").read_bytes())
        document = provenance.make_provenance(
            spec,
            sources=sources,
            world=world,
            ranks=ranks,
            manifest_sha256=file_sha256(args.manifest),
            started=started,
            duration_s=time.monotonic() - clock,
            attempts=attempts,
            training=training,
            files={name: file_sha256(args.results / name) for name in _SEALED},
        )
        write_json(args.results / "provenance.json", document)
    _leave(world)


def _count_attempt(work: Path) -> int:
    path = work / "attempts.json"
    attempts = 1 + (read_json(path, remedy=f"delete {path}")["attempts"] if path.exists() else 0)
    write_json(path, {"attempts": attempts})
    return attempts


def _gather(mine: dict[str, Any], world: World) -> list[dict[str, Any]]:
    import torch.distributed as dist

    if world.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * world.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def _describe(world: World, device: str) -> dict[str, Any]:
    import torch

    from shardline.provenance import describe_rank, processor

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else processor()
    return describe_rank(world, device=device, device_name=name, threads=torch.get_num_threads())


def _leave(world: World) -> None:
    """End the process group together, so that no rank reports a peer's normal exit as a failure."""
    import torch.distributed as dist

    if world.world_size > 1 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
