"""The resume certificate: interrupted at random steps, in every place, and not a bit is another."""

import json
import random

import pytest

from shardline.core.seals import check_seal
from shardline.drills.fault_injection import PLACES
from shardline.drills.outcome import (
    DrilledRun,
    TrainedFiles,
    certify,
    compare,
    cost,
    why_not_survived,
)
from shardline.provenance.actions import Action
from shardline.provenance.resume_certificates import identify
from shardline.records.certificates import Interruption
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating

# 640 train rows make 80 steps an epoch, 80 of validation several batches on each rank.
ROW = {"model": "shardline.drills.faulty_model:Drill", "global_batch": 8, "trainer.accumulate": 2}
STEPS = 75


def trained(ranks, name: str) -> TrainedFiles:
    return TrainedFiles(work=ranks.root / name / "work", results=ranks.results(name))


def interrupt(ranks, faults: list[dict], name: str = "broken") -> list[dict]:
    """Train until all planned faults were injected and the training ended, and return the faults."""
    plan = {str(ranks.devices): faults}
    (ranks.root / "plan.json").write_text(json.dumps(plan))
    for _ in faults:
        process = ranks.start(name)
        output = end_of_ranks(process)
        assert process.returncode != 0, output
    ranks.train(name)
    (ranks.root / "plan.json").unlink()
    injected = [
        json.loads(path.read_text())
        for number, _ in enumerate(faults)
        for path in sorted(ranks.root.glob(f"injected/{ranks.devices}-{number}-rank-*.json"))[:1]
    ]
    return [{"ranks": ranks.devices, **one} for one in injected]


@pytest.mark.parametrize("devices", [2, *rotating(1)])
@pytest.mark.parametrize("seed", [1, *rotating(2)])
def test_a_training_interrupted_at_random_in_every_place_ends_with_the_same_bits(
    prepare, devices, seed
):
    ranks = prepare(7, devices=devices, **ROW, **{"trainer.max_epochs": 4, "seed": seed})
    ranks.train("whole")
    dice = random.Random(f"{seed}/{devices}")
    faults = [
        {
            "place": place,
            "step": 80 * epoch + dice.randint(8, STEPS),
            "rank": None,
            "action": "kill",
        }
        for epoch, place in enumerate(dice.sample(PLACES, len(PLACES)))
    ]
    injected = interrupt(ranks, faults)
    assert [one["place"] for one in injected] == [fault["place"] for fault in faults]
    compared = compare(trained(ranks, "broken"), trained(ranks, "whole"))
    assert compared == {"weights": True, "optimizer": True, "ledger": True}
    assert ranks.provenance("broken")["attempts"] == 4


def test_a_certificate_is_sealed_and_later_trainings_of_this_code_name_it(prepare):
    ranks = prepare(7, devices=1, **ROW, **{"trainer.max_epochs": 2})
    ranks.train("whole")
    assert ranks.provenance("whole")["certificate"] is None
    fault = {"place": "mid-accumulation", "step": 20, "rank": None, "action": "kill"}
    injected = interrupt(ranks, [fault])
    broken = trained(ranks, "broken")
    compared = compare(broken, trained(ranks, "whole"))
    outcome = DrilledRun(
        verdict="survived", drill="resume", profile="none", ranks=1, compared=compared, commands=2,
        interruptions=[Interruption(**{"ranks": 1, **one}) for one in injected],
        reasons=why_not_survived(compared, planned=1, injected=len(injected), failure=""), **cost(broken.attempts()),
    )  # fmt: skip
    path = certify([(outcome, identify(broken.provenance()))], Action(id="drill/resume"))
    document = json.loads(path.read_text())
    assert check_seal(path, document) is None
    assert path.stem == f"resume-{document['sha256'][:12]}"
    assert document["verdict"] == "survived"
    assert document["identity"]["world_sizes"] == [1]
    assert document["interruptions"][0]["place"] == "mid-accumulation"

    ranks.train("later")
    named = ranks.provenance("later")["certificate"]
    assert (named["path"], named["verdict"]) == (str(path), "survived")
    assert "certificate" in ranks.provenance("broken")


def test_one_flipped_bit_is_no_survival(prepare):
    ranks = prepare(7, devices=1, **ROW, **{"trainer.max_epochs": 1})
    ranks.train("whole")
    ranks.train("other")
    model = trained(ranks, "other").model
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(bytes(content))
    compared = compare(trained(ranks, "other"), trained(ranks, "whole"))
    assert compared == {"weights": False, "optimizer": True, "ledger": True}
    assert why_not_survived(compared, planned=0, injected=0, failure="") == [
        "different from the training without a fault: weights"
    ]
