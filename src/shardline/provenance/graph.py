"""Which job read and wrote which file: actions and files, from the sealed records and the table of rules."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config.layout import Kind, ResultsLayout
from shardline.config.plans import order_of_part, shards_of_part
from shardline.config.scripts import is_script
from shardline.core.canonical import short_digest
from shardline.core.errors import DataError
from shardline.core.nested import flatten
from shardline.provenance.rules import (
    IDS,
    INSIDE,
    MAKERS,
    ORDER,
    RULES,
    file_names,
    filled,
    ids_in,
    nearest_first,
)
from shardline.provenance.sealed_records import SealedRecords
from shardline.records.acceptances import Accepted
from shardline.records.jobs import JobRecord
from shardline.records.reports import Report, ReportedRun
from shardline.records.runs import ResolvedRun, TrainingProvenance

ACCEPT = "accept"  # the command that takes files of an earlier result over; no rule
_ACCEPTED: dict[str, Kind] = {
    "train": "run",
    "seal_dataset": "dataset",
}  # whose files, and by what id
_READS_OF_UNKNOWN_PARTS = {**RULES["seal_dataset"].reads, **RULES["build_shards"].reads}
_SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class FileNode:
    """A file, or a source that is none.

    Attributes:
        name: path from the project's folder; of a source file, the name it was read under.
        digest: `sha256:...` or `blake3:...` as recorded; empty where none is.
        made_by: id of the action that wrote it; empty of a source.
        members: names of a source's files.
    """

    name: str
    digest: str = ""
    made_by: str = ""
    members: tuple[str, ...] = ()

    @property
    def short_digest(self) -> str:
        """The digest as people read it."""
        kind, _, digits = self.digest.partition(":")
        return f"{kind} {digits[:_SHOWN_DIGITS]}" if digits else ""


@dataclass(frozen=True, kw_only=True)
class ActionNode:
    """A job that wrote files.

    Attributes:
        id: `rule/key`.
        ids: what it was about, such as the `run`.
        inputs, outputs: declared names of files by the rule's parameters; that of a folder ends in `/`.
        record: what the job recorded of itself; None where nothing is known.
        accepted: the acceptance that it was.
        accepted_as: by the name of an output, the file of an accepting result that has its content.
        training: what a training recorded beside that.
        find_identity: gives the identity document that has the job's code.
        find_settings: gives what the job was set to, by dotted key.
    """

    id: str
    rule: str
    ids: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, list[str]]
    outputs: Mapping[str, list[str]]
    record: JobRecord | None = None
    accepted: Accepted | None = None
    accepted_as: Mapping[str, str] = field(default_factory=dict)
    training: TrainingProvenance | None = None
    find_identity: Callable[[], Mapping[str, Any]] = dict
    find_settings: Callable[[], dict[str, Any]] = dict

    @cached_property
    def code(self) -> str:
        """Digest of the code that it ran; empty where no identity document records it."""
        identity = self.find_identity()
        made_by = {key: identity[key] for key in ("versions", "code") if key in identity}
        return short_digest(made_by) if made_by else ""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What it was set to, by dotted key."""
        return self.find_settings()

    @property
    def recorded(self) -> JobRecord:
        """Its record, of a job that has left one."""
        assert self.record
        return self.record

    @property
    def files_read(self) -> list[str]:
        """The files that it read, those first that were made last; without folders."""
        parameters = nearest_first(self.rule, self.inputs)
        names = [name for parameter in parameters for name in self.inputs[parameter]]
        return [name for name in names if not name.endswith("/")]

    @property
    def order(self) -> tuple[object, ...]:
        """What actions are sorted by: their rule's place in the pipeline, then what they are about."""
        job, _, part = self.id.rpartition("/")
        return ORDER.index(self.rule), job, *order_of_part(part)


