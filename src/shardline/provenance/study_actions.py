"""Actions of a study in the provenance graph: its proposals, trials and summary."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardline.provenance.nodes import ActionNode, Ids
from shardline.provenance.rules import filled, ids_in
from shardline.provenance.sealed_records import SealedRecords
from shardline.records.sweeps import Proposal, StudyResult, TrialResult


class StudyActions:
    """Part of `ProvenanceGraph` with the jobs of studies."""

    records: SealedRecords
    templates: dict[str, str]
    _action: Any

    def jobs_of_study(self, study: str, number: str | int) -> list[ActionNode]:
        """Return the jobs that made a finished study, from its first proposal to its summary."""
        trials = self._folders(study, str(number))
        return [
            *(self.propose(study, trial) for trial in trials),
            *(self.train_trial(**ids) for trial in trials for ids in self._results(study, trial)),
            self.seal_study(study, str(number)),
        ]

    def propose(self, study: str, trial: str) -> ActionNode:
        """Return the job that proposed a trial. It read the proposal before, and the results new to it."""
        here = self.records.read(self._proposal_of(study, trial), Proposal)
        read = {
            "before": [self._proposal_of(study, here.before)] if here.before else [],
            "results": [
                filled(self.templates["trial"], ids)
                for one in here.results
                for ids in self._results(study, one)
            ],
        }
        ids = {"study": study, "trial": trial}
        made: ActionNode = self._action("propose", ids, record=here.action or None)
        return replace(made, inputs=read, settings=here.settings)

    def train_trial(self, study: str, trial: str, repeat: str) -> ActionNode:
        """Return the job that trained a trial. Its run, if it has a result, is an input."""
        ids = {"study": study, "trial": trial, "repeat": repeat}
        found = self.records.read(filled(self.templates["trial"], ids), TrialResult)
        run = {"run": found.run}
        is_there = found.run and self.records.at(filled(self.templates["provenance"], run)).exists()
        made: ActionNode = self._action(
            "train_trial", ids, [run] if is_there else [], record=found.action or None
        )
        return made

    def seal_study(self, study: str, number: str) -> ActionNode:
        """Return the job that wrote the summary of a study with a number of trials."""
        ids = {"study": study, "number": number}
        found = self.records.read(filled(self.templates["study"], ids), StudyResult)
        trials = [one for trial in found.folders for one in self._results(study, trial)]
        made: ActionNode = self._action(
            "seal_study", ids, trials, record=found.action or None, identity=found.identity
        )
        return made

    def _folders(self, study: str, number: str) -> list[str]:
        ids = {"study": study, "number": number}
        return self.records.read(filled(self.templates["study"], ids), StudyResult).folders

    def _proposal_of(self, study: str, trial: str) -> str:
        return filled(self.templates["proposal"], {"study": study, "trial": trial})

    def _results(self, study: str, trial: str) -> Iterator[Ids]:
        """Yield the ids of the results of a trial, one for each training."""
        folder = Path(self._proposal_of(study, trial)).parent
        for path in sorted(self.records.at(folder).glob("result-*.json")):
            if ids := ids_in(str(folder / path.name), self.templates["trial"]):
                yield ids
