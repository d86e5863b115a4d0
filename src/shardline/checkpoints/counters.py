"""Lightning's counts of epochs and batches, restored before it resumes from them.

A state is taken inside a hook, where Lightning has counted an epoch or a batch as begun and not yet
as over. Lightning 2.6 completes such counts in part (`FitLoop.reset`, `reset_on_restart`): after a
state between two epochs it counts one epoch too few as `current.ready`, takes the next such state for
one that ended with its epoch, and calls the hooks at an epoch's start twice after the state in mid-epoch
that follows. So all counts follow here from the ones that are always right: how many epochs are
completed, and how many batches are ready.
"""

from typing import Any


def settle(checkpoint: dict[str, Any], *, is_mid_epoch: bool) -> None:
    """Complete the counts of a state.

    A state between two epochs resumes as a training that has ended one and not begun the next, so
    that Lightning begins that epoch like any other. One in mid-epoch resumes behind the batch at
    whose end it was taken.

    Args:
        checkpoint: as Lightning has dumped it; changed in place.
        is_mid_epoch: where it was taken.
    """
    counts = checkpoint["loops"]["fit_loop"]
    epochs, batches = counts["epoch_progress"], counts["epoch_loop.batch_progress"]
    for count in epochs.values():
        done = count["completed"]
        count.update(ready=done + is_mid_epoch, started=done + is_mid_epoch, processed=done)
    if is_mid_epoch:
        for count in (batches["total"], batches["current"]):
            ready = count["ready"]
            count.update(started=ready, processed=ready, completed=ready - 1)


def steps_recorded(checkpoint: dict[str, Any], *, is_mid_epoch: bool) -> int:
    """Return the step under which the last metrics before a state are recorded.

    Lightning counts batches that completed an accumulation there, not calls of optimisers, of which
    a model may have several.
    """
    counts = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
    return int(counts["_batches_that_stepped"]) + is_mid_epoch
