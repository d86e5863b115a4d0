"""Trainings that differ only in their length.

Two trainings are alike if their identity documents differ only in the length and the horizon of the schedule. Then a
state of one is a state of the other, up to the step at which something depends on the length.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import structs

from shardline.config.layout import ResultsLayout, names_that_have_been, title_of
from shardline.config.plans import RunPlan
from shardline.config.resolved import as_type
from shardline.config.settings.optim_settings import Schedule
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.core.canonical import digest
from shardline.records.identities import IdentityDocument
from shardline.results.states import IDENTITY, read_if_sound

# settings that decide how long a run trains, by table
LENGTH = {
    "trainer": ("max_epochs", "max_steps"),
    "schedule": ("epochs", "steps", "decay_steps", "decay"),
}
DOCUMENT = "identity.json"  # in a run's folder of the store, as in its folder of results


@dataclass(frozen=True, kw_only=True)
class Alike:
    """A training that differs from a run only in its length.

    Attributes:
        id: Id of the training.
        title: Its latest name, and the id.
        work: Its folder in the store.
        trainer: Its table `trainer`.
        schedule: Its table `schedule`.
    """

    id: str
    title: str
    work: Path
    trainer: Trainer
    schedule: Schedule

    def settings(self, run: RunSettings) -> RunSettings:
        """Return the settings of this training, from those of a run that is alike."""
        return structs.replace(run, trainer=self.trainer, schedule=self.schedule)


class Trainings:
    """All trainings that this project knows, by what they have in common but for their length."""

    def __init__(self, layout: ResultsLayout) -> None:
        self._layout = layout

    def like(self, run: RunPlan) -> Iterator[Alike]:
        """Yield the other trainings that differ from a run only in their length."""
        names = names_that_have_been(self._layout, "run")
        for key, document in self._by_rest.get(rest_of(run.document), ()):
            if key == run.id:
                continue
            trainer, schedule = (document["settings"].get(name, {}) for name in LENGTH)
            yield Alike(
                id=key,
                title=title_of(key, names),
                work=self._layout.work(key),
                trainer=as_type(trainer, Trainer),
                schedule=as_type(schedule, Schedule),
            )

    @cached_property
    def _by_rest(self) -> Mapping[str, list[tuple[str, IdentityDocument]]]:
        found: dict[str, list[tuple[str, IdentityDocument]]] = defaultdict(list)
        seen: set[str] = set()
        for folder in (self._layout.all_work, self._layout.folder_of("run")):
            for path in sorted(folder.glob(f"*/{DOCUMENT}")):
                key = path.parent.name
                if key in seen or not IDENTITY.fullmatch(key):
                    continue
                document = read_if_sound(path)
                if document.get("stage") == "train":
                    seen.add(key)
                    found[rest_of(document)].append((key, document))
        return found


def rest_of(document: IdentityDocument) -> str:
    """Return the digest of a document without the settings that decide how long a run trains."""
    settings = dict(document["settings"])
    for name, keys in LENGTH.items():
        left = {key: value for key, value in settings.get(name, {}).items() if key not in keys}
        settings[name] = left
    if settings["schedule"].get("name") == "wsd":  # constant until its decay
        settings["schedule"]["name"] = "constant"
    return digest({**document, "settings": settings})
