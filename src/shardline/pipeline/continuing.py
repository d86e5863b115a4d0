"""Take the state of a shorter training over before a job trains a longer one."""

import logging
from pathlib import Path

from shardline.checkpoints.continuing import take_over
from shardline.checkpoints.folder import last_step
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.canonical import digest
from shardline.core.errors import DataError
from shardline.core.files import json_bytes, write_bytes
from shardline.core.job_progress import job_progress
from shardline.results.alike import DOCUMENT, Trainings
from shardline.results.continuing import choose
from shardline.results.taken_milestones import milestones_taken
from shardline.supervision.attempt_log import take_attempts_over


def continue_shorter(project: Project, run: RunPlan) -> None:
    """Continue the training with the most steps that differs from a run only in its length, if there is one.

    The caller holds the lock of the run's folder in the store. The log names what is continued, and each training that
    is not, with the reason.
    """
    work = project.layout.declared.work(run.id)
    # a storage may keep the folder of results, and the next longer run looks for the document
    write_bytes(work / DOCUMENT, json_bytes(run.document))
    own_step = last_step(work / "checkpoints")
    known, damaged = Trainings(project.layout.declared), set[Path]()
    while True:
        choice = choose(project, run, own_step=own_step, known=known, damaged=damaged)
        if choice.alike is None or choice.saved is None:
            break
        alike, saved = choice.alike, choice.saved
        milestones = milestones_taken(choice, run.settings.checkpoint)
        try:
            take_over(
                saved,
                work,
                identity=digest(run.document),
                continued=choice.continued(),
                milestones=milestones.taken,
                before=lambda: take_attempts_over(alike.work, alike.id, work),  # noqa: B023, called at once
            )
        except DataError as error:
            logging.warning("%s does not continue %s: %s", run.name, alike.title, error)
            damaged.add(saved.path)
            continue
        job_progress.report(note=str(choice))
        for sentence in filter(None, (str(choice), str(milestones), *milestones.lacking)):
            logging.info("%s %s", run.name, sentence)
        return
    for sentence in choice.refused:
        logging.info("%s %s", run.name, sentence)
    if choice.refused and not own_step:
        logging.info("%s trains from step 0", run.name)
