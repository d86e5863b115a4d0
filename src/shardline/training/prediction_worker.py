"""One rank of a prediction: `python -m shardline.training.prediction_worker rank.json`, started by a launcher."""

import sys
from pathlib import Path

from shardline.config.run_spec import RunSpec
from shardline.core.error_texts import short_traceback
from shardline.core.world import World
from shardline.supervision.rank import run_rank
from shardline.training.preflight import preflight_run
from shardline.training.rank_spec import PredictionSpec, spec_of_command


def main() -> int:
    """Predict as one rank, which writes its own parts. Returns the exit code."""
    rank = spec_of_command(PredictionSpec, "shardline.training.prediction_worker", __doc__)
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    return run_rank(
        lambda world: _run(rank, world),
        work=rank.work,
        logs=rank.rank_logs,
        shorten=short_traceback,
    )


def _run(rank: PredictionSpec, world: World) -> None:
    # torch is imported only once what the ranks are given is good
    import torch

    from shardline.training.predict import predict

    preflight_run(
        world,
        rank.geometry,
        accelerator=rank.settings.accelerator,
        run=rank.name,
        timeout_s=rank.rendezvous_timeout_s,
        oversubscribe=rank.oversubscribe,
    )
    torch.set_num_threads(1)  # as of an evaluation: their number changes the last bits of sums
    spec = RunSpec(
        run=rank.run, name=rank.name, model_class=rank.model_class, settings=rank.settings
    )
    for num_rows in predict(
        spec,
        model_file=rank.model,
        trained_on=rank.datasets,
        rows=rank.rows,
        split=rank.split,
        folder=rank.folder,
        parts=rank.parts,
        verify=rank.verify,
        world=world,
    ):
        print(f"{num_rows} rows are predicted", flush=True)


if __name__ == "__main__":
    sys.exit(main())
