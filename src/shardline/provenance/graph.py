"""Provenance graph: which job read and wrote which file, from sealed records and the table of rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import UNSET

from shardline.config.layout import Kind, ResultsLayout, names_that_have_been
from shardline.config.plans import order_of_part, shards_of_part
from shardline.config.scripts import is_script
from shardline.core.canonical import DIGEST_LENGTH, short_digest
from shardline.core.errors import DataError
from shardline.core.nested import flatten
from shardline.provenance import rules
from shardline.provenance.nodes import ActionNode, FileNode, Ids, Names, flat
from shardline.provenance.rules import (
    ACCEPT,
    MAKERS,
    OF_BASES,
    OPTIONAL,
    RULES,
    WEIGHTS,
    filled,
    ids_in,
)
from shardline.provenance.sealed_records import SealedRecords
from shardline.provenance.study_actions import StudyActions
from shardline.records.acceptances import accepted_of
from shardline.records.datasets import Manifest, Part, Prepared, SplitPlan
from shardline.records.identities import read_identity
from shardline.records.jobs import JobRecord
from shardline.records.origins import BaseRef
from shardline.records.reported_runs import ReportedRun
from shardline.records.reports import Report
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance

_TAKEN_OVER: dict[str, Kind] = {
    "train": "run",
    "seal_dataset": "dataset",
}  # rules whose files can come from an accepted result


class ProvenanceGraph(StudyActions):
    """Graph of actions and files, derived from records on request.

    Args:
        records: sealed records of the project.
        names: layout for the names of files; by default the layout of the records.

    Attributes:
        sources: files that no job made, among the files read by the actions so far, by name; members come first.
    """

    def __init__(self, records: SealedRecords, names: ResultsLayout | None = None) -> None:
        self.records = records
        self.templates = rules.file_names(names or records.layout)
        self.sources: dict[str, list[FileNode]] = {}
        self._parts: dict[str, dict[str, JobRecord]] = {}

    def jobs_behind(
        self, runs: Iterable[tuple[str, str]], datasets: Iterable[str], studies: Iterable[tuple[str, int]] = ()
    ) -> list[ActionNode]:  # fmt: skip
        """Return the jobs that made some results, each once, in the order of the pipeline.

        Args:
            runs: pairs of run id and evaluation id.
            datasets: dataset ids.
            studies: pairs of id and number of trials of finished studies.
        """
        nodes = [job for study, number in studies for job in self.jobs_of_study(study, number)]
        for dataset in datasets:
            parts = self._recorded_parts(dataset)
            nodes += [getattr(self, rule)(dataset) for rule in self._made_first(dataset)]
            nodes += [self.build_shards(dataset, part) for part in parts]
            nodes.append(self.seal_dataset(dataset))
        for run, evaluation in runs:
            nodes += [self.resolve_run(run), self.train(run), self.evaluate(run, evaluation)]
        # the own files of a job count before the files of a result that accepted them
        nodes.sort(key=lambda node: bool(node.accepted_as), reverse=True)
        once = {node.id: node for node in nodes if node.rule in RULES}
        return sorted(once.values(), key=lambda node: node.order)

    def find(self, name: str) -> tuple[FileNode, ActionNode] | None:
        """Return a file by its name, and the action that made it; None if no rule writes such a file.

        Raises:
            DataError: A record is missing or damaged.
        """
        for kind, rule in MAKERS.items():
            ids = ids_in(name, self.templates[kind], rules.INSIDE.get(kind, ""))
            if ids is None:
                continue
            if kind == "shards":
                part, digest = self._listed(name, **ids)
                action = self.build_shards(part=part, **ids)
            else:
                digest = self._digest(rule, kind, name, ids)
                action = self._acceptance(rule, kind, name, ids) or self._maker(rule, kind, ids)
            return FileNode(name=name, digest=digest, made_by=action.id), action
        return None

    def _maker(self, rule: str, kind: str, ids: Ids) -> ActionNode:
        if kind == "work":
            return self.train(ids["run"], is_sealed=False)
        action: ActionNode = getattr(self, rule)(**ids)
        return action

    def _digest(self, rule: str, kind: str, name: str, ids: Ids) -> str:
        files: Mapping[str, str] = {}
        if rule == "train" and not self._is_folder(kind):
            path = filled(self.templates["provenance"], ids)
            files = self.records.read(path, TrainingProvenance).files
        elif rule == "seal_dataset":
            self.records.read(
                filled(self.templates["manifest"], ids), Manifest
            )  # it has to be there
            sealed = self.records.dataset(ids["dataset"])
            files = sealed.files if sealed else {}
        sha256 = files.get(Path(name).name)
        return f"sha256:{sha256}" if sha256 else ""

    def _is_folder(self, kind: str) -> bool:
        return self.templates[kind].endswith("/")

    # --- actions --------------------------------------------------------------------------------

    def _action(
        self, rule: str, ids: Ids, others: Iterable[Ids] = (), *, record: JobRecord | None,
        identity: Mapping[str, Any] | None = None, reads: Mapping[str, str] | None = None, **more: Any,
    ) -> ActionNode:  # fmt: skip
        """Return an action of a rule.

        Args:
            ids: ids in the paths of the files. In accepted files, the record is of the job that made the earlier files.
            others: ids of further files that the job read.
            record: record of the job, if known.
            identity: identity document with the code of the job.
            reads: kinds of files that the job read, if they differ from the rule.
        """
        about = f"{rule}/{RULES[rule].about}"
        own = (ids_in(record.id, about) if record else None) or dict(ids)
        is_accept = record is not None and record.rule == ACCEPT
        outputs, placed = (self._names(RULES[rule].writes, [of]) for of in (own, ids))
        made_by = {
            key: identity[key] for key in ("versions", "code") if identity and key in identity
        }
        return ActionNode(
            id=record.id if record and is_accept else filled(about, own),
            rule=ACCEPT if is_accept else rule,
            ids=own,
            inputs=self._names(RULES[rule].reads if reads is None else reads, [own, *others]),
            outputs=outputs,
            record=record,
            code=short_digest(made_by) if made_by else "",
            accepted_as={} if own == ids else dict(zip(flat(outputs), flat(placed), strict=True)),
            **more,
        )

    def _names(self, kinds: Mapping[str, str], rows: Sequence[Ids]) -> Names:
        """Return the names of files by parameter, one per row of ids that fits the kind."""
        found = {}
        for parameter, kind in kinds.items():
            template = self.templates[kind]
            fitting = [row for row in rows if "{" not in filled(template, row)]
            found[parameter] = list(dict.fromkeys(self._name(kind, row) for row in fitting))
        return found

    def _name(self, kind: str, ids: Ids) -> str:
        if kind == rules.SOURCE:
            return self._source_of(ids["dataset"])
        if kind == rules.ASKED:
            names = self._rows.get(ids["run"], [])
            row = f"row {', '.join(names)}" if names else "a row"
            return self._source(f"{row} of the run table, the config's defaults")
        return filled(self.templates[kind], ids)

    def prepare_data(self, dataset: str) -> ActionNode:
        """Return the job that called `prepare_data` of a dataset's data module."""
        return self._before_building("prepare_data", dataset)

    def plan_splits(self, dataset: str) -> ActionNode:
        """Return the job that planned the splits of a dataset."""
        return self._before_building("plan_splits", dataset)

    def _before_building(self, rule: str, dataset: str) -> ActionNode:
        return self._action(
            rule, {"dataset": dataset},
            record=self._made_first(dataset).get(rule),
            identity=self._identity_of(dataset),
            reads=self._reads(dataset, rule),
        )  # fmt: skip

    def _made_first(self, dataset: str) -> dict[str, JobRecord | None]:
        """Return the records of a dataset's jobs that ran before shards were written, by rule."""
        sealed, found = self.records.dataset(dataset), dict[str, JobRecord | None]()
        prepared, plan = (
            filled(self.templates[kind], {"dataset": dataset}) for kind in OPTIONAL.values()
        )
        if record := sealed and sealed.prepared:
            found["prepare_data"] = record
        elif made := self.records.read_if_there(prepared, Prepared):
            found["prepare_data"] = made.action
        if record := sealed and sealed.plan:
            found["plan_splits"] = record
        elif planned := self.records.read_if_there(plan, SplitPlan):
            found["plan_splits"] = planned.action or None
        return found

    def _reads(self, dataset: str, *rules: str) -> dict[str, str]:
        """Return the kinds of files that jobs of a dataset read, without files that it does not have."""
        made = self._made_first(dataset)
        lacks = {kind for rule, kind in OPTIONAL.items() if rule not in made}
        kinds = {key: kind for rule in rules for key, kind in RULES[rule].reads.items()}
        return {key: kind for key, kind in kinds.items() if kind not in lacks}

    def build_shards(self, dataset: str, part: str) -> ActionNode:
        """Return the job that wrote a part of a dataset."""
        ids = {"dataset": dataset, "part": part}
        record = self._recorded_parts(dataset).get(part)
        path = filled(self.templates["part"], ids)
        if record is None and (listed := self.records.read_if_there(path, Part)):
            record = listed.action
        identity = self._identity_of(dataset)
        settings = flatten(identity.get("settings", {}))
        return self._action(
            "build_shards", ids, record=record, identity=identity, settings=settings,
            reads=self._reads(dataset, "build_shards"),
        )  # fmt: skip

    def seal_dataset(self, dataset: str) -> ActionNode:
        """Return the job that sealed a dataset; if no part is known, it read the source."""
        parts = [{"dataset": dataset, "part": part} for part in self._all_parts(dataset)]
        sealed = self.records.dataset(dataset)
        return self._action(
            "seal_dataset", {"dataset": dataset}, parts,
            record=sealed.action if sealed else None,
            identity=self._identity_of(dataset),
            reads=self._reads(dataset, "seal_dataset", *([] if parts else ["build_shards"])),
        )  # fmt: skip

    def resolve_run(self, run: str) -> ActionNode:
        """Return the job that resolved the settings of a run."""
        return self._action(
            "resolve_run", {"run": run}, record=self.records.spec(run).action or None
        )

    def train(self, run: str, *, is_sealed: bool = True) -> ActionNode:
        """Return the job that trained a run.

        Args:
            is_sealed: whether to use the sealed result, which may be accepted, or the files in the store.
        """
        spec, training = self.records.spec(run), self.records.training(run)
        if training and training.run not in ("", run) and not is_sealed:
            training = None
        path = self.records.at(filled(self.templates["identity"], {"run": run}))
        identity = read_identity(path, remedy=self.records.remedy) if path.exists() else {}
        bases = (training.bases if training else None) or spec.bases or []
        action = self._action(
            "train", {"run": run}, [*_datasets(spec, training), *map(_ids_of_base, bases)],
            record=(training.action or None) if training else None,
            identity=identity,
            settings=self._settings_of_training(run, spec, identity),
            training=training,
        )  # fmt: skip
        weights = [self._weights(one) for one in bases if one.source in ("file", "hf")]
        read = {key: names for key, names in action.inputs.items() if names or key not in OF_BASES}
        read |= {WEIGHTS: weights} if weights else {}
        read |= self._shorter(training)
        return replace(action, inputs=read)

    def _weights(self, base: BaseRef) -> str:
        """Add a file or folder of weights that a training began from, and return its name."""
        kind = "file" if base.source == "file" else "folder"
        name = f"{kind} of weights {base.identity[:DIGEST_LENGTH]}"
        file = FileNode(name=f"{name}: its content", digest=f"sha256:{base.identity}")
        return self._source(name, [file] if base.source == "file" else [])

    def _shorter(self, training: TrainingProvenance | None) -> dict[str, list[str]]:
        """Return the training checkpoint of the shorter run that a training continued."""
        if not training or not training.continued:
            return {}
        of = training.continued
        work = filled(self.templates["work"], {"run": of.run})
        return {rules.SHORTER: [f"{work}checkpoints/step-{of.step:08d}/manifest.json"]}

    def _settings_of_training(
        self, run: str, spec: ResolvedRun, identity: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings = _settings(spec)
        if accepted := accepted_of(self.records.at(self.records.layout.declared.run(run))):
            documents = accepted.origin.document, identity
            then, now = (flatten(document.get("settings", {})) for document in documents)
            settings = {key: settings[key] for key in settings if key in then or key not in now}
            settings |= {key: then[key] for key in then if then[key] != now.get(key)}
        return {key: settings[key] for key in settings if not key.startswith("evaluation.")}

    def evaluate(self, run: str, evaluation: str) -> ActionNode:
        """Return the job that evaluated a run."""
        spec, result = self.records.spec(run), self.records.evaluation(run, evaluation)
        settings = _settings(spec)
        return self._action(
            "evaluate", {"run": run, "evaluation": evaluation},
            _datasets(spec, self.records.training(run) if result.accepted else None),
            record=result.action or None,
            identity=result.identity,
            reads=RULES["evaluate"].reads_of_script if is_script(spec.model_class) else None,
            settings={key: settings[key] for key in settings if key.startswith("evaluation.")},
        )  # fmt: skip

    def render_report(self, report: str) -> ActionNode:
        """Return the job that wrote a report, from its `report.json`."""
        path = self.records.layout.declared.report(report).with_name("report.json")
        data = self.records.read(path, Report)
        runs = [(run.training_id or run.id, _evaluation_of(run)) for run in data.runs]
        datasets = [str(one["id"]) for one in data.datasets if "manifest_sha256" in one]
        studies = [(one.study, one.planned) for one in data.sweeps or () if one.action]
        return self.report_of(report, runs, datasets, data.action or None, studies)

    def report_of(
        self, report: str, runs: Iterable[tuple[str, str]], datasets: Iterable[str], record: JobRecord | None,
        studies: Iterable[tuple[str, int]] = (),
    ) -> ActionNode:  # fmt: skip
        """Return the job that wrote a report over runs and datasets; arguments as in `jobs_behind`."""
        rows = [{"run": run, "evaluation": evaluation} for run, evaluation in runs]
        read = [*rows, *({"dataset": dataset} for dataset in datasets)]
        read += [{"study": study, "number": str(number)} for study, number in studies]
        return self._action("render_report", {"report": report}, read, record=record)

    def _acceptance(self, rule: str, kind: str, name: str, ids: Ids) -> ActionNode | None:
        """Return the acceptance that copied a file from an earlier result; None for other files."""
        of = "run" if kind == "evaluation" else _TAKEN_OVER.get(rule)
        if not of or self._is_folder(kind):
            return None
        folder = self.records.layout.declared.result(of, ids[of])
        accepted = accepted_of(self.records.at(folder))
        earlier: dict[str, str] = {of: accepted.from_.id} if accepted else {}
        if kind == "evaluation":
            taken = self.records.evaluation(**ids).accepted
            earlier = (
                {"run": taken.from_.run, "evaluation": taken.from_.evaluation} if taken else {}
            )
        if not accepted or not earlier:
            return None
        before = filled(self.templates[kind], earlier)
        if not self.records.at(before).exists():
            before = self._source(f"{before}, deleted since: {accepted}")
        return ActionNode(
            id=f"{ACCEPT}/{ids[of]}/{Path(name).name}",
            rule=ACCEPT,
            inputs={"earlier": [before]},
            outputs={"accepted": [name]},
            record=accepted.action,
        )

    # --- sources and shards ---------------------------------------------------------------------

    def _source(self, name: str, members: Iterable[FileNode] = ()) -> str:
        files = list(members)
        node = FileNode(name=name, members=tuple(file.name for file in files))
        self.sources[name] = [*files, node]
        return name

    def _source_of(self, dataset: str) -> str:
        """Add the source of a dataset with its files and their recorded digests, and return its name."""
        identity = self._identity_of(dataset)
        kind = identity.get("settings", {}).get("source", {}).get("type")
        known = f"source {kind} of {dataset}"
        name = known if kind else f"source of {dataset}, known once the dataset is sealed"
        return self._source(name, (
            FileNode(name=f"{name}: {key.partition('/')[2]}", digest=f"sha256:{sha256}")
            for key, sha256 in identity.get("source", {}).items()
        ))  # fmt: skip

    @cached_property
    def _rows(self) -> Mapping[str, list[str]]:
        return names_that_have_been(self.records.layout, "run")

    def _identity_of(self, dataset: str) -> Mapping[str, Any]:
        manifest = self.records.manifest(dataset)
        return manifest.identity if manifest else {}

    def _recorded_parts(self, dataset: str) -> dict[str, JobRecord]:
        if dataset not in self._parts:
            sealed = self.records.dataset(dataset)
            records = sealed.parts if sealed else []
            self._parts[dataset] = {Path(record.id).name: record for record in records}
        return self._parts[dataset]

    def _all_parts(self, dataset: str) -> list[str]:
        """Return the ordered parts of a dataset, from its provenance and from the lists in the store."""
        lists = self.records.layout.parts(dataset).glob("*.json")
        found = {*self._recorded_parts(dataset), *(file.stem for file in lists)}
        return sorted(found, key=order_of_part)

    def _listed(self, name: str, dataset: str) -> tuple[str, str]:
        """Return the part that lists a shard, and the listed digest."""
        number = int(Path(name).stem.partition("-")[2])
        for part in self._all_parts(dataset):
            path = filled(self.templates["part"], {"dataset": dataset, "part": part})
            if number in shards_of_part(part) and (found := self.records.read_if_there(path, Part)):
                listed = {shard.file: shard.blake3 for shard in found.shards}
                if digest := listed.get(Path(name).name):
                    return part, f"blake3:{digest}"
        raise DataError(
            f"{name} is not listed in {self.records.layout.declared.parts(dataset)}, so no job is known to have "
            "finished it; run `snakemake` to its end"
        )


def _settings(spec: ResolvedRun) -> dict[str, Any]:
    return {"model": spec.model_class, **flatten(spec.settings)}


def _datasets(spec: ResolvedRun, training: TrainingProvenance | None) -> list[Ids]:
    """Return the datasets that a job of a run read; for an accepted training, the datasets of that training."""
    mix = (training.mix if training else {}) or spec.mix
    return [{"dataset": dataset} for dataset in mix]


def _ids_of_base(base: BaseRef) -> dict[str, str]:
    """Return the ids in the name of the file that a training read of the run that it began from."""
    if not base.run:
        return {}
    if base.state == "last" and base.step is not UNSET:
        return {"base": base.run, "step": f"{base.step:08d}"}
    return {"base": base.run}


def _evaluation_of(run: ReportedRun) -> str:
    """Return the id of the evaluation in a report of a run."""
    files = (name for name in run.files if name.startswith("evaluations/"))
    return Path(next(files, run.headline.action)).name.removesuffix(".json")
