"""Real ranks continue a shorter training: the bits and the samples of a training from step 0."""

import json
from dataclasses import replace

import pytest

from shardline.checkpoints.continuing import states_to_continue, take_over
from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.manifest import Continued
from shardline.ledger import read_ledger
from shardline.training.rank_task import read_run
from tests.support.rotation import rotating


@pytest.mark.parametrize(
    "row",
    [
        {"strategy": "fsdp", "devices": 2, "precision": "bf16-mixed", "trainer.accumulate": 2},
        *rotating(
            {"devices": 4, "trainer.gradient_clip": 0.05}, {"strategy": "fsdp", "devices": 1}
        ),
    ],
    ids=lambda row: " ".join(map(str, row.values())),
)
def test_ranks_continue_a_shorter_training_with_its_bits(prepare, row):
    ranks = prepare(7, **{"trainer.max_epochs": 3, **row})
    ranks.train("whole")
    spec = json.loads(ranks.run_json.read_text())
    spec["settings"]["trainer"]["max_epochs"] = 2
    spec["identity"] = "1" * 64
    shorter = replace(ranks, run_json=ranks.root / "shorter.json")
    shorter.run_json.write_text(json.dumps(spec))
    shorter.train("shorter")
    folder = ranks.root / "shorter/work/checkpoints"
    saved, why = next(states_to_continue(folder, world_size=row["devices"]))
    assert why == ""
    of = Continued(run="1" * 12, identity="1" * 64, step=saved.step, seconds=1.0, ranks=1)
    work, identity = ranks.root / "longer/work", read_run(ranks.run_json).identity
    take_over(saved, work, identity=identity, continued=of)
    assert f"resuming from step {saved.step}" in ranks.train("longer")
    assert ranks.model("longer") == ranks.model("whole")
    longer, whole = (read_ledger(ranks.root / name / "work/ledger") for name in ("longer", "whole"))
    assert longer == whole
    assert list_saved(work / "checkpoints")[0].continued == of
    provenance = json.loads((ranks.results("longer") / "provenance.json").read_text())
    assert provenance["continued"]["step"] == saved.step
