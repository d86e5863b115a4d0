"""Real ranks over gloo, killed in mid-epoch and resumed: the bits and the samples of an uninterrupted training."""

import pytest

from shardline.ledger import read_ledger
from tests.support.rotation import rotating


# 640 train rows or so make 19 or 20 steps an epoch; saves every 7 steps fall
# into mid-epoch, every 10 also onto an epoch's end.
@pytest.mark.parametrize(
    ("every_steps", "row"),
    [
        (
            7,
            {
                "trainer.accumulate": 2,
                "schedule.name": "cosine",
                "schedule.warmup_steps": 5,
                "data.window_bytes": 2500,  # some 50 rows of 640: an epoch crosses many windows
            },
        ),
        (7, {"devices": 4}),  # from three ranks on, what is added to what first makes a difference
        *rotating(
            (7, {}),
            (1, {}),
            (7, {"devices": 1, "optim.name": "sgd", "early_stopping.patience": 2}),
            (7, {"devices": 1, "precision": "64-true"}),
            (
                7,
                {
                    "trainer.max_epochs": -1,
                    "trainer.max_steps": 50,
                    "trainer.val_check_interval": 6,
                    "ddp.static_graph": True,
                    "precision": "bf16-true",
                    "optim.name": "sgd",
                },
            ),
        ),
    ],
)
def test_a_killed_training_ends_with_the_bits_and_the_samples_of_an_uninterrupted_one(
    prepare, every_steps, row
):
    ranks = prepare(every_steps, **{"trainer.max_epochs": 4, **row})
    ranks.train("whole")
    killed_at = [ranks.kill_after("killed", step) for step in (8, 30)]
    output = ranks.train("killed")
    assert f"resuming from step {killed_at[-1]}" in output
    assert killed_at[1] > killed_at[0] > 0
    assert ranks.model("killed") == ranks.model("whole")
    killed, whole = (read_ledger(ranks.root / name / "work/ledger") for name in ("killed", "whole"))
    assert killed == whole, "every step of both has the same samples"
    assert ranks.provenance("killed")["attempts"] == 3
    recorded, wanted = ranks.steps("killed"), ranks.steps("whole")
    assert len(recorded) == len(set(recorded)), "no step is recorded twice"
    # a kill between a save and the writing of that very step's record loses the record
    assert set(wanted) - set(recorded) <= set(killed_at)
