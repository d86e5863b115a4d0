"""Earlier results that a user accepts in place of the present identity's, on the record.

The files are linked (or copied) under the present identity, and `accepted.json` beside them records
from which identity, by whom, when, why, and what differs.
"""

from shardline.results.accept.candidates import (
    Candidate,
    candidate_of_dataset,
    candidate_of_run,
    find_by_cause,
)
from shardline.results.accept.first_steps import compare_first_steps
from shardline.results.accept.take import accept_dataset, accept_run
from shardline.results.accept.unasked import accept_unasked

__all__ = [
    "Candidate",
    "accept_dataset",
    "accept_run",
    "accept_unasked",
    "candidate_of_dataset",
    "candidate_of_run",
    "compare_first_steps",
    "find_by_cause",
]
