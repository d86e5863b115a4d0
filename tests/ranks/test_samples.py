"""The sample ledgers of real trainings: the same rows in the same steps, whatever happens to the ranks."""

import shutil
from pathlib import Path

import pytest

from shardline.checkpoints.folder import list_saved
from shardline.core.files import read_json, write_json
from shardline.core.seals import seal
from shardline.ledger import read_ledger
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating

# windows of some 50 rows of 640, so that an epoch crosses many of them
SMALL = {"data.window_bytes": 2500, "trainer.max_epochs": 3, "early_stopping.patience": 0}


def ledger(ranks, name):
    return read_ledger(ranks.root / name / "work" / "ledger")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"data.epoch": "partition", "data.partition_shards": 2, "trainer.max_epochs": 5},
        {"data.last_batch": "pad", "data.streams": 4, "trainer.accumulate": 2},
    ],
    ids=lambda row: next(iter(row), "default"),
)
def test_one_two_and_four_ranks_consume_the_same_samples_in_the_same_steps(prepare, row):
    ledgers = []
    for devices in (1, 2, 4):
        ranks = prepare(devices=devices, **{**SMALL, **row})
        output = ranks.train(f"of{devices}")
        ledgers.append(ledger(ranks, f"of{devices}"))
        last = max(ledgers[-1])
        assert f"progress step={last}/{last} " in output, "the total counts epochs of any length"
    assert ledgers[0] == ledgers[1] == ledgers[2]
    check_epochs(ranks, ledgers[0], is_padded="data.last_batch" in row)


def check_epochs(ranks, steps, *, is_padded):
    """No sample twice in a pass, and none left out but those of the last partial batch."""
    total = read_json(ranks.manifest, remedy="")["splits"]["train"]
    first_pass, seen = [], set()
    for ids in steps.values():
        if seen & set(ids):
            break
        seen |= set(ids)
        first_pass += ids
    batch = max(map(len, steps.values()))
    assert len(first_pass) == len(seen)
    assert total - len(seen) < (1 if is_padded else 3 * batch)  # each partition drops its own


def kill_and_resume(ranks, resumed, after):
    """Train `killed`, killing it after some steps, and resume it as `resumed` at another world size."""
    for step in after:
        ranks.kill_after("killed", step)
    shutil.copytree(ranks.root / "killed/work", resumed.root / "resumed/work")
    _adopt(resumed)
    return resumed.train("resumed"), ledger(resumed, "resumed")


def _adopt(resumed):
    """Give training checkpoints the identity of the run at another world size, as if it were its own."""
    identity = read_json(resumed.run_json, remedy="")["identity"]
    for saved in list_saved(resumed.root / "resumed/work/checkpoints"):
        manifest = saved.path / "manifest.json"
        write_json(manifest, seal({**read_json(manifest, remedy=""), "identity": identity}))


PARTITION = {"data.epoch": "partition", "trainer.max_epochs": 9}


@pytest.mark.parametrize(
    ("before", "after", "row"),
    [(2, 1, {}), *rotating((2, 4, {"data.streams": 2}), (1, 2, PARTITION))],
    ids=str,
)
def test_resuming_at_another_world_size_leaves_no_gap_and_repeats_nothing(
    prepare, before, after, row
):
    ranks = prepare(7, devices=before, **{**SMALL, **row})
    ranks.train("whole")
    output, steps = kill_and_resume(
        ranks, prepare(7, devices=after, **{**SMALL, **row}), after=(8, 25)
    )
    assert "resuming from step" in output
    assert steps == ledger(ranks, "whole")


def test_an_evaluation_in_training_counts_each_sample_once_on_uneven_ranks(prepare):
    """3 ranks share a validation split that is no multiple of 3, and none waits for another."""
    scores = []
    for devices in (1, 3):
        ranks = prepare(
            devices=devices,
            global_batch=33,
            **SMALL,
            **{"model_args.dropout": 0.0, "optim.lr": 1e-9},
        )
        ranks.train(f"of{devices}")
        lines = (ranks.results(f"of{devices}") / "metrics.jsonl").read_text()
        scores.append(next(line for line in lines.splitlines() if "val_loss" in line))
    rows = read_json(ranks.manifest, remedy="")["splits"]["validation"]
    assert rows % 3
    values = [
        float(score.partition('"val_accuracy": ')[2].split(",")[0].rstrip("}")) for score in scores
    ]
    assert values[0] * rows == pytest.approx(round(values[0] * rows), abs=1e-3)
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_a_damaged_shard_stops_all_ranks_with_one_sentence(prepare):
    ranks = prepare(**SMALL)
    (shard, *_) = sorted(Path(ranks.shards).glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    process = ranks.start("run")
    output = end_of_ranks(process)
    assert process.returncode != 0
    # whichever rank finds it first ends the other
    logs = [path.read_text() for path in (ranks.root / "run" / "logs").glob("*")]
    told = "\n".join([output, *logs])
    assert f"shard {shard} is damaged: its BLAKE3 digest is" in told
    assert "shardline verify --repair" in told
    assert not (ranks.results("run") / "model.safetensors").exists()
