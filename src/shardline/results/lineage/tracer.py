"""Following a file to what made it, from sealed files alone: no config, no Snakemake."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shardline.config.layout import Kind, ResultsLayout
from shardline.config.plans import order_of_part, shards_of_part
from shardline.config.scripts import is_script
from shardline.core.canonical import short_digest
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.records.datasets import DatasetProvenance, Manifest, Part
from shardline.records.identities import read_identity
from shardline.records.reports import Report, ReportedRun
from shardline.records.runs import EvaluationResult, ResolvedRun, TrainingProvenance
from shardline.results.lineage.graph import Action, File, Lineage
from shardline.results.lineage.records import REMEDY, Records, expect_name, record_of
from shardline.results.sealed_run import accepted_of

_Rule = Callable[[Path, str], tuple[str, str]]
_SEALED = {"model.safetensors", "metrics.jsonl", "provenance.json"}  # of a training


def trace(path: Path, layout: ResultsLayout) -> Lineage:
    """Find out what made a file of the results or the store.

    Args:
        path: the file; a link stands for what it points at.
        layout: where results and store lie.

    Raises:
        ConfigError: no record names what made such a file.
        DataError: it is not there, or a sealed file that it was made from is not.
    """
    tracer = _Tracer(Records(layout))
    name = tracer.records.name_of(path)
    if not path.exists():
        raise DataError(f"{path} is not there, expected a file; check the path")
    tracer.add(name)
    found = tracer.lineage
    found.file = name
    found.problem = _problem(path, found.files[name])
    return found


def _problem(path: Path, file: File) -> str:
    kind, _, expected = file.digest.partition(":")
    if not expected:
        return ""
    digest = {"sha256": file_sha256, "blake3": file_blake3}[kind](path)
    if digest == expected:
        return ""
    return (
        f"{file.name} is not what {file.made_by} wrote: its {kind.upper()} is {digest[:12]}..., recorded is "
        f"{expected[:12]}...; run `shardline verify` for the remedy"
    )


class _Tracer:
    """Follows files to their actions, each once.

    Of each kind of file a method takes its name and the id in it, and returns the action that wrote
    the file, and the file's digest where one is recorded.
    """

    def __init__(self, records: Records) -> None:
        self.lineage = Lineage(file="")
        self.records, self._names = records, records.names
        shards, work, folder_of = (
            self._names.all_shards,
            self._names.all_work,
            self._names.folder_of,
        )
        self._rules: list[tuple[re.Pattern[str], _Rule]] = [
            (re.compile(f"{re.escape(str(folder))}/([0-9a-f]{{12}})/{pattern}"), rule)
            for folder, pattern, rule in (
                (folder_of("run"), r"(run|identity)\.json", self._resolved),
                (folder_of("run"), r"[^/]+", self._trained),
                (folder_of("run"), r"evaluations/[^/]+\.json", self._evaluated),
                (folder_of("dataset"), r"[^/]+", self._sealed),
                (folder_of("report"), r".+", self._reported),
                (shards, r"parts/[^/]+\.json", self._listed),
                (shards, r"shard-\d+\.safetensors", self._shard),
                (work, r".+", self._checkpoint),
            )
        ]

    def add(self, name: str) -> str:
        """Add a file with all that is behind it, and return its name."""
        if name not in self.lineage.files:
            for pattern, rule in self._rules:
                if match := pattern.fullmatch(name):
                    self.lineage.files[name] = File(name=name)  # damaged files may form a loop
                    made_by, digest = rule(Path(name), match[1])
                    self.lineage.files[name] = File(name=name, made_by=made_by, digest=digest)
                    return name
            raise ConfigError(
                f"nothing is recorded of {name}, expected a file of a run, a dataset or a report in "
                f"{self._names.results}, or a shard or training checkpoint in the store ({self._names.store}); name "
                "one of these"
            )
        return name

    def _act(
        self, action: str, inputs: Callable[[], Iterable[str]], *,
        identity: Mapping[str, Any] | None = None, record: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """Add an action with its inputs, once, and return its id."""
        if action not in self.lineage.actions:
            made_by = {
                key: identity[key] for key in ("versions", "code") if identity and key in identity
            }
            code = short_digest(made_by) if made_by else ""
            made = Action(id=action, code=code, record=record or {})
            self.lineage.actions[action] = made  # before its inputs: damaged files may form a loop
            made.inputs = list(dict.fromkeys(inputs()))
        return action

    def _source(self, name: str, members: Iterable[str] = ()) -> str:
        self.lineage.files[name] = File(name=name, members=tuple(members))
        return name

    # --- runs -----------------------------------------------------------------------------------

    def _resolved(self, _: Path, run: str) -> tuple[str, str]:
        spec = self.records.read(self._names.run(run) / "run.json", ResolvedRun)
        asked = f"{self.records.rows(run)} of the run table, the config's defaults"
        action = self._act(
            f"resolve_run/{run}", lambda: [self._source(asked)], record=spec.action or None
        )
        return action, ""

    def _trained(self, name: Path, run: str) -> tuple[str, str]:
        expect_name(name, _SEALED)
        provenance = self.records.read(name.with_name("provenance.json"), TrainingProvenance)
        action = self._accepted("run", name) or self._train(run, record_of(provenance))
        return action, _digest_of(name, provenance.files)

    def _accepted(self, kind: Kind, name: Path) -> str:
        """Add the acceptance of an earlier result, and that result as far as it is still there; "" of none."""
        accepted = accepted_of(self.records.at(name.parent))
        if not accepted:
            return ""
        earlier = self._names.result(kind, accepted.from_.id) / name.name
        deleted = f"{earlier}, deleted since: {accepted}"
        is_there = self.records.at(earlier).exists()
        return self._act(
            f"accept/{name.parent.name}/{name.name}",
            lambda: [self.add(str(earlier)) if is_there else self._source(deleted)],
            record=accepted.action,
        )

    def _checkpoint(self, _: Path, run: str) -> tuple[str, str]:
        path = self._names.run(run) / "provenance.json"  # not there before the training's end
        provenance = self.records.read_if_there(path, TrainingProvenance)
        return self._train(run, record_of(provenance) if provenance else {}), ""

    def _train(self, run: str, record: Mapping[str, Any]) -> str:
        folder = self._names.run(run)
        return self._act(
            f"train/{run}",
            lambda: self._inputs_of(folder),
            identity=read_identity(self.records.at(folder / "identity.json"), remedy=REMEDY),
            record=record,
        )

    def _evaluated(self, name: Path, run: str) -> tuple[str, str]:
        folder, evaluation = self._names.run(run), self.records.read(name, EvaluationResult)
        by_script = is_script(self.records.read(folder / "run.json", ResolvedRun).model_class)
        # a script's own figures are in the provenance
        own = "provenance.json" if by_script else "model.safetensors"
        action = self._act(
            f"evaluate/{run}/{name.stem}",
            lambda: [self.add(str(folder / own)), *self._inputs_of(folder)],
            identity=evaluation.identity,
            record=evaluation.action or None,
        )
        return action, ""

    def _inputs_of(self, folder: Path) -> list[str]:
        """Add what a training reads, and its evaluation as well."""
        spec = folder / "run.json"
        datasets = self.records.read(spec, ResolvedRun).mix
        return [self.add(str(spec)), *(self.add(str(self._names.manifest(d))) for d in datasets)]

    # --- datasets -------------------------------------------------------------------------------

    def _sealed(self, name: Path, dataset: str) -> tuple[str, str]:
        expect_name(name, {"manifest.json", "provenance.json"})
        path = name.with_name("provenance.json")
        provenance = self.records.read_if_there(path, DatasetProvenance)
        manifest = self.records.read(name.with_name("manifest.json"), Manifest)
        action = self._accepted("dataset", name) or self._act(
            f"seal_dataset/{dataset}",
            lambda: self._parts(dataset, manifest, provenance),
            identity=manifest.identity,
            record=provenance.action if provenance else None,
        )
        return action, _digest_of(name, provenance.files if provenance else {})

    def _parts(
        self, dataset: str, manifest: Manifest, provenance: DatasetProvenance | None
    ) -> list[str]:
        """Add the lists of shards, as the store has them or the provenance names their actions."""
        folder = self.records.layout.parts(dataset)
        parts = {Path(item["id"]).name: item for item in (provenance.parts if provenance else [])}
        parts |= {file.stem: parts.get(file.stem, {}) for file in folder.glob("*.json")}
        found = []
        for part in sorted(parts, key=order_of_part):
            name = self.records.name_of(folder / f"{part}.json")
            action = self._build(dataset, part, manifest, parts[part])
            self.lineage.files[name] = File(name=name, made_by=action)
            found.append(name)
        return found or self._sources(dataset, manifest)

    def _listed(self, name: Path, dataset: str) -> tuple[str, str]:
        record = self.records.read(name, Part).action
        return self._build(dataset, name.stem, self.records.manifest(dataset), record), ""

    def _shard(self, name: Path, dataset: str) -> tuple[str, str]:
        number, lists = int(name.stem.partition("-")[2]), self._names.parts(dataset)
        listed = self.records.at(lists).glob("*.json")
        for part in sorted(listed, key=lambda path: order_of_part(path.stem)):
            if number not in shards_of_part(part.stem):
                continue
            document = self.records.read(part, Part)
            digests = {shard.file: shard.blake3 for shard in document.shards}
            if name.name in digests:
                manifest = self.records.manifest(dataset)
                action = self._build(dataset, part.stem, manifest, document.action)
                return action, f"blake3:{digests[name.name]}"
        raise DataError(
            f"{name} stands in no list of {lists}, so no job is known to have "
            "finished it; run the pipeline to its end"
        )

    def _build(
        self, dataset: str, part: str, manifest: Manifest | None, record: Mapping[str, Any] | None
    ) -> str:
        return self._act(
            f"build_shards/{dataset}/{part}",
            lambda: self._sources(dataset, manifest),
            identity=manifest.identity if manifest else None,
            record=record,
        )

    def _sources(self, dataset: str, manifest: Manifest | None) -> list[str]:
        """Add the dataset's source, with the files that it read and their digests of then."""
        identity = manifest.identity if manifest else {}
        kind = identity.get("settings", {}).get("source", {}).get("type")
        name = (
            f"source {kind} of {dataset}"
            if kind
            else f"source of {dataset}, known once the dataset is sealed"
        )
        digests = identity.get("source", {}).items()
        read = {f"{name}: {key.partition('/')[2]}": f"sha256:{sha256}" for key, sha256 in digests}
        self.lineage.files |= {key: File(name=key, digest=read[key]) for key in read}
        return [self._source(name, read)]

    # --- reports --------------------------------------------------------------------------------

    def _reported(self, _: Path, report: str) -> tuple[str, str]:
        path = self._names.report(report).with_name("report.json")
        data = self.records.read(path, Report)
        action = self._act(
            f"render_report/{report}",
            lambda: [file for run in data.runs for file in self._reported_run(run)],
            record=data.action or None,
        )
        return action, ""

    def _reported_run(self, run: ReportedRun) -> list[str]:
        folder = self._names.run(run.training_id or run.id)
        evaluation = run.headline.action.rpartition("/")[2]
        names = ("run.json", "metrics.jsonl", "provenance.json", f"evaluations/{evaluation}.json")
        return [self.add(str(folder / name)) for name in names]


def _digest_of(name: Path, files: Mapping[str, str]) -> str:
    sha256 = files.get(name.name)
    return f"sha256:{sha256}" if sha256 else ""