class ProvenanceGraph:
    """Derives actions and files from records; each view asks for those that it shows.

    Args:
        names: spells the names of files, where it is not the layout of the records.
    """

    def __init__(self, records: SealedRecords, names: ResultsLayout | None = None) -> None:
        self.records = records
        self.templates = file_names(names or records.layout)
        self._parts: dict[str, dict[str, JobRecord]] = {}

    # --- views ----------------------------------------------------------------------------------

    def jobs_behind(
        self, runs: Iterable[tuple[str, str]], datasets: Iterable[str]
    ) -> list[ActionNode]:
        """Return the jobs of the pipeline that made some results, each once, in its order.

        Args:
            runs: ids of runs, each with that of its evaluation.
            datasets: ids.
        """
        nodes = [node for dataset in datasets for node in self._jobs_of_dataset(dataset)]
        for run, evaluation in runs:
            nodes += [self.resolve_run(run), self.train(run), self.evaluate(run, evaluation)]
        # what a job's own files hold of it counts, and not what a result holds that has accepted them
        nodes.sort(key=lambda node: bool(node.accepted_as), reverse=True)
        once = {node.id: node for node in nodes if node.rule in RULES}
        return sorted(once.values(), key=lambda node: node.order)

    def _jobs_of_dataset(self, dataset: str) -> list[ActionNode]:
        parts = self._recorded_parts(dataset)
        return [*(self.build_shards(dataset, part) for part in parts), self.seal_dataset(dataset)]

    def _recorded_parts(self, dataset: str) -> dict[str, JobRecord]:
        if dataset not in self._parts:
            provenance = self.records.dataset(dataset)
            records = provenance.parts if provenance else []
            self._parts[dataset] = {Path(record.id).name: record for record in records}
        return self._parts[dataset]

    def _all_parts(self, dataset: str) -> list[str]:
        """Return the parts of a dataset in their order: of its provenance, and of the store's lists."""
        found = {*self._recorded_parts(dataset), *self.records.listed_parts(dataset)}
        return sorted(found, key=order_of_part)

    def _is_folder(self, kind: str) -> bool:
        return self.templates[kind].endswith("/")

    def find(self, name: str) -> tuple[FileNode, ActionNode] | None:
        """Return a file by its name, and the action that made it; None where no record tells of such files.

        Raises:
            DataError: a record is missing or damaged.
        """
        for kind in MAKERS:
            ids = ids_in(name, self.templates[kind], INSIDE.get(kind, ""))
            if ids is not None:
                if kind == "shards":
                    return self._shard(name, **ids)
                action = self._accept(kind, name, ids) or self._maker(kind, ids)
                digest = self._digest(kind, name, ids)
                return FileNode(name=name, digest=digest, made_by=action.id), action
        return None

    def _maker(self, kind: str, ids: Mapping[str, str]) -> ActionNode:
        if kind == "work":
            return self.train(ids["run"], is_sealed=False)
        action: ActionNode = getattr(self, MAKERS[kind])(**ids)
        return action

    def _digest(self, kind: str, name: str, ids: Mapping[str, str]) -> str:
        files: Mapping[str, str] = {}
        if MAKERS[kind] == "train" and not self._is_folder(kind):
            path = filled(self.templates["provenance"], ids)
            files = self.records.read(path, TrainingProvenance).files
        elif MAKERS[kind] == "seal_dataset" and (sealed := self.records.dataset(ids["dataset"])):
            files = sealed.files
        sha256 = files.get(Path(name).name)
        return f"sha256:{sha256}" if sha256 else ""

    # --- actions --------------------------------------------------------------------------------

    def _action(
        self, rule: str, ids: Mapping[str, str], others: Iterable[Mapping[str, str]] = (), *,
        record: JobRecord | None, reads: Mapping[str, str] | None = None, **more: Any,
    ) -> ActionNode:  # fmt: skip
        """Return a rule's action.

        Args:
            ids: what the job was about, as its files' place has it. A record in files that were taken
                over is that of the job that made the earlier ones.
            others: ids of what it read beside its own files.
            reads: kinds of files, unless they are the rule's.
        """
        about = f"{rule}/{RULES[rule].about}"
        own = ids_in(record.id, about) if record else None
        own = own or dict(ids)
        is_accept = record is not None and record.rule == ACCEPT
        outputs, placed = (self._names(RULES[rule].writes, [of]) for of in (own, ids))
        return ActionNode(
            id=record.id if record and is_accept else filled(about, own),
            rule=ACCEPT if is_accept else rule,
            ids=own,
            inputs=self._names(RULES[rule].reads if reads is None else reads, [own, *others]),
            outputs=outputs,
            record=record,
            accepted_as={} if own == ids else dict(zip(_flat(outputs), _flat(placed), strict=True)),
            **more,
        )

    def _names(
        self, kinds: Mapping[str, str], rows: Sequence[Mapping[str, str]]
    ) -> dict[str, list[str]]:
        """Return the files of some kinds, one for each row of ids that names one."""
        found = {}
        for parameter, kind in kinds.items():
            template = self.templates[kind]
            needed = {key for key in IDS if f"{{{key}}}" in template}
            names = [filled(template, row) for row in rows if needed <= row.keys()]
            found[parameter] = list(dict.fromkeys(names))
        return found

    def build_shards(self, dataset: str, part: str) -> ActionNode:
        """Return the job that wrote a part of a dataset."""
        record = self._recorded_parts(dataset).get(part)
        if record is None and (listed := self.records.part(dataset, part)):
            record = listed.action
        identity = self._identity_of(dataset)
        return self._action(
            "build_shards", {"dataset": dataset, "part": part}, record=record,
            find_identity=identity, find_settings=lambda: flatten(identity().get("settings", {})),
        )  # fmt: skip

    def _identity_of(self, dataset: str) -> Callable[[], Mapping[str, Any]]:
        def find() -> Mapping[str, Any]:
            manifest = self.records.manifest(dataset)
            return manifest.identity if manifest else {}

        return find

    def seal_dataset(self, dataset: str) -> ActionNode:
        """Return the job that sealed a dataset; where no part is known, it read the source."""
        parts = [{"dataset": dataset, "part": part} for part in self._all_parts(dataset)]
        provenance = self.records.dataset(dataset)
        return self._action(
            "seal_dataset", {"dataset": dataset}, parts,
            record=provenance.action if provenance else None,
            reads=RULES["seal_dataset"].reads if parts else _READS_OF_UNKNOWN_PARTS,
            find_identity=self._identity_of(dataset),
        )  # fmt: skip

    def resolve_run(self, run: str) -> ActionNode:
        """Return the job that wrote a run's settings."""
        record = self.records.spec(run).action
        return self._action("resolve_run", {"run": run}, record=record or None)

    def train(self, run: str, *, is_sealed: bool = True) -> ActionNode:
        """Return the job that trained a run.

        Args:
            is_sealed: whether the sealed result is meant, which may have been taken over, or what the run has
                in the store.
        """
        spec, training = self.records.spec(run), self.records.training(run)
        if training and training.run not in ("", run) and not is_sealed:
            training = None
        mix = (training.mix if training else {}) or spec.mix
        return self._action(
            "train", {"run": run}, [{"dataset": dataset} for dataset in mix],
            record=(training.action or None) if training else None,
            training=training,
            find_identity=lambda: self.records.identity(run),
            find_settings=lambda: self._settings_of_training(run, spec),
        )  # fmt: skip

    def _settings_of_training(self, run: str, spec: ResolvedRun) -> dict[str, Any]:
        settings = _settings(spec)
        if accepted := self.records.accepted("run", run):
            then, now = (
                flatten(document.get("settings", {}))
                for document in (accepted.origin.document, self.records.identity(run))
            )
            gone = now.keys() - then.keys()
            settings = {key: settings[key] for key in settings if key not in gone}
            settings |= {key: then[key] for key in then if then[key] != now.get(key)}
        return {key: settings[key] for key in settings if not key.startswith("evaluation.")}

    def evaluate(self, run: str, evaluation: str) -> ActionNode:
        """Return the job that evaluated a run."""
        spec, result = self.records.spec(run), self.records.evaluation(run, evaluation)
        training = self.records.training(run) if result.accepted else None
        mix = (training.mix if training else {}) or spec.mix
        settings = _settings(spec)
        return self._action(
            "evaluate", {"run": run, "evaluation": evaluation}, [{"dataset": one} for one in mix],
            record=result.action or None,
            reads=RULES["evaluate"].reads_of_script if is_script(spec.model_class) else None,
            find_identity=lambda: result.identity,
            find_settings=lambda: {key: settings[key] for key in settings if key.startswith("evaluation.")},
        )  # fmt: skip

    def render_report(self, report: str) -> ActionNode:
        """Return the job that wrote a report, from the report's own data."""
        data = self.records.read(self.records.names.report(report).with_name("report.json"), Report)
        runs = [(run.training_id or run.id, _evaluation_of(run)) for run in data.runs]
        datasets = [str(one["id"]) for one in data.datasets if "manifest_sha256" in one]
        return self.report_of(report, runs, datasets, data.action or None)

    def report_of(
        self, report: str, runs: Iterable[tuple[str, str]], datasets: Iterable[str],
        record: JobRecord | None,
    ) -> ActionNode:  # fmt: skip
        """Return the job that wrote a report over some runs and their datasets; see `jobs_behind`."""
        rows = [{"run": run, "evaluation": evaluation} for run, evaluation in runs]
        read = [*rows, *({"dataset": dataset} for dataset in datasets)]
        return self._action("render_report", {"report": report}, read, record=record)

    def _accept(self, kind: str, name: str, ids: Mapping[str, str]) -> ActionNode | None:
        """Return the acceptance that took a file over from an earlier result; None of other files."""
        earlier: dict[str, str] = {}
        if (of := _ACCEPTED.get(MAKERS[kind])) and not self._is_folder(kind):
            accepted = self.records.accepted(of, ids[of])
            earlier = {of: accepted.from_.id} if accepted else {}
        elif kind == "evaluation" and (taken := self.records.evaluation(**ids).accepted):
            accepted = self.records.accepted("run", ids["run"])
            earlier = {"run": taken.from_.run, "evaluation": taken.from_.evaluation}
        if not earlier:
            return None
        return ActionNode(
            id=f"{ACCEPT}/{ids.get('run') or ids['dataset']}/{Path(name).name}",
            rule=ACCEPT,
            inputs={"earlier": [filled(self.templates[kind], earlier)]},
            outputs={"accepted": [name]},
            record=accepted.action if accepted else None,
            accepted=accepted,
        )

    # --- shards ---------------------------------------------------------------------------------

    def _shard(self, name: str, dataset: str) -> tuple[FileNode, ActionNode]:
        """Return a shard by the list that has it."""
        file = Path(name).name
        number = int(Path(name).stem.partition("-")[2])
        for part in self._all_parts(dataset):
            if number not in shards_of_part(part) or not (
                found := self.records.part(dataset, part)
            ):
                continue
            listed = {one.file: one.blake3 for one in found.shards}
            if file in listed:
                action = self.build_shards(dataset, part)
                digest = f"blake3:{listed[file]}"
                return FileNode(name=name, digest=digest, made_by=action.id), action
        raise DataError(
            f"{name} stands in no list of {self.records.names.parts(dataset)}, so no job is known to have "
            "finished it; run the pipeline to its end"
        )


def _flat(names: Mapping[str, list[str]]) -> list[str]:
    return [name for each in names.values() for name in each]


def _settings(spec: ResolvedRun) -> dict[str, Any]:
    return {"model": spec.model_class, **flatten(spec.settings)}


def _evaluation_of(run: ReportedRun) -> str:
    """Return the id of the evaluation that a report has read of a run."""
    files = (name for name in run.files if name.startswith("evaluations/"))
    return Path(next(files, run.headline.action)).name.removesuffix(".json")
