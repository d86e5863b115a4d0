"""One rank of an evaluation: `python -m shardline.training.evaluation_worker rank.json`, started by a launcher."""

import sys
from pathlib import Path

from shardline.config.run_spec import RunSpec
from shardline.core.error_texts import short_traceback
from shardline.core.files import write_json
from shardline.core.world import World
from shardline.identity import watch_reads
from shardline.supervision.rank import run_rank
from shardline.training.preflight import preflight_run
from shardline.training.rank_spec import EvaluationSpec, spec_of_command


def main() -> int:
    """Evaluate as one rank; rank 0 writes what was found. Returns the exit code."""
    rank = _read_rank()
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    return run_rank(
        lambda world: _run(rank, world),
        work=rank.work,
        logs=rank.rank_logs,
        shorten=short_traceback,
    )


def _read_rank() -> EvaluationSpec:
    return spec_of_command(EvaluationSpec, "shardline.training.evaluation_worker", __doc__)


def _run(rank: EvaluationSpec, world: World) -> None:
    # torch is imported only once what the ranks are given is good
    import torch
    import torch.distributed as dist

    from shardline.training.evaluate import evaluate

    preflight_run(
        world,
        rank.geometry,
        accelerator=rank.settings.accelerator,
        run=rank.name,
        timeout_s=rank.rendezvous_timeout_s,
        oversubscribe=rank.oversubscribe,
    )
    torch.set_num_threads(
        1
    )  # whatever the launcher gave: their number changes the last bits of sums
    _watch_reads(rank)
    found = evaluate(
        RunSpec(run=rank.run, name=rank.name, model_class=rank.model_class, settings=rank.settings),
        model_file=rank.model,
        datasets=rank.datasets,
        verify=rank.verify,
        has_test_step=rank.has_test_step,
        has_samples=rank.has_samples,
        world=world,
    )
    if warning := watch_reads.finish():
        print(f"warning: {warning}", flush=True)
    if world.rank == 0:
        write_json(rank.output, found)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _watch_reads(rank: EvaluationSpec, *, is_spawned: bool = False) -> None:
    watch_reads.start_rank(rank.work, rank.watch_reads, is_spawned=is_spawned)


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":  # of a process that user code has multiprocessing spawn
    _watch_reads(_read_rank(), is_spawned=True)
