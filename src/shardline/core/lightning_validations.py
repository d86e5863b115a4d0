"""Access to private parts of Lightning's loops: where a training validates. See `core.lightning_compat`."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl


class Validations:
    """The batches after which a training validates, and calls behind these validations.

    Args:
        is_due: Function that returns whether to validate after the current batch, from Lightning's own choice.
    """

    def __init__(self, trainer: pl.Trainer, is_due: Callable[[bool], bool]) -> None:
        loop: Any = trainer.fit_loop.epoch_loop
        self._trainer, self._loop = trainer, loop
        self._should_check, self._end_batch = loop._should_check_val_fx, loop.on_advance_end
        self._is_due, self._was_due, self._is_first = is_due, False, True
        self._calls: list[Callable[[], None]] = []
        self.is_behind = False
        loop._should_check_val_fx, loop.on_advance_end = self._choose, self._advance_end
        loop.validations = self

    @classmethod
    def of(cls, trainer: pl.Trainer) -> "Validations | None":
        """Return the object of a training; None if it validates where Lightning does."""
        return getattr(trainer.fit_loop.epoch_loop, "validations", None)

    def is_due(self) -> bool:
        """Return whether a validation follows the current batch."""
        return self._is_due(self._should_check(self._trainer.fit_loop._data_fetcher))

    def call_behind(self, call: Callable[[], None]) -> None:
        """Call a function behind each validation, when Lightning has left all of its hooks."""
        self._calls.append(call)

    def _choose(self, fetcher: Any) -> bool:
        # Lightning first asks about the batch after which a training resumes; it was validated, if due
        is_resumed = self._is_first and self._loop.restarting
        self._is_first = False
        self._was_due = not is_resumed and self._is_due(self._should_check(fetcher))
        return self._was_due

    def _advance_end(self, fetcher: Any) -> None:
        self._end_batch(fetcher)
        if not self._was_due:
            return
        # counted as at the end of a batch, where other states are saved
        self._loop._batches_that_stepped -= 1
        self.is_behind = True
        try:
            for call in self._calls:
                call()
        finally:
            self.is_behind = False
            self._loop._batches_that_stepped += 1
