"""What `identity.environment` accepts by itself, at the start of a pipeline."""

import logging

from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.core.errors import ShardlineError
from shardline.core.package import check_unlocked
from shardline.records.identities import weights_of_inputs
from shardline.results.accept.candidates import Candidate, find_by_cause, is_near, read_manifest
from shardline.results.accept.take import accept_dataset, accept_run, fitting_evaluation

_LOG = logging.getLogger("shardline")


def accept_unasked(project: Project) -> None:
    """Accept what differs by its environment alone, as far as `identity.environment` allows.

    The log names the accepted results. What cannot be accepted is made again, and the log names the reason.
    """
    level = project.identity.environment
    if level == "exact":
        return
    # one after the other: a run is looked for when its dataset has been taken over
    for found in find_by_cause(project, {"environment"}):
        if not _fits(found, level):
            continue
        try:
            check_unlocked(project.workdir)
            _accept(project, found, f"identity.environment: {level}")
        except ShardlineError as error:
            _LOG.warning("%s is not accepted: %s", found.earlier_title, error)
            continue
        _LOG.warning("%s is accepted as %s", found.earlier_title, found.title)


def _fits(found: Candidate, level: str) -> bool:
    if not is_near(found.document, found.asked.document, level):
        return False
    if isinstance(found.asked, DatasetPlan):
        return True
    layout, present = found.asked.layout, [part.dataset for part in found.asked.parts]
    before = weights_of_inputs(found.document["inputs"]).keys() - {one.id for one in present}
    documents = [read_manifest(layout, earlier).identity for earlier in before]
    return all(any(is_near(old, one.document, level) for one in present) for old in documents)


def _accept(project: Project, found: Candidate, reason: str) -> None:
    if isinstance(found.asked, DatasetPlan):
        accept_dataset(project, found, reason=reason)
        return
    # nothing but the environment differs, so the model is the same
    assert isinstance(found.asked, RunPlan)
    earlier = found.asked.folder.with_name(found.earlier)
    has_evaluation = fitting_evaluation(found.asked, earlier) is not None
    accept_run(project, found, reason=reason, with_evaluation=has_evaluation, checks_model=False)
