"""The resume certificate: what `resume` interrupted, where, and what was compared."""

from collections.abc import Sequence
from pathlib import Path

from shardline.drills.outcome import Drilled
from shardline.provenance.actions import Action
from shardline.provenance.certificates import identify, write_certificate
from shardline.records.base import read_record
from shardline.records.runs import TrainingProvenance


def certify(drills: Sequence[Drilled], action: Action) -> Path | None:
    """Write what the `resume` test showed, and return the path; None if a training was never sealed.

    Args:
        drills: the runs of each number of ranks, while their files exist.
        action: the test, started before its trainings.
    """
    sealed = [drill.broken.results / "provenance.json" for drill in drills]
    if not all(path.exists() for path in sealed):
        return None
    parts = [
        identify(read_record(path, TrainingProvenance, remedy="drill again")) for path in sealed
    ]
    outcomes = [drill.outcome for drill in drills]
    names = outcomes[0].compared
    return write_certificate(
        {
            "identity": {
                **parts[0],
                "machine": sorted({name for part in parts for name in part["machine"]}),
                "world_sizes": sorted(size for part in parts for size in part["world_sizes"]),
            },
            "interruptions": [one for outcome in outcomes for one in outcome.interruptions],
            "compared": {name: all(one.compared[name] for one in outcomes) for name in names},
            "verdict": "not survived" if any(one.reasons for one in outcomes) else "survived",
            "action": action.record(),
        }
    )
